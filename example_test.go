package goddp_test

import (
	"fmt"
	"sync"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

// train fits y = 3x on one rank: rank 0 has the sample (1, 3), rank 1 the sample (2, 6).
func train(pg *comm.ProcessGroup) error {
	defer pg.Close()
	x := autograd.FromSlice(pg.Device(), []float32{float32(1 + pg.Rank())}, 1, 1)
	y := autograd.FromSlice(pg.Device(), []float32{float32(3 + 3*pg.Rank())}, 1, 1)

	model, err := ddp.New(nn.Linear(1, 1, &nn.LinearOptions{NoBias: true}), pg, nil)
	if err != nil {
		return err
	}
	opt, err := optim.NewSGD(model.Parameters(), &optim.SGDOptions{LR: 0.1})
	if err != nil {
		return err
	}
	for range 50 {
		loss := nn.MSELoss(model.Forward(x), y, nil)
		if err := loss.Backward(nil); err != nil { // averages the gradients of both ranks
			return err
		}
		if err := opt.Step(); err != nil {
			return err
		}
		opt.ZeroGrad()
	}
	if pg.Rank() == 0 {
		fmt.Printf("the weight is %.3f\n", model.Parameters()[0].Item())
	}
	return nil
}

func Example() {
	groups, err := comm.Local(2, nil) // under golaunch, each process calls comm.Init
	if err != nil {
		fmt.Println(err)
		return
	}
	var ranks sync.WaitGroup
	for _, pg := range groups {
		ranks.Go(func() {
			if err := train(pg); err != nil {
				fmt.Println(err)
			}
		})
	}
	ranks.Wait()
	// Output: the weight is 3.000
}
