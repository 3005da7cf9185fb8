package ddp_test

import (
	"fmt"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

// fit learns the line y = 2x - 1. Every rank calls it with its own process group.
func fit(pg *comm.ProcessGroup) error {
	model, err := ddp.New(nn.Linear(1, 1, nil), pg, nil)
	if err != nil {
		return err
	}
	opt, err := optim.NewSGD(model.Parameters(), &optim.SGDOptions{LR: 0.2})
	if err != nil {
		return err
	}
	x := autograd.FromSlice(pg.Device(), []float32{-1, 0, 1, 2}, 4, 1)
	y := autograd.FromSlice(pg.Device(), []float32{-3, -1, 1, 3}, 4, 1)
	for range 100 {
		loss := nn.MSELoss(model.Forward(x), y, nil)
		if err := loss.Backward(nil); err != nil { // averages the gradients over the ranks
			return err
		}
		if err := opt.Step(); err != nil {
			return err
		}
		opt.ZeroGrad()
	}
	for _, p := range model.Parameters() {
		fmt.Printf("%s %.3f\n", p.Name(), p.Var().Item())
	}
	return nil
}

// The world has one rank here. Under golaunch each process gets its group from [comm.Init].
func ExampleNew() {
	groups, err := comm.Local(1, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer groups[0].Close()
	if err := fit(groups[0]); err != nil {
		fmt.Println(err)
	}
	// Output:
	// weight 2.000
	// bias -1.000
}

// Join lets ranks have different numbers of inputs. Here the only rank has three.
func ExampleModel_Join() {
	groups, err := comm.Local(1, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	pg := groups[0]
	defer pg.Close()
	model, err := ddp.New(nn.Linear(1, 1, nil), pg, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	steps := 0
	err = model.Join(func() error {
		for _, input := range []float32{1, 2, 3} {
			x := autograd.FromSlice(pg.Device(), []float32{input}, 1, 1)
			if err := autograd.Sum(model.Forward(x)).Backward(nil); err != nil {
				return err
			}
			steps++
		}
		return nil
	}, nil)
	fmt.Println(steps, "steps", err)
	// Output: 3 steps <nil>
}
