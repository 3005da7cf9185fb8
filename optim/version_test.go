package optim_test

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/must"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

// panics returns the [*autograd.ModifiedError] with which f panics.
func panics(t *testing.T, f func()) (err *autograd.ModifiedError) {
	t.Helper()
	defer func() {
		t.Helper()
		thrown := recover()
		if e, ok := thrown.(*autograd.ModifiedError); ok {
			err = e
		} else {
			t.Fatalf("panic with %v, want a ModifiedError", thrown)
		}
	}()
	f()
	return nil
}

// A call that writes a parameter or a state variable in place increases its version. A step that
// changes nothing does not.
func TestInPlaceWritesIncreaseVersion(t *testing.T) {
	dev := newDevice(t)
	bad := errors.New("rank 3 has no gradient")
	for _, dt := range []device.DType{device.Float64, device.BFloat16} {
		for name, newOptimizer := range map[string]func(ps []*nn.Parameter) optim.Optimizer{
			"SGD": func(ps []*nn.Parameter) optim.Optimizer {
				return must.New(optim.NewSGD(ps, &optim.SGDOptions{LR: 1, Momentum: 0.5, MasterWeights: true}))
			},
			"AdamW": func(ps []*nn.Parameter) optim.Optimizer {
				return must.New(optim.NewAdamW(ps, &optim.AdamWOptions{LR: 1, MasterWeights: true}))
			},
		} {
			w, idle := nn.NewParameter("w", autograd.Zeros(dev, dt, 2)), nn.NewParameter("idle", autograd.Zeros(dev, dt, 2))
			m := holder{params: []*nn.Parameter{w, idle}}
			opt := newOptimizer(m.params)
			e := must.New(optim.NewEMA(m, opt, nil))
			kept, err := opt.State()
			if err != nil {
				t.Fatal(err)
			}
			owned := &owner{t: autograd.Zeros(dev, dt, 2).Tensor()}
			w.Var().SetGradSink(owned)
			of := func(v *autograd.Variable, f func() error) uint64 {
				t.Helper()
				before := v.Version()
				if err := f(); err != nil {
					t.Fatal(err)
				}
				return v.Version() - before
			}
			step := opt.(interface{ Step() error }).Step
			skipped := func() error {
				if err := step(); !errors.Is(err, owned.err) {
					return err
				}
				return nil
			}
			for _, b := range kept {
				if n := of(b.Var(), step); n != 1 && !strings.HasPrefix(b.Name(), "idle.") && !strings.HasSuffix(b.Name(), ".updates") {
					t.Errorf("%s of %v: a step counts %d times for %s", name, dt, n, b.Name())
				}
			}
			if n, of0 := of(w.Var(), step), of(idle.Var(), step); n != 1 || of0 != 0 {
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

// scalars returns a pointer to each number in the parameters ps, which are in host memory.
func scalars(ps []*nn.Parameter) (xs []*float64) {
	for _, p := range ps {
		for i := range device.Elements[float64](p.Var().Tensor()) {
			xs = append(xs, &device.Elements[float64](p.Var().Tensor())[i])
		}
	}
	return xs
}

// TestGeneratorLossFromBeforeDiscriminatorStepPanics trains a generator and a discriminator with one optimizer each. In the right
// order the generator's gradients use the discriminator after its step. The backward pass of a
// generator's loss from before that step panics and names the modified variable; PyTorch reports an
// error too.
func TestGeneratorLossFromBeforeDiscriminatorStepPanics(t *testing.T) {
	dev := newDevice(t)
	double := nn.LinearOptions{DType: device.Float64}
	generator := nn.Sequential(nn.Linear(2, 4, double), nn.ReLU(), nn.Linear(4, 3, double))
	discriminator := nn.Sequential(nn.Linear(3, 4, double), nn.ReLU(), nn.Linear(4, 1, double))
	for i, m := range []nn.Module{generator, discriminator} {
		if err := nn.Place(m, dev, uint64(1+i)); err != nil {
			t.Fatal(err)
		}
	}
	optG := must.New(optim.NewSGD(generator.Parameters(), &optim.SGDOptions{LR: 0.05}))
	optD := must.New(optim.NewSGD(discriminator.Parameters(), &optim.SGDOptions{LR: 0.5}))
	noise := autograd.FromSlice(dev, []float64{0.5, -1, 2, 0.1, -0.3, 0.7, 1, 1}, 4, 2)
	real := autograd.FromSlice(dev, []float64{1, 2, 3, 1, 2, 2, 2, 2, 3, 1, 1, 3}, 4, 3)
	target := func(y float64) *autograd.Variable {
		return autograd.FromSlice(dev, []float64{y, y, y, y}, 4, 1)
	}
	judged := func(x *autograd.Variable, y float64) *autograd.Variable {
		return nn.MSELoss(discriminator.Forward(x), target(y))
	}
	noErrors := func(errs ...error) {
		t.Helper()
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
	}
	stepD := func(fake *autograd.Variable) {
		t.Helper()
		optD.ZeroGrad()
		noErrors(autograd.Add(judged(real, 1), judged(fake.Detach(), 0)).Backward(), optD.Step())
	}

	for range 3 {
		fake := generator.Forward(noise)
		stepD(fake)
		optG.ZeroGrad()
		noErrors(judged(fake, 1).Backward())
		i := 0
		const h = 1e-5
		for _, p := range generator.Parameters() {
			for _, got := range read(t, p.Grad()) {
				x := scalars(generator.Parameters())[i]
				at := func(d float64) (y float64) {
					*x += d
					defer func() { *x -= d }()
					autograd.NoGrad(dev, func() { y = judged(generator.Forward(noise), 1).Item() })
					return y
				}
				if want := (at(h) - at(-h)) / (2 * h); !(math.Abs(got-want) < 1e-8) {
					t.Fatalf("derivative %d of the generator, in %s, is %v, want %v", i, p.Name(), got, want)
				}
				i++
			}
		}
		noErrors(optG.Step())
	}

	fake := generator.Forward(noise)
	loss := judged(fake, 1)
	stepD(fake)
	optG.ZeroGrad()
	err := panics(t, func() { loss.Backward() })
	w := discriminator.Parameters()[2].Var() // a parameter that the last operation reads
	if want := (autograd.ModifiedError{Op: "Linear", Variable: w.String(), Saved: 3, Now: 4}); *err != want {
		t.Errorf("got %v, want %v", err, &want)
	}
	// The cause is the order of the steps, not the loss: in the right order it passes.
	noErrors(judged(fake, 1).Backward())

	// The derivative of 2·u·w with respect to u is 2·10. After the step on w it would be 2·2.
	u, v := nn.NewParameter("u", autograd.Scalar(dev, 1)), nn.NewParameter("w", autograd.Scalar(dev, 10))
	product := autograd.Mul(autograd.MulScalar(u.Var(), 2), v.Var())
	noErrors(v.Var().Backward(), must.New(optim.NewSGD([]*nn.Parameter{v}, &optim.SGDOptions{LR: 8})).Step())
	err = panics(t, func() { product.Backward() })
	if got, want := err.Error(), `autograd: the backward of Mul needs variable "w" float32[] as it was at version 0, and an in-place write, such as an optimizer's Step, has made it version 1: call Backward before the write, or run the forward pass again`; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
