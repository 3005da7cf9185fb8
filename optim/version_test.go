package optim_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/testkit/must"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

// A call that writes a parameter or a state variable in place increases its version. A step that
// changes nothing does not.
func TestInPlaceWritesIncreaseVersion(t *testing.T) {
	dev := newDevice(t)
	bad := errors.New("rank 3 has no gradient")
	for _, dt := range []device.DType{device.Float64, device.BFloat16} {
		for name, newOptimizer := range optimizers {
			w, idle := nn.NewParameter("w", autograd.Zeros(dev, dt, 2)), nn.NewParameter("idle", autograd.Zeros(dev, dt, 2))
			m := holder{params: []*nn.Parameter{w, idle}}
			opt := newOptimizer(m.params, true)
			e := must.New(optim.NewEMA(m, opt, nil))
			kept, err := opt.State()
			if err != nil {
				t.Fatal(err)
			}
			owned := &owner{memory: autograd.Zeros(dev, dt, 2)}
			owned.t = owned.memory.Tensor()
			owned.own(w.Var())
			of := func(v *autograd.Variable, f func() error) uint64 {
				t.Helper()
				before := v.Version()
				if err := f(); err != nil {
					t.Fatal(err)
				}
				return v.Version() - before
			}
			skipped := func() error {
				if err := opt.Step(); !errors.Is(err, owned.err) {
					return err
				}
				return nil
			}
			for _, b := range kept {
				if n := of(b.Var(), opt.Step); n != 1 && !strings.HasPrefix(b.Name(), "idle.") && !strings.HasSuffix(b.Name(), ".updates") {
					t.Errorf("%s of %v: a step counts %d times for %s", name, dt, n, b.Name())
				}
			}
			if n, of0 := of(w.Var(), opt.Step), of(idle.Var(), opt.Step); n != 1 || of0 != 0 {
				t.Errorf("%s of %v: a step counts %d times, and %d times for a parameter without a gradient", name, dt, n, of0)
			}
			owned.err = bad
			if n := of(w.Var(), skipped); n != 0 {
				t.Errorf("%s of %v: a step that is refused counts %d times", name, dt, n)
			}
			owned.err = nil
			if n := of(w.Var(), e.Update); n != 0 {
				t.Errorf("%s of %v: an update of the averages counts %d times", name, dt, n)
			}
			swapped := uint64(0)
			if n := of(w.Var(), func() error {
				before := w.Var().Version()
				return e.With(func() error {
					swapped = w.Var().Version() - before
					return nil
				})
			}); swapped == 0 || n == swapped {
				t.Errorf("%s of %v: averages in the place count %d times, and %d when they are gone", name, dt, swapped, n)
			}
			state := map[string]*autograd.Variable{"w": autograd.Zeros(dev, dt, 2), "idle": idle.Var()}
			if n, self := of(w.Var(), func() error { return nn.LoadState(t.Context(), m, state) }), of(idle.Var(), func() error { return nn.LoadState(t.Context(), m, state) }); n != 1 || self != 0 {
				t.Errorf("%s of %v: loading counts %d times, and of a variable into itself %d times", name, dt, n, self)
			}
		}
	}
}
