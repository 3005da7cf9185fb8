// Command custom trains with an operation of its own, SwiGLU as one kernel: swiglu.go and
// swiglu.cu are all that it takes. It compares the operation's gradient with finite
// differences, and then learns to tell two spirals apart.
//
//	go run ./cmd/golaunch --nproc-per-node 2 ./examples/custom
package main

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

// layer is SwiGLU as a module.
type layer struct{}

func (layer) Forward(x *autograd.Variable) *autograd.Variable { return autograd.Apply(SwiGLU{}, x) }
func (layer) Parameters() []*nn.Parameter                     { return nil }

func train(ctx context.Context) error {
	pg, err := comm.Init(ctx, nil)
	if err != nil {
		return err
	}
	defer pg.Close()
	dev := pg.Device()
	off, err := check(ctx, dev)
	if err != nil {
		return err
	}

	net := nn.Sequential(nn.Linear(2, 64), layer{}, nn.Linear(32, 64), layer{}, nn.Linear(32, 2))
	model, err := ddp.New(net, pg, nil)
	if err != nil {
		return err
	}
	opt := optim.NewAdamW(model.Parameters(), optim.AdamWOptions{LR: 0.01})
	if pg.Rank() == 0 {
		fmt.Printf("the gradient is off by at most %.1g from finite differences\n", off)
	}
	for step := range 300 {
		x, labels := spirals(dev, rand.New(rand.NewPCG(uint64(step), uint64(pg.Rank()))), 128)
		loss := nn.CrossEntropyLoss(model.Forward(x), labels)
		if err := loss.Backward(); err != nil {
			return err
		}
		if err := opt.Step(); err != nil {
			return err
		}
		opt.ZeroGrad()
		if pg.Rank() == 0 && step%50 == 49 {
			fmt.Printf("step %d: loss %.4f\n", step+1, loss.Item())
		}
	}
	return nil
}

// spirals are n points in the plane, of two arms that wind around each other.
func spirals(dev device.Device, rng *rand.Rand, n int) (x, labels *autograd.Variable) {
	points, arms := make([]float32, 2*n), make([]int64, n)
	for i := range n {
		arms[i] = rng.Int64N(2)
		turn := rng.Float64() * 1.5
		sin, cos := math.Sincos(2*math.Pi*turn + math.Pi*float64(arms[i]))
		points[2*i], points[2*i+1] = float32((0.2+turn)*sin), float32((0.2+turn)*cos)
	}
	return autograd.FromSlice(dev, points, n, 2), autograd.FromLabels(dev, arms)
}

// check is how far the gradient of SwiGLU is from central differences, in float64.
func check(ctx context.Context, dev device.Device) (off float64, err error) {
	const h = 1e-5
	data := []float64{0.3, -1.2, 2, 0.7, -0.4, 1.1, 0, 3, -2, 0.5, 1.5, -0.8}
	weights := autograd.FromSlice(dev, []float64{1, -2, 0.5, 3, -1, 2}, 2, 3)
	sum := func(x *autograd.Variable) *autograd.Variable {
		return autograd.Sum(autograd.Mul(autograd.Apply(SwiGLU{}, x), weights))
	}
	x := autograd.FromSlice(dev, data, 2, 6).RequireGrad()
	if err := sum(x).Backward(); err != nil {
		return 0, err
	}
	grad, err := x.Grad().Read(ctx)
	if err != nil {
		return 0, err
	}
	autograd.NoGrad(dev, func() {
		for i, v := range data {
			at := func(v float64) float64 {
				moved := append([]float64{}, data...)
				moved[i] = v
				return sum(autograd.FromSlice(dev, moved, 2, 6)).Item()
			}
			off = max(off, math.Abs(grad[i]-(at(v+h)-at(v-h))/(2*h)))
		}
	})
	if !(off < 1e-6) {
		return off, fmt.Errorf("the gradient of SwiGLU is off by %g from finite differences", off)
	}
	return off, nil
}

func main() { comm.Main(train) }
