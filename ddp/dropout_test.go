package ddp

import (
	"math"
	"testing"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/commtest"
	"github.com/goddp/goddp/internal/must"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

// With the same global batch any number of ranks drops the same elements: the losses are those of
// one rank, up to rounding.
func TestDropoutOfAnyNumberOfRanks(t *testing.T) {
	const rows, width, steps = 8, 6, 4
	var want [steps]float64
	for _, ranks := range []int{1, 2, 4} {
		var losses [steps]float64 // equal on all ranks
		onRanks(t, false, ranks, func(pg *comm.ProcessGroup) error {
			linear := func() nn.Module { return nn.Linear(width, width, nn.LinearOptions{DType: device.Float64}) }
			m, err := New(nn.Sequential(linear(), nn.Dropout(0.5), nn.Tanh(), linear(), nn.Dropout(0.25)), pg, nil)
			if err != nil {
				return err
			}
			opt := must.New(optim.NewSGD(m.Parameters(), &optim.SGDOptions{LR: 0.1}))
			for step := range steps {
				x := samples(pg.Device(), uint64(step), rows, width, pg.Rank(), ranks)
				y := samples(pg.Device(), uint64(100+step), rows, width, pg.Rank(), ranks)
				loss := nn.MSELoss(m.Forward(x), y)
				if err := loss.Backward(); err != nil {
					return err
				}
				if err := opt.Step(); err != nil {
					return err
				}
				opt.ZeroGrad()
				if err := pg.AllReduce(loss.Tensor(), comm.Avg).Wait(t.Context()); err != nil {
					return err
				}
				if mine := loss.Item(); commtest.InJob() || pg.Rank() == 0 {
					losses[step] = mine
				}
			}
			return nil
		})
		if ranks == 1 {
			want = losses
		}
		for step, got := range losses {
			if !(math.Abs(got-want[step]) <= 1e-12) {
				t.Errorf("%d ranks, step %d: the loss is %v, that of one rank %v", ranks, step, got, want[step])
			}
		}
	}
}
