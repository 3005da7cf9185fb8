package optim_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/internal/testkit/must"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

// An optimizer that loads a saved state makes the same steps as the one that saved it.
func TestLoadState(t *testing.T) {
	for name, newOptimizer := range optimizers {
		t.Run(name, func(t *testing.T) {
			dev := newDevice(t)
			make := func() (holder, optim.Optimizer, *optim.EMA) {
				m := holder{params: []*nn.Parameter{parameter(dev, "a", []float64{1, 2}), parameter(dev, "b", []float64{3})}}
				opt := newOptimizer(m.params, false)
				return m, opt, must.New(optim.NewEMA(m, opt, nil))
			}
			train := func(m holder, opt optim.Optimizer, ema *optim.EMA, from, to int) {
				for step := from; step < to; step++ {
					give(t, m.params[0], []float64{float64(step) + 1, -1})
					give(t, m.params[1], []float64{0.5 - float64(step)})
					if err := errors.Join(opt.Step(), ema.Update()); err != nil {
						t.Fatal(err)
					}
					opt.ZeroGrad()
				}
			}
			m, opt, ema := make()
			train(m, opt, ema, 0, 3)
			state, err := optim.State(ema) // the states of the optimizer and of the EMA
			if err != nil {
				t.Fatal(err)
			}
			params, kept := saved(t, nn.State(m)), saved(t, state)
			train(m, opt, ema, 3, 6)

			m2, opt2, ema2 := make()
			if err := errors.Join(nn.LoadState(t.Context(), m2, params), optim.LoadState(t.Context(), ema2, 3, kept)); err != nil {
				t.Fatal(err)
			}
			if n, whole := opt2.Committed(); n != 3 || !whole {
				t.Errorf("after %d steps, whole: %v; want 3", n, whole)
			}
			ema2.BeginLoad()
			if _, whole := ema2.Committed(); whole || ema2.Update() == nil || opt2.Step() == nil {
				t.Error("while a state is loaded it goes on")
			}
			ema2.EndLoad(3)
			train(m2, opt2, ema2, 3, 6)
			for i, p := range m.params {
				if got, want := read(t, m2.params[i].Var()), read(t, p.Var()); !slices.Equal(got, want) {
					t.Errorf("%s is %v, and %v without a break", p.Name(), got, want)
				}
				if got, want := averaged(t, ema2, m2.params[i].Var()), averaged(t, ema, p.Var()); !slices.Equal(got, want) {
					t.Errorf("the average of %s is %v, and %v without a break", p.Name(), got, want)
				}
			}
		})
	}
}

// A state that does not fit changes nothing.
func TestLoadStateThatDoesNotFitChangesNothing(t *testing.T) {
	dev := newDevice(t)
	p := parameter(dev, "p", []float64{1, 2})
	opt := must.New(optim.NewSGD([]*nn.Parameter{p}, &optim.SGDOptions{LR: 0.1, Momentum: 0.5}))
	give(t, p, []float64{1, 1})
	if err := opt.Step(); err != nil {
		t.Fatal(err)
	}
	for what, state := range map[string]map[string]*autograd.Variable{
		"nothing":       {},
		"another name":  {"q.velocity": autograd.FromSlice(dev, []float64{5, 5})},
		"another shape": {"p.velocity": autograd.FromSlice(dev, []float64{5})},
	} {
		err := optim.LoadState(t.Context(), opt, 7, state)
		var misfit *nn.StateError
		if !errors.As(err, &misfit) {
			t.Errorf("%s: got %v, want a StateError", what, err)
		}
		kept, err := optim.State(opt)
		if err != nil {
			t.Fatal(err)
		}
		near(t, what, read(t, kept["p.velocity"]), []float64{1, 1})
		if n, whole := opt.Committed(); n != 1 || !whole {
			t.Errorf("%s: after %d steps, whole: %v; want 1", what, n, whole)
		}
	}
}
