// Command custom trains with an operation of its own: SwiGLU as one kernel, in swiglu.go and swiglu.cu.
// It compares the operation's gradient with finite differences, and then trains a classifier of points on
// two spirals.
//
//	go run ./cmd/golaunch --nproc-per-node 2 ./examples/custom
package main

import (
	"context"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/data"
	"github.com/goddp/goddp/ddp"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
	"github.com/goddp/goddp/train"
)

// layer is SwiGLU as a module.
type layer struct{}

func (layer) Forward(x *autograd.Variable) *autograd.Variable { return autograd.Apply(SwiGLU{}, x) }
func (layer) Parameters() []*nn.Parameter                     { return nil }

var (
	steps = flag.Int("steps", 300, "number of training steps")
	log   = flag.String("log", "", "append JSON lines to `file`")
)

func run(ctx context.Context) error {
	pg, err := comm.Init(ctx, nil)
	if err != nil {
		return err
	}
	defer pg.Close()
	off, err := checkGradient(ctx, pg.Device())
	if err != nil {
		return err
	}
	if pg.Rank() == 0 {
		fmt.Printf("the gradient is off by at most %.1g from finite differences\n", off)
	}

	net := nn.Sequential(nn.Linear(2, 64, nil), layer{}, nn.Linear(32, 64, nil), layer{}, nn.Linear(32, 2, nil))
	model, err := ddp.New(net, pg, nil)
	if err != nil {
		return err
	}
	loader, err := data.NewLoader(spirals(1<<14), pg, &data.LoaderOptions{Batch: 128, Shuffle: true})
	if err != nil {
		return err
	}
	opt, err := optim.NewAdamW(model.Parameters(), &optim.AdamWOptions{LR: 0.01})
	if err != nil {
		return err
	}
	return train.Run(ctx, pg, &train.Config{
		Model: model, Optimizer: opt, Data: loader, MaxSteps: *steps, Log: *log, LogEvery: 50,
		Loss: func(b *data.Batch) *autograd.Variable {
			return nn.CrossEntropyLoss(model.Forward(b.Vars[0]), b.Vars[1], nil)
		},
	})
}

// spirals returns a data set of n points in the plane, on two arms that wind around each other.
func spirals(n int) data.Dataset {
	fields := []data.Field{{Name: "point", DType: device.Float32, Shape: device.Shape{2}}, {Name: "arm", DType: device.Int64}}
	return data.Each(n, fields, func(i int, dst []device.Tensor) error {
		rng := rand.New(rand.NewPCG(uint64(i), 0))
		arm := rng.Int64N(2)
		turn := rng.Float64() * 1.5
		sin, cos := math.Sincos(2*math.Pi*turn + math.Pi*float64(arm))
		point := device.Elements[float32](dst[0])
		point[0], point[1] = float32((0.2+turn)*sin), float32((0.2+turn)*cos)
		device.Elements[int64](dst[1])[0] = arm
		return nil
	})
}

// checkGradient returns the largest difference of SwiGLU's gradient from central differences, in float64.
// It returns an error if that exceeds 1e-6.
func checkGradient(ctx context.Context, dev device.Device) (off float64, err error) {
	const h = 1e-5
	data := []float64{0.3, -1.2, 2, 0.7, -0.4, 1.1, 0, 3, -2, 0.5, 1.5, -0.8}
	weights := autograd.FromSlice(dev, []float64{1, -2, 0.5, 3, -1, 2}, 2, 3)
	sum := func(x *autograd.Variable) *autograd.Variable {
		return autograd.Sum(autograd.Mul(autograd.Apply(SwiGLU{}, x), weights))
	}
	x := autograd.FromSlice(dev, data, 2, 6).RequireGrad()
	if err := sum(x).Backward(nil); err != nil {
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

func main() {
	flag.Parse()
	comm.Main(run)
}
