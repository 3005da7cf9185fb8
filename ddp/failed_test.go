package ddp

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/comm/failure"
	"github.com/goddp/goddp/ddp/reducer"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/testkit/must"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

// chain is w1·flawed(w0·x). If flawed fails, w1 has a gradient and w0 has none.
type chain struct {
	w [2]*nn.Parameter
	f *func() error
}

func newChain(dev device.Device) chain {
	works := func() error { return nil }
	return chain{[2]*nn.Parameter{
		nn.NewParameter("w0", autograd.FromSlice(dev, []float64{1})), nn.NewParameter("w1", autograd.FromSlice(dev, []float64{2})),
	}, &works}
}

func (c chain) Forward(x *autograd.Variable) *autograd.Variable {
	return autograd.Mul(c.w[1].Var(), autograd.Apply(flawed{*c.f}, autograd.Mul(c.w[0].Var(), x)))
}

func (c chain) Parameters() []*nn.Parameter { return c.w[:] }

// pass runs a backward pass in which f is called between the two gradients.
func (c chain) pass(model *Model, f func() error) error {
	*c.f = f
	return model.Forward(autograd.FromSlice(model.pg.Device(), []float64{1})).Backward(nil)
}

var errNoMemory = errors.New("no memory")

// If a pass fails on one rank, all ranks skip the step and discard its gradients: the program does
// not have to zero them. If it fails while it accumulates, the accumulated gradients are invalid,
// and all ranks skip the pass that would reduce them.
func TestFailedPassIsSkippedOnAllRanks(t *testing.T) {
	for _, accumulates := range []bool{false, true} {
		onBuckets(t, Options{}, func(pg *comm.ProcessGroup, _ bool, opts *Options) error {
			c := newChain(pg.Device())
			model := must.New(New(c, pg, opts))
			opt := must.New(optim.NewSGD(model.Parameters(), &optim.SGDOptions{LR: 0.1}))
			works := func() error { return nil }
			for step := range 4 {
				fails := works
				if step == 1 && pg.Rank() == 1 {
					fails = func() error { return errNoMemory }
				}
				if accumulates {
					err := model.NoSync(func() error { return c.pass(model, fails) })
					if errors.Is(err, errNoMemory) != (step == 1 && pg.Rank() == 1) {
						return fmt.Errorf("step %d: accumulating: %v", step, err)
					}
					fails = works
				}
				err := c.pass(model, fails)
				if err == nil {
					err = opt.Step()
				}
				if skipped := errors.Is(err, device.ErrSkipped); skipped != (step == 1) || !skipped && err != nil || skipped && !strings.Contains(err.Error(), "no memory") {
					return fmt.Errorf("step %d: got %v", step, err)
				}
				if err == nil {
					opt.ZeroGrad()
				}
			}
			if steps, whole := opt.Committed(); steps != 3 || !whole {
				return fmt.Errorf("%d steps, whole: %v", steps, whole)
			}
			return agree(t.Context(), pg, model.Parameters())
		})
	}
}

// If the program zeroes the gradients that accumulated in a failed pass, the next pass succeeds.
func TestZeroedGradientsOfFailedPass(t *testing.T) {
	onAll(t, func(pg *comm.ProcessGroup, _ bool) error {
		c := newChain(pg.Device())
		model := must.New(New(c, pg, nil))
		err := model.NoSync(func() error { return c.pass(model, func() error { return errNoMemory }) })
		if !errors.Is(err, errNoMemory) || !errors.Is(c.w[1].Var().GradErr(), errNoMemory) {
			return fmt.Errorf("got %v, and of a gradient %v", err, c.w[1].Var().GradErr())
		}
		for _, p := range c.w {
			p.Var().ZeroGrad()
		}
		if err := c.pass(model, func() error { return nil }); err != nil {
			return err
		}
		return c.w[0].Var().GradErr()
	})
}

// isAbortedBy reports whether err says that rank by aborted the group, or this rank if it is rank by.
func isAbortedBy(err error, pg *comm.ProcessGroup, by int) bool {
	var aborted *failure.AbortedError
	byAnother := errors.As(err, &aborted)
	return errors.Is(err, comm.ErrAborted) && byAnother == (pg.Rank() != by) && (!byAnother || aborted.By == by)
}

// A panic in a backward pass aborts the group, so the other ranks get an error at once. The program
// of the panicking rank may end or go on.
func TestPanicInBackwardAbortsGroup(t *testing.T) {
	onBuckets(t, Options{}, func(pg *comm.ProcessGroup, _ bool, opts *Options) error {
		start := time.Now()
		c := newChain(pg.Device())
		model, err := New(c, pg, opts)
		if err == nil && pg.Rank() == 1 {
			func() {
				defer func() {
					if thrown := recover(); thrown != "oops" {
						t.Errorf("the panic is %v", thrown)
					}
				}()
				c.pass(model, func() error { panic("oops") })
			}()
		}
		for err == nil { // a slow rank gets the error from New
			if err = c.pass(model, func() error { return nil }); err == nil { // a lagging device reports the error later, in GradErr
				err = c.w[0].Var().GradErr()
			}
		}
		if !isAbortedBy(err, pg, 1) || !strings.Contains(err.Error(), "panic in the backward pass: oops") {
			return fmt.Errorf("rank %d: got %v", pg.Rank(), err)
		}
		if waited := time.Since(start); waited > pg.Timeout()/2 {
			return fmt.Errorf("rank %d heard of it after %v", pg.Rank(), waited)
		}
		return nil
	})
}

// The pass that reduces accumulated gradients finds those that are not finite, even if it does not
// use the parameter.
func TestNonFiniteAndUnused(t *testing.T) {
	onBuckets(t, Options{FindUnusedParameters: true, CheckNonFinite: true}, func(pg *comm.ProcessGroup, _ bool, opts *Options) error {
		m, model, _ := trainedSwitches(pg, 3, opts, nil)
		x := 1.0
		if pg.Rank() == 1 {
			x = math.NaN()
		}
		if err := model.NoSync(func() error { return m.step(model, x, 0) }); err != nil {
			return err
		}
		err := errors.Join(m.step(model, 1, 1, 2), m.w[0].Var().GradErr())
		var found *reducer.NonFiniteError
		if !errors.As(err, &found) || len(found.Found) != 1 || found.Found[0].Rank != 1 || found.Found[0].Param != "w0" {
			return fmt.Errorf("got %v, want that w0 of rank 1 is not finite", err)
		}
		return nil
	})
}
