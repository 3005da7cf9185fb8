package zero_test

import (
	"context"
	"fmt"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp/zero"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

// train makes some steps with an AdamW whose state is divided among the ranks, and lists that state.
func train(ctx context.Context, pg *comm.ProcessGroup) error {
	model, opt, err := zero.New(nn.Linear(2, 1, nil), pg, func(params []*nn.Parameter) (*optim.AdamW, error) {
		return optim.NewAdamW(params, &optim.AdamWOptions{LR: 0.01})
	}, nil)
	if err != nil {
		return err
	}
	x := autograd.FromSlice(pg.Device(), []float32{1, 2, 3, 4}, 2, 2)
	y := autograd.FromSlice(pg.Device(), []float32{1, 2}, 2, 1)
	for range 3 {
		if err := nn.MSELoss(model.Forward(x), y, nil).Backward(nil); err != nil {
			return err
		}
		if err := opt.Step(); err != nil {
			return err
		}
		opt.ZeroGrad()
	}
	steps, consistent := opt.Committed()
	fmt.Println(steps, "steps, consistent:", consistent)
	return opt.Gather(ctx, func(name string, whole device.Tensor) error {
		fmt.Println(name, whole.Shape)
		return nil
	})
}

// The world has one rank here, which has the whole state. Gather collects it from any number of ranks.
func ExampleNew() {
	groups, err := comm.Local(1, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer groups[0].Close()
	if err := train(context.Background(), groups[0]); err != nil {
		fmt.Println(err)
	}
	// Output:
	// 3 steps, consistent: true
	// bias.mean [1]
	// bias.variance [1]
	// bias.updates []
	// weight.mean [1 2]
	// weight.variance [1 2]
	// weight.updates []
}
