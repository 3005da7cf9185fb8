package ddp

import (
	"fmt"
	"testing"
	"time"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/cpu"
	"github.com/goddp/goddp/internal/testkit/commtest"
	"github.com/goddp/goddp/internal/testkit/must"
	"github.com/goddp/goddp/nn"
)

// A module can be wrapped again for a new group. The gradients then belong to the new model, and a
// backward pass through the old one panics.
func TestModuleCanBeWrappedAgain(t *testing.T) {
	dev := []device.Device{cpu.New(nil), cpu.New(nil)}
	params, old := make([]*nn.Parameter, 2), make([]*Model, 2)
	pass := func(m *Model, pg *comm.ProcessGroup) error {
		return m.Forward(autograd.Scalar(pg.Device(), float32(1+pg.Rank()))).Backward(nil)
	}
	for generation := range 3 {
		opts := &comm.Options{Timeout: time.Minute, ErrorMode: comm.BlockingWait}
		commtest.OnDevices(t, dev, opts, func(pg *comm.ProcessGroup) error {
			r := pg.Rank()
			if generation == 0 {
				params[r] = nn.NewParameter("w", autograd.Scalar(pg.Device(), 1))
			}
			model := must.New(New(times{params[r]}, pg, nil))
			if generation > 0 {
				if err := mustBeReplaced(func() { pass(old[r], pg) }); err != nil {
					return err
				}
			}
			old[r] = model
			for range 2 {
				if err := pass(model, pg); err != nil {
					return err
				}
				if got := params[r].Grad().Item(); got != 1.5 {
					return fmt.Errorf("generation %d: the gradient is %v, want 1.5", generation, got)
				}
				params[r].Var().ZeroGrad()
			}
			return pass(model, pg) // leaves a gradient
		})
	}
}

func mustBeReplaced(f func()) (err error) {
	defer func() {
		if e, ok := recover().(*ReplacedError); !ok || e.Param != "w" {
			err = fmt.Errorf("a model that was replaced panics with %v", e)
		}
	}()
	f()
	return nil
}
