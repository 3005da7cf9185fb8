package main

import (
	"math"
	"math/rand/v2"

	"github.com/goddp/goddp/amp"
	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/ddp/zero"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

const (
	width   = 64
	rows    = 16 // samples of a rank in a step
	batches = 4  // step t takes batch t mod batches
	epochs  = 2  // of the steps, where ranks run out of samples
)

// recipe is what is trained, by ranks and by a single process alike.
type recipe struct {
	params, compute device.DType // of parameters, and of products; Invalid: theirs
	steps           int
	optimizer       func(params []*nn.Parameter) zero.Local
	// branches is how many middles the network has; branch is the one that a rank
	// uses in a step. 0: a single one.
	branches int
	branch   func(rank, step int) int
	// uneven gives the ranks different numbers of samples: the lower ones run out
	// first, in each of the epochs.
	uneven bool
	// byActive divides gradients by the number of ranks that have samples, in place
	// of all.
	byActive bool
	// scaled scales the loss, so much at first that the first step is skipped.
	scaled bool
	// grouped has the single process be a group of one.
	grouped bool
}

func (r *recipe) types() string {
	if r.compute == device.Invalid || r.compute == r.params {
		return r.params.String()
	}
	return r.params.String() + "/" + r.compute.String()
}

// exact tells whether rounding is out of sight, so that it is the semantics that
// are compared.
func (r *recipe) exact() bool { return r.params == device.Float64 }

// rounded tells whether something is rounded to 16 bits.
func (r *recipe) rounded() bool { return r.params.Size() == 2 || r.compute.Size() == 2 }

// has tells whether a rank has samples for a step.
func (r *recipe) has(rank, ranks, step int) bool {
	epoch := r.steps / epochs
	return !r.uneven || step%epoch < epoch-epoch/8*(ranks-1-rank)
}

// network is Linear-ReLU-Linear-ReLU-Linear, of which the second Linear may have
// several peers.
type network struct {
	nn.Module
	middle *choice
}

// choice is one of several modules at a time.
type choice struct {
	nn.Module // all of them, for their parameters
	of        []nn.Module
	now       int
}

func (c *choice) Forward(x *autograd.Variable) *autograd.Variable { return c.of[c.now].Forward(x) }

// network draws the weights from the seed. The biases of the hidden layers are three
// standard deviations of what enters the ReLU, up and down in turn.
func (r *recipe) network(dev device.Device, seed uint64) (*network, error) {
	o := nn.LinearOptions{Compute: r.compute}
	square := 1.0 // mean square of a layer's inputs
	hidden := func() nn.Module {
		gates := make([]float64, width)
		for i := range gates {
			gates[i] = 3 * math.Sqrt(square/3) * float64(1-2*(i%2))
		}
		l := nn.Linear(width, width, o)
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
	net := &network{nn.Sequential(first, nn.ReLU(), middle, nn.ReLU(), nn.Linear(width, width, o)), middle}
	if err := nn.Cast(net, r.params); err != nil {
		return nil, err
	}
	return net, nn.Place(net, dev, seed)
}

func (r *recipe) scaler() *amp.Scaler {
	return amp.NewScaler(&amp.Options{Disabled: !r.scaled, InitScale: 0x1p40, BackoffFactor: 0x1p-28})
}

func sgd(params []*nn.Parameter) zero.Local {
	return optim.NewSGD(params, optim.SGDOptions{LR: 0.02, Momentum: 0.9, WeightDecay: 1e-3, MasterWeights: true})
}

// adamW has an Eps that gradients of the size of their own roundings move nothing by:
// AdamW makes steps of one size of all that are larger.
func adamW(params []*nn.Parameter) zero.Local {
	return optim.NewAdamW(params, optim.AdamWOptions{LR: 1e-3, Eps: 1e-5, WeightDecay: 0.01, MasterWeights: true})
}

// samples are those of all ranks: rank r's in batch b begin with the sample
// (b·ranks + r)·rows.
type samples struct{ x, y []float64 }

// draw makes the targets what another network, of one layer, says of the inputs.
func draw(ranks int) samples {
	random := rand.New(rand.NewPCG(1, 2))
	normal := func(n int, std float64) []float64 {
		v := make([]float64, n)
		for i := range v {
			v[i] = std * random.NormFloat64()
		}
		return v
	}
	n := batches * ranks * rows
	teacher, s := normal(width*width, 0.2), samples{normal(n*width, 1), make([]float64, n*width)}
	for i := range s.y {
		sum := 0.0
		for k := range width {
			sum += teacher[i%width*width+k] * s.x[i/width*width+k]
		}
		s.y[i] = math.Tanh(sum)
	}
	return s
}

// samplesOf are the numbers of a rank's samples in a step.
func samplesOf(rank, ranks, step int) []int {
	numbers := make([]int, rows)
	for i := range numbers {
		numbers[i] = (step%batches*ranks+rank)*rows + i
	}
	return numbers
}

// pass is one through the samples of a part.
func (r *recipe) pass(dev device.Device, s samples, step int, p part, weight float64) pass {
	matrix := func(from []float64) *autograd.Variable {
		var data []float64
		for _, n := range p.numbers {
			data = append(data, from[n*width:][:width]...)
		}
		if r.exact() {
			return autograd.FromSlice(dev, data, len(p.numbers), width)
		}
		short := make([]float32, len(data))
		for i, v := range data {
			short[i] = float32(v)
		}
		return autograd.FromSlice(dev, short, len(p.numbers), width)
	}
	made := pass{x: matrix(s.x), y: matrix(s.y), weight: weight}
	if r.branch != nil {
		made.branch = r.branch(p.rank, step)
	}
	return made
}
