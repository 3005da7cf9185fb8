package ddp_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp"
	"github.com/goddp/goddp/ddp/zero"
	"github.com/goddp/goddp/internal/testkit/commtest"
	"github.com/goddp/goddp/internal/testkit/must"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

// After pg.Close all functions that use the group return ErrClosed, also in a group of one rank.
func TestUseAfterCloseReturnsErrClosed(t *testing.T) {
	for _, ranks := range []int{1, 2} {
		t.Run(fmt.Sprint(ranks, " ranks"), func(t *testing.T) {
			commtest.OnRanks(t, ranks, nil, func(pg *comm.ProcessGroup) error {
				net := nn.Linear(2, 2, nil)
				model := must.New(ddp.New(net, pg, nil))
				opt := must.New(optim.NewSGD(model.Parameters(), nil))
				if err := pg.Close(); err != nil {
					return err
				}
				x := autograd.FromSlice(pg.Device(), []float32{1, 2}, 1, 2)
				backward := autograd.Sum(model.Forward(x)).Backward(nil)
				step := opt.Step()
				_, wrap := ddp.New(net, pg, nil)
				_, _, sharded := zero.New(net, pg, func(params []*nn.Parameter) (*optim.SGD, error) { return optim.NewSGD(params, nil) }, nil)
				var lockstep error
				for _, lockstep = range ddp.Lockstep(pg, slices.Values([]int{1})) {
				}
				for name, err := range map[string]error{"Backward": backward, "Step": step, "New": wrap, "zero.New": sharded, "Lockstep": lockstep} {
					if !errors.Is(err, comm.ErrClosed) {
						t.Errorf("%s returned %v, want ErrClosed", name, err)
					}
				}
				return nil
			})
		})
	}
}
