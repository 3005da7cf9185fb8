package autograd_test

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
)

// part applies a part of a model, directly or through Checkpoint.
type part func(f func(*autograd.Variable) *autograd.Variable, x *autograd.Variable) *autograd.Variable

func plain(f func(*autograd.Variable) *autograd.Variable, x *autograd.Variable) *autograd.Variable {
	return f(x)
}

// nested applies a Checkpoint within a Checkpoint.
func nested(f func(*autograd.Variable) *autograd.Variable, x *autograd.Variable) *autograd.Variable {
	return autograd.Checkpoint(func(x *autograd.Variable) *autograd.Variable {
		return autograd.Tanh(autograd.Checkpoint(f, autograd.Exp(x)))
	}, x)
}

// A model with checkpoints computes the same bits of the loss and of all gradients as without, and calls
// the leaves' sinks in the same order. The leaf shared is used in two parts, twice in one part, and
// outside; the second part captures the result of an operation before it.
func TestCheckpointIsExact(t *testing.T) {
	type outcome struct {
		grads [][]float64
		log   []string
	}
	run := func(t *testing.T, apply part, deeper bool, passes int) outcome {
		dev := newDevice(t)
		var log []string
		rng := rand.New(rand.NewPCG(1, 2))
		leaf := func(name string, shape ...int) *autograd.Variable {
			v := autograd.FromSlice(dev, values(rng, device.Shape(shape).Len(), -1, 1), shape...).RequireGrad()
			newSink(v, name, &log).scale = 0.3
			return v
		}
		x, w, b, shared, last := leaf("x", 3, 4), leaf("w", 4, 4), leaf("b", 4), leaf("shared", 4, 4), leaf("last", 4, 4)
		data := autograd.FromSlice(dev, values(rng, 12, -1, 1), 3, 4)
		tap := func(name string, x *autograd.Variable) *autograd.Variable {
			return autograd.Apply(tick{name, &log}, x)
		}

		early := autograd.Linear(x, shared, nil)
		h := apply(func(x *autograd.Variable) *autograd.Variable {
			h := autograd.LinearReLU(x, w, b)
			autograd.NoGrad(dev, func() { autograd.Exp(h) })
			h = autograd.Add(autograd.Tanh(autograd.Exp(h)), h) // a second path from h
			return tap("first", autograd.Linear(h, shared, nil))
		}, early)
		if deeper {
			h = apply(func(x *autograd.Variable) *autograd.Variable {
				return apply(func(x *autograd.Variable) *autograd.Variable { return autograd.Mul(x, autograd.Tanh(x)) }, autograd.Sigmoid(x))
			}, h)
		}
		h = tap("between", h)
		h = apply(func(x *autograd.Variable) *autograd.Variable {
			h := autograd.Mul(tap("second", autograd.Linear(x, shared, b)), early)
			h = autograd.Linear(h, shared, nil)
			return autograd.Add(autograd.Linear(h, last, nil), data)
		}, h)
		loss := autograd.Mean(autograd.Mul(h, h))
		var o outcome
		for i := range passes {
			if i < passes-1 {
				mustRetain(t, loss)
			} else {
				mustBackward(t, loss)
			}
		}
		for _, v := range []*autograd.Variable{loss, x.Grad(), w.Grad(), b.Grad(), shared.Grad(), last.Grad()} {
			o.grads = append(o.grads, read(t, v))
		}
		o.log = log
		return o
	}
	for _, deeper := range []bool{false, true} {
		for passes := range 3 {
			if passes == 0 {
				continue
			}
			t.Run(fmt.Sprintf("nested: %v, %d passes", deeper, passes), func(t *testing.T) {
				want, got := run(t, plain, deeper, passes), run(t, autograd.Checkpoint, deeper, passes)
				if !slices.EqualFunc(got.grads, want.grads, slices.Equal) {
					t.Errorf("with checkpoints the loss and the gradients are\n%v\nwithout\n%v", got.grads, want.grads)
				}
				if !slices.Equal(got.log, want.log) {
					t.Errorf("with checkpoints the sinks heard\n%s\nwithout\n%s", strings.Join(got.log, "\n"), strings.Join(want.log, "\n"))
				}
				if n := len(want.log); n < 18*passes {
					t.Errorf("only %d lines heard: no test", n)
				}
			})
		}
	}
}

