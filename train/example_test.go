package train_test

import (
	"context"
	"fmt"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/data"
	"github.com/goddp/goddp/ddp"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
	"github.com/goddp/goddp/train"
)

// A linear model learns y = 2x on one rank.
func ExampleRun() {
	groups, err := comm.Local(1, nil) // under golaunch: comm.Init
	if err != nil {
		fmt.Println(err)
		return
	}
	defer groups[0].Close()
	if err := fit(context.Background(), groups[0]); err != nil {
		fmt.Println(err)
	}
	// Output: 3 becomes 6.00
}

func fit(ctx context.Context, pg *comm.ProcessGroup) error {
	number := data.Field{DType: device.Float32, Shape: device.Shape{1}}
	set := data.Each(64, []data.Field{number, number}, func(i int, dst []device.Tensor) error {
		x := float32(i)/32 - 1
		device.Elements[float32](dst[0])[0], device.Elements[float32](dst[1])[0] = x, 2*x
		return nil
	})
	loader, err := data.NewLoader(set, pg, &data.LoaderOptions{Batch: 8, Shuffle: true})
	if err != nil {
		return err
	}
	model, err := ddp.New(nn.Linear(1, 1, nil), pg, nil)
	if err != nil {
		return err
	}
	opt, err := optim.NewSGD(model.Parameters(), &optim.SGDOptions{LR: 0.1, Momentum: 0.9})
	if err != nil {
		return err
	}
	err = train.Run(ctx, pg, &train.Config{
		Model: model, Optimizer: opt, Data: loader, Epochs: 40,
		Loss: func(b *data.Batch) *autograd.Variable { return nn.MSELoss(model.Forward(b.Vars[0]), b.Vars[1], nil) },
	})
	if err != nil {
		return err
	}
	y := model.Forward(autograd.FromSlice(pg.Device(), []float32{3}, 1, 1))
	fmt.Printf("3 becomes %.2f\n", y.Item())
	return nil
}
