//go:build cgo && linux

package ddp_test

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/ddp/reducer"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/testkit/commtest"
	"github.com/goddp/goddp/nn"
)

// wantSame runs train on two ranks, twice: the function capture that it is given returns its argument the first time
// and captures it the second time. train returns what must be the same on all ranks in both runs, beside the
// parameters.
func wantSame(t *testing.T, how training, train func(r *replica, capture func(stepFunc) stepFunc) (string, error)) {
	t.Helper()
	type result struct {
		said  string
		state []byte
	}
	var all [2][2]result
	for i := range all {
		onReplicas(t, commtest.FakeGPUs(t, 2), nil, how, func(r *replica) (err error) {
			capture := r.capture
			if i == 0 {
				capture = func(step stepFunc) stepFunc { return step }
			}
			mine := &all[i][r.pg.Rank()]
			mine.said, err = train(r, capture)
			mine.state = r.state(t)
			return err
		})
	}
	for i := range all {
		for rank, got := range all[i] {
			if want := all[0][0]; got.said != want.said || !bytes.Equal(got.state, want.state) {
				t.Errorf("captured: %v, rank %d: %s\nwant %s; equal parameters: %v", i == 1, rank, got.said, want.said, bytes.Equal(got.state, want.state))
			}
		}
	}
}

// Accumulation within a captured step is captured too.
func TestEmulatedNoSyncWithinACapturedStep(t *testing.T) {
	for _, how := range []training{{}, {stage: 1}} {
		wantSame(t, how, func(r *replica, capture func(stepFunc) stepFunc) (string, error) {
			step := capture(func(in ...*autograd.Variable) (*autograd.Variable, error) {
				if err := r.model.NoSync(func() error {
					_, err := r.backward(in[:2]...)
					return err
				}); err != nil {
					return nil, err
				}
				return r.step(in[2:]...)
			})
			for n := range 8 {
				a, b := r.batch(n)
				c, d := r.batch(n + 1)
				if _, err := step(a, b, c, d); err != nil {
					return "", fmt.Errorf("step %d: %w", n, err)
				}
			}
			if r.runs != 2*8 && r.runs > 2*5 {
				return "", fmt.Errorf("8 steps of two passes each ran %d passes of the step function, want fewer or all", r.runs)
			}
			return fmt.Sprint(r.model.Stats().Passes), nil
		})
	}
}

// Captures that were made before Regroup are not replayed after it, because they use the old buckets. Their memory is
// freed, and steps are captured again.
func TestEmulatedRegroupInALoopOfCapturedSteps(t *testing.T) {
	wantSame(t, training{}, func(r *replica, capture func(stepFunc) stepFunc) (string, error) {
		step := capture(r.step)
		if err := r.make(step, 0, 6); err != nil {
			return "", err
		}
		if err := r.model.Regroup(t.Context()); err != nil {
			return "", err
		}
		before := r.runs
		if err := r.make(step, 6, 14); err != nil {
			return "", err
		}
		if runs := r.runs - before; runs != 8 && (runs < 2 || runs > 6) {
			return "", fmt.Errorf("8 steps after Regroup ran the step function %d times, want all, or fewer, but the first and a capture", runs)
		}
		var used []int64 // after each Regroup, with captures
		for range 6 {
			if err := r.model.Regroup(t.Context()); err != nil {
				return "", err
			}
			if err := r.make(step, 0, 8); err != nil {
				return "", err
			}
			runtime.GC()
			used = append(used, r.pg.Device().Memory().InUse)
		}
		if used[5] > 2*max(used[0], used[1]) { // what the collector has not freed yet differs
			return "", fmt.Errorf("after each Regroup %v bytes are in use", used)
		}
		return fmt.Sprint(r.model.Stats().Passes), nil
	})
}

// If a rank lacks a gradient in a step, the other rank's replay skips the step too. Both ranks get the error that they
// get uncaptured, and nothing changes but the scale of the loss. The replay still returns its loss, and the next steps
// are replays.
func TestEmulatedReplayIsSkippedIfAGradientIsMissing(t *testing.T) {
	const bad, steps = 5, 12
	for _, how := range []training{{scaled: true}, {unclipped: true}, {stage: 1, unclipped: true}, {stage: 3, unclipped: true}} {
		wantSame(t, how, func(r *replica, capture func(stepFunc) stepFunc) (string, error) {
			step := capture(r.step)
			var scales []float64
			for n := range steps {
				before, do := r.state(t), step
				if n == bad && r.pg.Rank() == 1 {
					r.skip, do = true, r.step
				}
				loss, err := do(r.batch(n))
				r.skip = false
				if n == bad {
					r.opt.ZeroGrad()
				}
				after := r.state(t)
				committed, consistent := r.opt.Committed()
				switch {
				case (n == bad) != errors.As(err, new(*reducer.MissingGradientError)) || n != bad && err != nil:
					return "", fmt.Errorf("step %d gave %v", n, err)
				case n == bad && (!bytes.Equal(before, after) || committed != bad || !consistent):
					return "", fmt.Errorf("after the step without a gradient %d are committed, consistent: %v; equal parameters: %v", committed, consistent, bytes.Equal(before, after))
				case loss == nil && r.pg.Rank() == 0: // the backward pass of rank 1 fails
					return "", fmt.Errorf("step %d has no loss", n)
				}
				if r.scaler != nil {
					scales = append(scales, r.scaler.GetScale())
				}
			}
			if r.runs != steps && r.runs > 7 {
				return "", fmt.Errorf("%d steps ran the step function %d times", steps, r.runs)
			}
			return fmt.Sprint(scales), nil
		})
	}
}

