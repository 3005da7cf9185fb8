//go:build cgo && linux

package ddp_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/commtest"
	"github.com/goddp/goddp/nn"
)

type stepFunc = func(in ...*autograd.Variable) (*autograd.Variable, error)

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
		commtest.OnDevices(t, commtest.FakeGPUs(t, 2), nil, func(pg *comm.ProcessGroup) error {
			r, err := newReplicaWith(pg, how)
			if err != nil {
				return err
			}
			mine := &all[i][pg.Rank()]
			mine.said, err = train(r, func(step stepFunc) stepFunc {
				if i == 0 {
					return step
				}
				return autograd.Capture(pg.Device(), step, &autograd.CaptureOptions{Required: true})
			})
			if err != nil {
				return err
			}
			mine.state, err = r.state(t)
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
func TestNoSyncWithinACapturedStep(t *testing.T) {
	wantSame(t, training{}, func(r *replica, capture func(stepFunc) stepFunc) (string, error) {
		step := capture(func(in ...*autograd.Variable) (*autograd.Variable, error) {
			if err := r.model.NoSync(func() error {
				_, err := r.backward(in[:2]...)
				return err
			}); err != nil {
				return nil, err
			}
			return r.step(in[2:]...)
		})
		for n := range 12 {
			a, b := r.batch(n)
			c, d := r.batch(n + 1)
			if _, err := step(a, b, c, d); err != nil {
				return "", fmt.Errorf("step %d: %w", n, err)
			}
		}
		if r.runs != 2*12 && r.runs > 2*5 {
			return "", fmt.Errorf("12 steps of two passes each ran %d passes of the step function, want fewer or all", r.runs)
		}
		return fmt.Sprint(r.model.Stats().Passes), nil
	})
}

// After a step that all ranks skip, because one lacks a gradient, the ranks have the same scale of the loss as if
// no step was captured. The skipped step still returns its loss.
func TestScaleAfterASkippedReplay(t *testing.T) {
	wantSame(t, training{scaled: true}, func(r *replica, capture func(stepFunc) stepFunc) (string, error) {
		step := capture(r.step)
		var scales []float64
		for n := range 26 {
			do := step
			if n == 5 && r.pg.Rank() == 1 {
				r.skip, do = true, r.step
			}
			loss, err := do(r.batch(n % 9))
			r.skip = false
			switch {
			case n != 5 && err != nil:
				return "", fmt.Errorf("step %d: %w", n, err)
			case n == 5 && !errors.Is(err, device.ErrSkipped):
				return "", fmt.Errorf("the step without a gradient gave %v", err)
			case loss == nil && r.pg.Rank() == 0: // the backward pass of rank 1 fails
				return "", fmt.Errorf("step %d has no loss", n)
			}
			if n == 5 {
				r.opt.ZeroGrad()
			}
			scales = append(scales, r.scaler.GetScale())
		}
		return fmt.Sprint(scales), nil
	})
}

// An invalid option fails the step, and the group lives on.
func TestInvalidOptionInALoopOfCapturedSteps(t *testing.T) {
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

// failsRecorded is the identity. Its backward pass fails while a step is recorded.
type failsRecorded struct{ dev device.Device }

func (failsRecorded) Name() string                         { return "failsRecorded" }
func (failsRecorded) Shape(in []device.Shape) device.Shape { return in[0] }
func (failsRecorded) Forward(c *autograd.Call) error {
	return c.Kernels.Axpby(c.Stream, c.Out, device.Accum{Alpha: 1}, c.In[0])
}

func (f failsRecorded) Backward(c *autograd.Call, _ int, dst device.Tensor, acc device.Accum, g device.Tensor) error {
	if f.dev.(interface{ Recording() bool }).Recording() {
		return errors.New("no memory, as it were")
	}
	return c.Kernels.Axpby(c.Stream, dst, acc, g)
}

// If the backward pass of a step fails while it is recorded, the step runs uncaptured, and so do the next ones.
func TestFailedRecordingOfAModelChangesNothing(t *testing.T) {
	wantSame(t, training{}, func(r *replica, capture func(stepFunc) stepFunc) (string, error) {
		step := capture(func(in ...*autograd.Variable) (*autograd.Variable, error) {
			y := r.model.Forward(autograd.Apply(failsRecorded{r.pg.Device()}, in[0]))
			y = r.model.Output(autograd.Apply(failsRecorded{r.pg.Device()}, y))
			loss := nn.MSELoss(y, in[1])
			if err := loss.Backward(); err != nil {
				return nil, err
			}
			err := r.opt.Step()
			r.opt.ZeroGrad()
			return loss, err
		})
		for n := range 8 { // fewer than Capture tries
			if _, err := step(r.batch(n)); err != nil {
				return "", fmt.Errorf("step %d: %w", n, err)
			}
		}
		committed, _ := r.opt.Committed()
		return fmt.Sprint(committed), nil
	})
}

// What a model cannot do in a captured step is an error that names it.
func TestStepsOfAModelThatCannotBeCaptured(t *testing.T) {
	for want, change := range map[string]func(r *replica) (stepFunc, func(call func() error) error){
		"two passes that reduce": func(r *replica) (stepFunc, func(func() error) error) {
			return func(in ...*autograd.Variable) (*autograd.Variable, error) {
				if _, err := r.backward(in...); err != nil {
					return nil, err
				}
				return r.step(in...)
			}, func(call func() error) error { return call() }
		},
		"ranks may leave early (Join)": func(r *replica) (stepFunc, func(func() error) error) {
			return r.step, func(call func() error) error { return r.model.Join(nil, call) }
		},
	} {
		t.Run(want, func(t *testing.T) {
			commtest.OnDevices(t, commtest.FakeGPUs(t, 2), nil, func(pg *comm.ProcessGroup) error {
				r, err := newReplica(pg)
				if err != nil {
					return err
				}
				step, run := change(r)
				step = autograd.Capture(pg.Device(), step, &autograd.CaptureOptions{Required: true})
				err = run(func() error {
					for n := range 5 {
						if _, err := step(r.batch(n)); err != nil {
							return err
						}
					}
					return nil
				})
				if err == nil || !strings.Contains(err.Error(), want) {
					return fmt.Errorf("got %v, want an error with %q", err, want)
				}
				return nil
			})
		})
	}
}
