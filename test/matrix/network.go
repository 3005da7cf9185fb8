package main

import (
	"math"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/nn"
)

const width = 64

// network is Linear-ReLU-Linear-ReLU-Linear. The second Linear may be one of several branches.
type network struct {
	nn.Module
	middle *choice
}

// choice is a module whose Forward calls one of several branches.
type choice struct {
	nn.Module // holds the parameters of all branches
	of        []nn.Module
	now       int // the index of the branch that Forward calls
}

func (c *choice) Forward(x *autograd.Variable) *autograd.Variable { return c.of[c.now].Forward(x) }

// network makes the network and draws its weights from the seed. The biases of the hidden layers are
// alternately plus and minus three standard deviations of the ReLU's input without bias.
func (r *recipe) network(dev device.Device, seed uint64) (*network, error) {
	o := nn.LinearOptions{Compute: r.compute}
	square := 1.0 // mean square of a layer's inputs
	hidden := func() nn.Module {
		gates := make([]float64, width)
		for i := range gates {
			gates[i] = 3 * math.Sqrt(square/3) * float64(1-2*(i%2))
		}
		l := nn.Linear(width, width, &o)
		l.Bias = nn.NewParameter("bias", autograd.FromSlice(dev, gates, width))
		return l
	}
	first := hidden()
	square *= (9 + 1) / 3. / 2 // half of the units are open
	middle := &choice{}
	for range max(r.branches, 1) {
		middle.of = append(middle.of, hidden())
	}
	middle.Module = nn.Sequential(middle.of...)
	net := &network{nn.Sequential(first, nn.ReLU(), middle, nn.ReLU(), nn.Linear(width, width, &o)), middle}
	if err := nn.Cast(net, r.params, nil); err != nil {
		return nil, err
	}
	return net, nn.Place(net, dev, seed)
}
