// Command survive trains on after the loss of ranks:
//
//	go run ./cmd/golaunch --nproc-per-node 4 --on-failure replace ./examples/survive
//
// Kill any worker while it runs, by its pid: ps -eo pid,ppid,args --forest shows the workers below golaunch-reaper. The
// others go on in the same processes, and a new one takes the place of the lost one: train.Run does that. With
// GlobalBatch a step has 200 samples on any number of ranks.
package main

import (
	"context"
	"flag"
	"math"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/data"
	"github.com/goddp/goddp/ddp"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
	"github.com/goddp/goddp/train"
)

var epochs = flag.Int("epochs", 100, "number of epochs")
var log = flag.String("log", "", "append JSON lines to `file`")

func run(ctx context.Context) error {
	pg, err := comm.Init(ctx, nil)
	if err != nil {
		return err
	}
	field := data.Field{DType: device.Float32, Shape: device.Shape{1}}
	sine := data.Each(10000, []data.Field{field, field}, func(i int, dst []device.Tensor) error {
		x := float64(i) / 10000
		device.Elements[float32](dst[0])[0], device.Elements[float32](dst[1])[0] = float32(x), float32(math.Sin(7*x))
		return nil
	})
	loader, err := data.NewLoader(sine, pg, &data.LoaderOptions{GlobalBatch: 200, Shuffle: true})
	if err != nil {
		return err
	}
	model, err := ddp.New(nn.Sequential(nn.Linear(1, 64, nil), nn.Tanh(), nn.Linear(64, 64, nil), nn.Tanh(), nn.Linear(64, 1, nil)), pg, nil)
	if err != nil {
		return err
	}
	opt, err := optim.NewAdamW(model.Parameters(), &optim.AdamWOptions{LR: 1e-3})
	if err != nil {
		return err
	}
	return train.Run(ctx, pg, &train.Config{
		Model: model, Optimizer: opt, Data: loader, Epochs: *epochs, Log: *log,
		Loss: func(b *data.Batch) *autograd.Variable { return nn.MSELoss(model.Forward(b.Vars[0]), b.Vars[1], nil) },
	})
}

func main() {
	flag.Parse()
	comm.Main(run)
}