// Checkpoints keep no intermediate results: of many layers, memory holds the inputs and outputs of the
// parts, and the intermediate results of one part at a time.
func TestCheckpointSavesMemory(t *testing.T) {
	const n, parts, layers = 1 << 13, 8, 8
	peak := func(apply part) (most, kept int64) {
		dev := newDevice(t)
		h := autograd.Zeros(dev, device.Float32, n/4).RequireGrad()
		before := dev.Memory().InUse
		for range parts {
			h = apply(func(x *autograd.Variable) *autograd.Variable {
				for range layers {
					x = autograd.Tanh(x)
				}
				return x
			}, h)
		}
		loss := autograd.Sum(h)
		kept = dev.Memory().InUse - before
		mustBackward(t, loss)
		return dev.Memory().Peak - before, kept
	}
	all, _ := peak(plain)
	if all < parts*layers*n {
		t.Fatalf("without checkpoints the peak is %d bytes, want %d results of %d", all, parts*layers, n)
	}
	most, kept := peak(autograd.Checkpoint)
	if limit := int64(parts*n + n/2); kept > limit {
		t.Errorf("the forward pass keeps %d bytes, want the ends of %d parts, at most %d", kept, parts, limit)
	}
	// The results of one part, the leaf's gradient, and two temporary gradients.
	if limit := int64((parts+layers+4)*n + n/2); most > limit {
		t.Errorf("the peak is %d bytes, want at most %d; without checkpoints %d", most, limit, all)
	}
	deep, _ := peak(nested)
	if deep > most+5*n {
		t.Errorf("the peak of nested checkpoints is %d bytes, of flat ones %d", deep, most)
	}
}

// Any failure in the second run fails the pass. The observer inside is told once, of a leaf that is reached.
func TestCheckpointFailures(t *testing.T) {
	dev := newFaulty(t, errors.New("boom"))
	x := autograd.FromSlice(dev, []float64{1, -2, 3, 0.5, 1, 1}, 2, 3)
	w := autograd.FromSlice(dev, []float64{1, 2, -1, 0.1, 0.2, 0.3}, 2, 3).RequireGrad()
	seen := &watcher{leaves: variables{w}}
	forward := func() *autograd.Variable {
		return autograd.Mean(nested(func(x *autograd.Variable) *autograd.Variable {
			h := autograd.LinearReLU(x, w, nil)
			return autograd.Observe(autograd.Div(autograd.Mul(h, h), autograd.Exp(h)), seen)
		}, x))
	}
	mustBackward(t, forward())
	if seen.started != 1 || !slices.Equal(seen.reached, []bool{true}) {
		t.Errorf("the observer inside was told %d times, of leaves %v; want once, of one that is reached", seen.started, seen.reached)
	}
	eachFailure(t, dev, variables{w}, seen, false, 15, forward)
}

// A function that computes something else in its second run fails the pass.
func TestCheckpointThatDiffersFails(t *testing.T) {
	dev := newDevice(t)
	w, v := autograd.Scalar(dev, 3).RequireGrad().SetName("w"), autograd.Scalar(dev, 5).RequireGrad().SetName("v")
	for _, c := range []struct {
		what          string
		first, second func(x *autograd.Variable) *autograd.Variable
		want          string
	}{
		{"another operation", autograd.Exp, autograd.Tanh, "operation 1 of 1 was Exp float32[], now it is Tanh float32[]"},
		{"another shape", func(x *autograd.Variable) *autograd.Variable { return autograd.Sum(autograd.Reshape(x, 1)) },
			func(x *autograd.Variable) *autograd.Variable { return autograd.Sum(autograd.Reshape(x, 1, 1)) },
			"operation 1 of 2 was Reshape float32[1], now it is Reshape float32[1 1]"},
		{"more operations", autograd.Exp, func(x *autograd.Variable) *autograd.Variable { return autograd.Exp(autograd.Exp(x)) },
			"the number of operations was 1, now it is 2"},
		{"none", autograd.Exp, func(x *autograd.Variable) *autograd.Variable { return x }, "was 1, now it is 0"},
		{"another leaf", func(x *autograd.Variable) *autograd.Variable { return autograd.Mul(x, v) },
			func(x *autograd.Variable) *autograd.Variable { return autograd.Mul(x, x) }, "the number of uses of variable"},
	} {
		runs := 0
		y := autograd.Checkpoint(func(x *autograd.Variable) *autograd.Variable {
			if runs++; runs == 1 {
				return c.first(x)
			}
			return c.second(x)
		}, w)
		err := y.Backward(nil)
		var e *autograd.RecomputeError
		if !errors.As(err, &e) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want a RecomputeError with %q", c.what, err, c.want)
		}
		if runs != 2 || !errors.As(w.GradErr(), &e) {
			t.Errorf("%s: %d runs, and the gradient may be used: %v", c.what, runs, w.GradErr())
		}
		w.ZeroGrad()
		v.ZeroGrad()
	}
}

