package ddp

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp/internal/buckets"
	"github.com/goddp/goddp/ddp/reducer"
	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/testkit/commtest"
	"github.com/goddp/goddp/internal/testkit/must"
	"github.com/goddp/goddp/optim"
)

// All ranks leave their loops after the step in which one rank, or each rank, was asked to stop. A
// program that ignores the request can go on training.
func TestAllRanksStopAfterSameStep(t *testing.T) {
	for _, how := range unevenly {
		for _, asker := range []struct {
			name string
			is   func(pg *comm.ProcessGroup) bool
		}{
			{"the last rank", func(pg *comm.ProcessGroup) bool { return pg.Rank() == pg.Size()-1 }},
			{"each rank", func(*comm.ProcessGroup) bool { return true }},
		} {
			t.Run(how.name+", "+asker.name, func(t *testing.T) {
				onBoth(t, commtest.Sizes(t, 3)[0], func(pg *comm.ProcessGroup, isLagging bool) error {
					const at = 2 // the step in which the request comes
					m, model, opt := trainedSwitches(pg, 5, &how.opts, &optim.SGDOptions{LR: 0.125, Momentum: how.momentum})
					use := how.use(pg.Rank())
					if how.opts.unused() == buckets.UnusedMissing {
						use = append(use, 4)
					}
					pass := func() error { return m.step(model, 1, use...) }
					train := func(stopped bool) error {
						for range how.every - 1 {
							if err := model.NoSync(pass); err != nil {
								return err
							}
							if model.Stopping() != stopped {
								return errors.New("a pass that reduces nothing makes a difference")
							}
						}
						if err := errors.Join(pass(), opt.Step()); err != nil {
							return err
						}
						opt.ZeroGrad()
						return nil
					}
					step := 0
					for ; step < 10 && !model.Stopping(); step++ {
						if step == at && asker.is(pg) {
							pg.RequestStop()
						}
						if err := train(false); err != nil {
							return err
						}
					}
					if step != at+1 {
						return fmt.Errorf("rank %d stopped behind %d steps, want %d", pg.Rank(), step, at+1)
					}
					for range 2 {
						if err := train(true); err != nil || !model.Stopping() {
							return fmt.Errorf("going on: %v, stopping: %t", err, model.Stopping())
						}
					}
					return nil
				})
			})
		}
	}
}

// All ranks end their loops after the step after which one rank wanted it. They can go on, and end again.
func TestAllRanksEndAfterSameStep(t *testing.T) {
	for _, how := range unevenly {
		t.Run(how.name, func(t *testing.T) {
			onBoth(t, commtest.Sizes(t, 3)[0], func(pg *comm.ProcessGroup, isLagging bool) error {
				m, model, opt := trainedSwitches(pg, 5, &how.opts, &optim.SGDOptions{LR: 0.125, Momentum: how.momentum})
				use := how.use(pg.Rank())
				if how.opts.unused() == buckets.UnusedMissing {
					use = append(use, 4)
				}
				for _, asker := range []int{pg.Size() - 1, 0} {
					step := 0
					for ; step < 10 && !model.Ending(step == 2 && pg.Rank() == asker); step++ {
						if err := errors.Join(m.step(model, 1, use...), opt.Step()); err != nil {
							return err
						}
						opt.ZeroGrad()
					}
					if step != 3 || model.Stopping() {
						return fmt.Errorf("rank %d ended after %d steps, want 3, stopping: %t", pg.Rank(), step, model.Stopping())
					}
				}
				return nil
			})
		})
	}
}

// Ranks with different numbers of inputs also stop after the same step: if the rank that is asked
// has no inputs, and if no rank has inputs any more.
func TestStopWithUnevenInputs(t *testing.T) {
	for _, how := range unevenly {
		for _, in := range inputs {
			t.Run(how.name+", "+in.name, func(t *testing.T) {
				onBoth(t, commtest.Sizes(t, 3)[0], func(pg *comm.ProcessGroup, isLagging bool) error {
					m, model, opt := trainedSwitches(pg, 5, &how.opts, &optim.SGDOptions{LR: 0.125})
					use := how.use(pg.Rank())
					if how.opts.unused() == buckets.UnusedMissing {
						use = append(use, 4)
					}
					join := how.join
					ends := func() (steps int, err error) {
						err = model.Join(func() error {
							for ; steps < in.of(pg.Rank(), pg.Size()) && !model.Stopping(); steps++ {
								if err := errors.Join(m.step(model, 1, use...), opt.Step()); err != nil {
									return err
								}
								opt.ZeroGrad()
							}
							return nil
						}, &join)
						return steps, err
					}
					if model.Stopping() { // Stopping makes the next signal a request
						return errors.New("nobody has asked")
					}
					if pg.Rank() == 0 {
						pg.RequestStop()
					}
					steps, err := ends()
					if want := min(1, in.of(pg.Rank(), pg.Size())); err != nil || steps != want || !model.Stopping() {
						return fmt.Errorf("rank %d: %d steps, want %d, stopping: %t, %v", pg.Rank(), steps, want, model.Stopping(), err)
					}

					// The request comes when no rank has inputs any more.
					if model, err = New(m, pg, &how.opts); err != nil {
						return err
					}
					opt = must.New(optim.NewSGD(model.Parameters(), &optim.SGDOptions{LR: 0.125}))
					err = model.Join(func() error { return nil }, &join)
					if err != nil || model.Stopping() {
						return fmt.Errorf("rank %d: stopping before it asked, or %v", pg.Rank(), err)
					}
					if err = model.Join(func() error { return nil }, &join); err != nil || !model.Stopping() {
						return fmt.Errorf("rank %d: not stopping, or %v", pg.Rank(), err)
					}
					return nil
				})
			})
		}
	}
}

