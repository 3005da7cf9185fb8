package ddp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp/reducer"
	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/testkit/commtest"
	"github.com/goddp/goddp/internal/testkit/must"
	"github.com/goddp/goddp/optim"
)

// With StopEarly all ranks stop in the step for which the first rank has no input. The error names
// that rank, and the parameters are equal.
func TestUnevenInputsStopEarly(t *testing.T) {
	onAll(t, func(pg *comm.ProcessGroup, isLagging bool) error {
		m, model, opt := trainedSwitches(pg, 2, nil, &optim.SGDOptions{LR: 1})
		few := pg.Size() / 2 // the number of ranks with 3 inputs, the last ones; the others have 5
		steps := 0
		train := func(inputs int) error {
			return model.Join(func() error {
				for range inputs {
					err := m.step(model, 1, 0, 1)
					if err = errors.Join(err, opt.Step()); err != nil {
						return err
					}
					opt.ZeroGrad()
					steps++
					// All ranks take part in this sum: StopEarly ends their loops in the same step.
					sum := autograd.FromSlice(pg.Device(), []float64{1})
					if err := pg.AllReduce(sum.Tensor(), comm.Sum).Wait(context.Background()); err != nil {
						return err
					}
				}
				return nil
			}, &JoinOptions{StopEarly: true})
		}
		inputs := 5
		if pg.Rank() >= pg.Size()-few {
			inputs = 3
		}
		err := train(inputs)
		var left *reducer.LeftError
		if !errors.As(err, &left) || len(left.Left) != few || left.Left[0] != (reducer.Left{Rank: pg.Size() - few}) ||
			!strings.Contains(err.Error(), fmt.Sprintf("rank %d ran out of inputs", pg.Size()-1)) {
			return fmt.Errorf("got %v, want a LeftError of the last %d ranks", err, few)
		}
		if w := m.w[1].Item(); steps != 3 || w != 1-3*2 {
			return fmt.Errorf("w is %v after %d steps, want -5 after 3", w, steps)
		}
		// With the same number of inputs there is no error, and the model remains usable.
		if err := train(2); err != nil || m.w[1].Item() != 1-5*2 {
			return fmt.Errorf("w is %v; %v", m.w[1].Item(), err)
		}
		return nil
	})
}

// If the loop of one rank returns an error, Join returns it there. The loops of the other ranks end
// with an error that names the rank and the cause, whether they have inputs or not.
func TestUnevenInputsError(t *testing.T) {
	onAll(t, func(pg *comm.ProcessGroup, isLagging bool) error {
		m, model, opt := trainedSummedSwitches(pg, 2, &Options{BucketCapMB: 1e-6, CheckReplicas: 2}, &optim.SGDOptions{LR: 1})
		bad := pg.Size() - 1
		err := model.Join(func() error {
			if pg.Rank() == 0 && pg.Size() > 2 {
				return nil // this rank has no inputs
			}
			for i := range 10 {
				if i == 3 && pg.Rank() == bad {
					return errInjected
				}
				err := m.step(model, 1, 0, 1)
				if err = errors.Join(err, opt.Step()); err != nil {
					return err
				}
				opt.ZeroGrad()
			}
			return errors.New("nobody said a word")
		}, nil)
		if pg.Rank() == bad {
			if err != errInjected {
				return fmt.Errorf("got %v, want the loop's own error", err)
			}
		} else {
			var left *reducer.LeftError
			if !errors.As(err, &left) || !slices.Equal(left.Left, []reducer.Left{{Rank: bad, Cause: errInjected.Error()}}) {
				return fmt.Errorf("got %v, want a LeftError of rank %d", err, bad)
			}
		}
		// The group is usable, and the model too once its state is equal on all ranks.
		if err := broadcast(pg, "repair", append(variables(m.w), m.sum.Var()), bad).Wait(context.Background()); err != nil {
			return err
		}
		return errors.Join(m.step(model, 1, 0, 1), m.has(1, 2))
	})
}

// If a step fails, the ranks with inputs skip it, and the others go on too. Join returns an error
// that the loop has not asked for.
func TestUnevenInputsMissingGradient(t *testing.T) {
	onAll(t, func(pg *comm.ProcessGroup, isLagging bool) error {
		m, model, opt := trainedSwitches(pg, 2, &Options{BucketCapMB: 1e-6}, &optim.SGDOptions{LR: 1})
		last := pg.Size() - 1
		err := model.Join(func() error {
			for i := range 2 + 3*pg.Rank() {
				use := []int{0, 1}
				if i == 3 && pg.Rank() == last {
					use = use[:1]
				}
				err := errors.Join(m.step(model, float64(pg.Size()), use...), opt.Step())
				opt.ZeroGrad()
				var missing *reducer.MissingGradientError
				if errors.As(err, &missing) != (i == 3) || (err != nil) != (i == 3) {
					return fmt.Errorf("pass %d: %v", i, err)
				}
			}
			return nil
		}, &JoinOptions{Optimizer: opt})
		if err != nil {
			return err
		}
		want := 1.
		for i := range 2 + 3*last {
			if i != 3 {
				for rank := range pg.Size() {
					if i < 2+3*rank {
						want--
					}
				}
			}
		}
		if n, whole := opt.Committed(); m.w[0].Item() != want || n != 1+3*last || !whole {
			return fmt.Errorf("w is %v after %d steps, want %v after %d; whole: %v", m.w[0].Item(), n, want, 1+3*last, whole)
		}
		err = model.Join(func() error {
			use := []int{0, 1}
			if pg.Rank() == last {
				use = use[:1]
			}
			err := m.step(model, 1, use...) // the loop does not ask for the error of this step
			if _, early := expectedErrors(pg, isLagging, last, err, nil); early != nil || err == nil && (!isLagging || pg.Rank() == last) {
				return fmt.Errorf("known too early: %v, or not at once: %v", early, err)
			}
			if pg.Rank() == last {
				return nil
			}
			return err
		}, nil)
		if missing := (*reducer.MissingGradientError)(nil); pg.Rank() != last && !errors.As(err, &missing) {
			return fmt.Errorf("got %v", err)
		} else if left := (*reducer.LeftError)(nil); pg.Rank() == last && (!errors.As(err, &left) || len(left.Left) != last) {
			return fmt.Errorf("got %v", err)
		}
		return nil
	})
}