// A leaf that is frozen after the forward pass gets no gradient, and the other leaves get theirs. A later
// pass sees each leaf in its state at that time.
func TestCheckpointOfFrozenLeaves(t *testing.T) {
	for name, apply := range map[string]part{"plain": plain, "checkpoint": autograd.Checkpoint, "nested": nested} {
		dev := newDevice(t)
		x, w := autograd.Scalar(dev, 0.5).RequireGrad(), autograd.Scalar(dev, 0.3).RequireGrad()
		y := apply(func(x *autograd.Variable) *autograd.Variable {
			return autograd.Mul(autograd.Mul(x, w), autograd.Exp(w)) // Exp depends on w alone
		}, x)
		var all [2]float64
		for _, frozen := range [][2]bool{{false, false}, {false, true}, {true, false}, {true, true}, {false, false}} {
			leaves := []*autograd.Variable{x, w}
			for i, v := range leaves {
				v.RequireGrad()
				if frozen[i] {
					v.Freeze()
				}
			}
			mustRetain(t, y)
			for i, v := range leaves {
				g := v.Grad()
				switch {
				case (g == nil) != frozen[i] || v.RequiresGrad() == frozen[i]:
					t.Errorf("%s: of %v frozen, leaf %d has the gradient %v and requires one: %v", name, frozen, i, g, v.RequiresGrad())
				case g == nil:
				case all[i] == 0:
					all[i] = g.Item()
				case all[i] != g.Item():
					t.Errorf("%s: of %v frozen, leaf %d has the gradient %v, want %v", name, frozen, i, g.Item(), all[i])
				}
				v.ZeroGrad()
			}
		}
	}
}

// A leaf that starts to require a gradient after the forward pass fails the pass.
func TestCheckpointOfUnfrozenLeaf(t *testing.T) {
	dev := newDevice(t)
	x, w := autograd.Scalar(dev, 2).RequireGrad(), autograd.Scalar(dev, 3).RequireGrad().Freeze()
	y := autograd.Checkpoint(func(x *autograd.Variable) *autograd.Variable { return autograd.Mul(x, w) }, x)
	w.RequireGrad()
	if err, e := y.Backward(nil), (*autograd.RecomputeError)(nil); !errors.As(err, &e) {
		t.Errorf("got %v, want a RecomputeError", err)
	}
}

// A Checkpoint changes nothing for values that need no gradient, and for values that its function only
// returns.
func TestCheckpointWithoutOperations(t *testing.T) {
	dev := newDevice(t)
	w := autograd.Scalar(dev, 3).RequireGrad()
	x := autograd.Scalar(dev, 2)
	runs := 0
	double := func(x *autograd.Variable) *autograd.Variable {
		runs++
		return autograd.Add(x, x)
	}
	if y := autograd.Checkpoint(double, x); y.Item() != 4 || y.RequiresGrad() {
		t.Errorf("of what needs no gradient: %v, requires one: %v", y.Item(), y.RequiresGrad())
	}
	same := func(x *autograd.Variable) *autograd.Variable { return x }
	if y := autograd.Checkpoint(same, w); y != w {
		t.Error("of a leaf itself: another variable")
	}
	var y *autograd.Variable
	autograd.NoGrad(dev, func() {
		z := autograd.Checkpoint(double, w)
		if z.RequiresGrad() {
			t.Error("recorded within NoGrad")
		}
		y = z.Retain()
	})
	if y.Item() != 6 {
		t.Errorf("retained, it is %v, want 6", y.Item())
	}

	// A pass within NoGrad, through a graph that was recorded before.
	runs = 0
	y = autograd.Checkpoint(double, w)
	autograd.NoGrad(dev, func() { mustBackward(t, y) })
	if got := w.Grad().Item(); got != 2 || runs != 2 {
		t.Errorf("within NoGrad the gradient is %v after %d runs, want 2 after 2", got, runs)
	}

	// A Checkpoint may be the first operation of a step.
	y = autograd.Exp(w)
	mustBackward(t, y)
	next := autograd.Checkpoint(double, w)
	err := panics[*autograd.FreedError](t, func() { y.Item() })
	if err != nil && !strings.Contains(err.Error(), "began at Add") {
		t.Errorf("%v does not say where the step began", err)
	}
	if next.Item() != 6 {
		t.Errorf("the next step computes %v, want 6", next.Item())
	}

	// Results made inside are freed unless they are retained.
	var inside, kept *autograd.Variable
	autograd.Checkpoint(func(x *autograd.Variable) *autograd.Variable {
		inside, kept = autograd.Exp(x), autograd.Exp(x).Detach().Retain()
		return autograd.Add(inside, kept)
	}, w)
	err = panics[*autograd.FreedError](t, func() { inside.Item() })
	if err != nil && !strings.Contains(err.Error(), "when its Checkpoint returned") {
		t.Errorf("%v does not say why", err)
	}
	if got, want := kept.Item(), math.Exp(3); math.Abs(got-want) > 1e-5 {
		t.Errorf("what is retained is %v, want %v", got, want)
	}
	other := newDevice(t)
	panics[*autograd.DeviceError](t, func() {
		autograd.Checkpoint(func(*autograd.Variable) *autograd.Variable { return autograd.Scalar(other, 1) }, w)
	})
}