// Ranks also stop after a step that all ranks skip.
func TestStopAfterSkippedStep(t *testing.T) {
	onBoth(t, commtest.Sizes(t, 2)[0], func(pg *comm.ProcessGroup, isLagging bool) error {
		m, model, _ := trainedSwitches(pg, 2, nil, nil)
		if model.Stopping() {
			return errors.New("nobody has asked")
		}
		use := []int{0, 1}
		if pg.Rank() == 0 {
			pg.RequestStop()
			use = []int{0}
		}
		err := m.step(model, 1, use...)
		if !model.Stopping() {
			return fmt.Errorf("rank %d does not stop", pg.Rank())
		}
		if err == nil { // the outcome was not known then
			err = must.New(optim.NewSGD(model.Parameters(), &optim.SGDOptions{LR: 1})).Step()
		}
		if !errors.As(err, new(*reducer.MissingGradientError)) {
			return fmt.Errorf("rank %d: %v, want a MissingGradientError", pg.Rank(), err)
		}
		return nil
	})
}

// A loop that calls Stopping makes the same calls, of the same sizes, as one that does not. So does the step after which
// all ranks stop. A step within Join makes as many calls as a step without.
func TestStoppingAndJoinCostNoCalls(t *testing.T) {
	for _, ranks := range commtest.Sizes(t, 2, 4) {
		for _, how := range unevenly {
			sent := func(steps int, join, heed, stop bool) (sum traffic) {
				var c counted // the traffic of all ranks in this process
				opts := commtest.WrapBackend(nil, func(b backend.Backend) backend.Backend { return counting{b, &c} })
				commtest.OnRanks(t, ranks, opts, func(pg *comm.ProcessGroup) error {
					m, model, _ := trainedSwitches(pg, 5, &how.opts, nil)
					return model.Join(func() error {
						for step := range steps {
							if heed && model.Stopping() {
								return errors.New("nobody has asked")
							}
							if stop && step == steps-1 {
								pg.RequestStop()
							}
							if err := m.step(model, 1, 0, 1, 2, 3, 4); err != nil {
								return err
							}
						}
						if heed && model.Stopping() != stop {
							return fmt.Errorf("asked: %t, stopping: %t", stop, !stop)
						}
						return nil
					}, &JoinOptions{Disabled: !join})
				})
				return traffic{c.calls.Load(), c.bytes.Load()}
			}
			const few, many = 3, 7 // a multiple of the steps between two checks apart
			want := sent(many, false, false, false)
			for _, stop := range []bool{false, true} {
				if got := sent(many, false, true, stop); got != want || want.bytes == 0 {
					t.Errorf("%s, %d ranks, asked to stop: %t: %v, want %v", how.name, ranks, stop, got, want)
				}
			}
			plain, within, fewWithin := sent(few, false, false, false), sent(many, true, false, false), sent(few, true, false, false)
			if with, without := within.calls-fewWithin.calls, want.calls-plain.calls; with != without || fewWithin.calls <= plain.calls {
				t.Errorf("%s: %d steps on %d ranks start %d calls within Join, %d without", how.name, many-few, ranks, with, without)
			}
		}
	}
}

// traffic is a number of calls and of their bytes.
type traffic struct{ calls, bytes int64 }

// counted counts the calls that ranks start and their bytes.
type counted struct{ calls, bytes atomic.Int64 }

// counting is a backend that counts its calls.
type counting struct {
	backend.Backend
	sum *counted
}

func (c counting) Start(call *backend.Call) (backend.Task, error) {
	c.sum.calls.Add(1)
	c.sum.bytes.Add(int64(call.Src.Bytes()))
	return c.Backend.Start(call)
}