// CheckReplicas compares only the ranks with inputs: the parameters of the others are outdated.
func TestDriftAmongUnevenInputs(t *testing.T) {
	onBoth(t, 4, func(pg *comm.ProcessGroup, isLagging bool) error {
		m, model, opt := trainedSwitches(pg, 2, &Options{CheckReplicas: 1}, &optim.SGDOptions{LR: 1})
		err := model.Join(func() error {
			if pg.Rank() == 0 {
				return nil
			}
			for i := range 4 {
				if i == 2 && pg.Rank() == 2 {
					d := pg.Device()
					if err := d.Kernels().Fill(d.Compute(), m.w[1].Var().Tensor(), 7); err != nil {
						return err
					}
				}
				if err := errors.Join(m.step(model, 1, 0, 1), opt.Step()); err != nil {
					return err
				}
				opt.ZeroGrad()
			}
			return errors.New("nothing was found")
		}, nil)
		var drift *ReplicaDriftError
		if pg.Rank() == 0 {
			var left *reducer.LeftError
			if !errors.As(err, &left) || len(left.Left) != 3 {
				return fmt.Errorf("got %v, want a LeftError of 3 ranks", err)
			}
			return nil
		}
		if !errors.As(err, &drift) || !slices.Equal(drift.Ranks, []int{2}) || !slices.Equal(drift.Away, []int{0}) || drift.Param != "w1" || strings.Contains(err.Error(), "on rank 0") {
			return fmt.Errorf("got %v, want rank 2's w1", err)
		}
		return nil
	})
}

// If options of Join differ between ranks, or Join is called within Join, every rank gets an error.
func TestJoinOptionsThatDiffer(t *testing.T) {
	onAll(t, func(pg *comm.ProcessGroup, isLagging bool) error {
		model := must.New(New(newSwitches(pg.Device(), 1), pg, nil))
		never := func() error { return errors.New("the loop runs") }
		err := model.Join(never, &JoinOptions{StopEarly: pg.Rank() == 1})
		if err == nil || !strings.Contains(err.Error(), "StopEarly true on rank 1") {
			return fmt.Errorf("got %v", err)
		}
		return model.Join(func() error {
			if err := model.Join(never, nil); err == nil || !strings.Contains(err.Error(), "Join was called within Join") {
				return fmt.Errorf("got %v", err)
			}
			return nil
		}, nil)
	})
}

// dying is the backend of a rank that is lost when it has begun to send its state.
type dying struct{ backend.Backend }

func (d dying) Start(c *backend.Call) (backend.Task, error) {
	if c.Name == "state" && len(c.Calls) > 0 && !c.Calls[0].Src.IsZero() {
		d.Backend.Abort(errors.New("the source is lost"))
	}
	return d.Backend.Start(c)
}

// If the rank whose state the others take over is lost meanwhile, those that made the last step still have that state,
// and the others still have their own.
func TestJoinedStateOutlivesItsSource(t *testing.T) {
	o := commtest.WrapBackend(&comm.Options{ErrorMode: comm.CleanUpOnly}, func(b backend.Backend) backend.Backend { return dying{b} })
	commtest.OnGoroutines(t, 3, o, func(pg *comm.ProcessGroup) error {
		m, model, opt := trainedSwitches(pg, 2, nil, &optim.SGDOptions{LR: 1, Momentum: 0.5})
		steps := []int{2, 2, 1}[pg.Rank()]
		var before []byte
		err := model.Join(func() error {
			err := m.train(model, opt, steps, 1, 0, 1)
			before = slices.Clone(parameterBytes(m.w))
			return err
		}, &JoinOptions{Optimizer: opt})
		if err == nil && pg.Rank() != 1 { // rank 1 neither sends nor receives
			return errors.New("no error")
		}
		isUnchanged := bytes.Equal(parameterBytes(m.w), before)
		if n, isConsistent := opt.Committed(); n != steps || !isConsistent || !isUnchanged {
			return fmt.Errorf("%d steps, want %d; consistent: %v, unchanged: %v, after %w", n, steps, isConsistent, isUnchanged, err)
		}
		return nil
	})
}