// A Checkpoint starts a new step exactly if the first operation of its function would: not if that
// operation uses a captured result of the current step.
func TestCheckpointThatCapturesTheStep(t *testing.T) {
	twice := func(f func(*autograd.Variable) *autograd.Variable, x *autograd.Variable) *autograd.Variable {
		return autograd.Checkpoint(func(x *autograd.Variable) *autograd.Variable { return autograd.Checkpoint(f, x) }, x)
	}
	for name, apply := range map[string]part{"plain": plain, "checkpoint": autograd.Checkpoint, "checkpoint in another": twice} {
		dev := newDevice(t)
		x, w := autograd.Scalar(dev, 2), autograd.Scalar(dev, 0).RequireGrad()
		h := autograd.Exp(w)
		mustRetain(t, autograd.Sum(h))
		y := apply(func(x *autograd.Variable) *autograd.Variable { return autograd.Mul(h, autograd.Mul(h, x)) }, x)
		mustRetain(t, y)
		if got := w.Grad().Item(); got != 1+4 {
			t.Errorf("%s: the gradient is %v, want 5", name, got)
		}
		z := apply(func(x *autograd.Variable) *autograd.Variable { return autograd.Mul(autograd.Mul(w.Grad(), x), x) }, x)
		if h.Item() != 1 || y.Item() != 2 || z.Item() != 20 {
			t.Errorf("%s: in one step %v, %v and %v, want 1, 2 and 20", name, h.Item(), y.Item(), z.Item())
		}
		next := apply(func(x *autograd.Variable) *autograd.Variable { return autograd.Exp(autograd.Mul(x, w)) }, x)
		for _, v := range []*autograd.Variable{h, y, z} {
			if err := panics[*autograd.FreedError](t, func() { v.Item() }); err != nil && !strings.Contains(err.Error(), "began at Mul") {
				t.Errorf("%s: %v does not say where the next step began", name, err)
			}
		}
		mustBackward(t, next)
		if got := w.Grad().Item(); got != 5+2 {
			t.Errorf("%s: after the next step the gradient is %v, want 7", name, got)
		}
	}
}

// Backward works if the result of a Checkpoint was freed, because the second run computes the result again.
func TestCheckpointOfFreedResult(t *testing.T) {
	dev := newDevice(t)
	x := autograd.Scalar(dev, 2).RequireGrad()
	y := autograd.Checkpoint(func(x *autograd.Variable) *autograd.Variable { return autograd.Exp(autograd.Mul(x, x)) }, x)
	loss := autograd.MulScalar(y, 2)
	y.Free()
	mustBackward(t, loss)
	if got, want := x.Grad().Item(), 8*math.Exp(4); math.Abs(got-want) > 1e-6*want {
		t.Errorf("gradient %v, want %v", got, want)
	}
}

// A pass panics before it writes anything if the input of a Checkpoint was freed.
func TestCheckpointOfFreedInput(t *testing.T) {
	dev := newDevice(t)
	w, x := autograd.Scalar(dev, 3).RequireGrad(), autograd.Scalar(dev, 2)
	y := autograd.Checkpoint(func(x *autograd.Variable) *autograd.Variable { return autograd.Mul(x, w) }, x)
	seen := &watcher{}
	out := autograd.Observe(y, seen)
	x.Free()
	panics[*autograd.FreedError](t, func() { out.Backward(nil) })
	if seen.started != 0 {
		t.Error("the pass had begun")
	}
}