// An invalid option fails the step, and the group lives on.
func TestEmulatedInvalidOptionInALoopOfCapturedSteps(t *testing.T) {
	wantSame(t, training{}, func(r *replica, capture func(stepFunc) stepFunc) (string, error) {
		step, said := capture(r.step), ""
		for n := range 10 {
			r.opt.SetLR(0.01)
			if n == 6 {
				r.opt.SetLR(-1)
			}
			_, err := step(r.batch(n))
			if (err != nil) != (n == 6) {
				return "", fmt.Errorf("step %d: %w", n, err)
			}
			if err != nil {
				said += err.Error()
				r.opt.ZeroGrad()
			}
		}
		return fmt.Sprintf("%s; group failed: %v", said, r.pg.Failed()), nil
	})
}

// failsCaptured is the identity. Its backward pass fails while a step is captured.
type failsCaptured struct{ dev device.Device }

func (failsCaptured) Name() string                         { return "failsCaptured" }
func (failsCaptured) Shape(in []device.Shape) device.Shape { return in[0] }
func (failsCaptured) Forward(c *autograd.Call) error {
	return c.Kernels.Axpby(c.Stream, c.Out, device.Accum{Alpha: 1}, c.In[0])
}

func (f failsCaptured) Backward(c *autograd.Call, _ int, dst device.Tensor, acc device.Accum, g device.Tensor) error {
	if f.dev.(interface{ Capturing() bool }).Capturing() {
		return errors.New("no memory, as it were")
	}
	return c.Kernels.Axpby(c.Stream, dst, acc, g)
}

// If the backward pass of a step fails while it is captured, the step runs uncaptured, and so do the next ones.
func TestEmulatedFailedCaptureOfAModelChangesNothing(t *testing.T) {
	for _, how := range []training{{}, {stage: 3}} {
		wantSame(t, how, func(r *replica, capture func(stepFunc) stepFunc) (string, error) {
			step := capture(func(in ...*autograd.Variable) (*autograd.Variable, error) {
				y := r.model.Forward(autograd.Apply(failsCaptured{r.pg.Device()}, in[0]))
				y = r.model.Output(autograd.Apply(failsCaptured{r.pg.Device()}, y))
				loss := nn.MSELoss(y, in[1], nil)
				if err := loss.Backward(nil); err != nil {
					return nil, err
				}
				err := r.opt.Step()
				r.opt.ZeroGrad()
				return loss, err
			})
			err := r.make(step, 0, 8) // fewer than Capture tries
			committed, _ := r.opt.Committed()
			return fmt.Sprint(committed), err
		})
	}
}

// What cannot be done in a captured step is an error that names it.
func TestEmulatedStepsOfAModelThatCannotBeCaptured(t *testing.T) {
	plainly := func(_ *replica, call func() error) error { return call() }
	for _, c := range []struct {
		want string
		step func(r *replica) stepFunc
		run  func(r *replica, call func() error) error
	}{
		{"two backward passes that reduce", func(r *replica) stepFunc {
			return func(in ...*autograd.Variable) (*autograd.Variable, error) {
				if _, err := r.backward(in...); err != nil {
					return nil, err
				}
				return r.step(in...)
			}
		}, plainly},
		{"ranks may leave early (Join)", func(r *replica) stepFunc { return r.step }, func(r *replica, call func() error) error { return r.model.Join(call, nil) }},
		{"GetScale reads the scale on the host", func(r *replica) stepFunc {
			return func(in ...*autograd.Variable) (*autograd.Variable, error) {
				if r.scaler.GetScale() == 0 {
					return nil, errors.New("no scale")
				}
				return r.step(in...)
			}
		}, plainly},
		{"does not take part in captured steps", func(r *replica) stepFunc {
			r.opt = struct{ optimizer }{r.opt} // hides the method of optimizers that do
			return r.step
		}, plainly},
	} {
		t.Run(c.want, func(t *testing.T) {
			onReplicas(t, commtest.FakeGPUs(t, 2), nil, training{scaled: true, unclipped: true}, func(r *replica) error {
				step := r.capture(c.step(r))
				err := c.run(r, func() error { return r.make(step, 0, 5) })
				if err == nil || !strings.Contains(err.Error(), c.want) {
					return fmt.Errorf("got %v, want an error with %q", err, c.want)
				}
				return nil
			})
		})
	}
}
