package autograd_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

// overwrite writes other numbers to v's memory without BumpVersion.
func overwrite(t *testing.T, v *autograd.Variable) {
	t.Helper()
	dev, m := v.Device(), v.Tensor()
	k, s := kernels.Of(dev), dev.Compute()
	offset := autograd.Zeros(dev, m.DType).Tensor()
	if err := errors.Join(k.Fill(s, offset, -0.3), k.Axpby(s, m, device.Accum{Alpha: -1.7}, m), k.Binary(s, kernels.Add, m, m, offset)); err != nil {
		t.Fatal(err)
	}
}

// Backward panics if an operand or the result of an operation was written, and only if the write would
// have changed the gradients.
func TestVersionsGuardWhatBackwardReads(t *testing.T) {
	dev := newDevice(t)
	rng := rand.New(rand.NewPCG(3, 4))
	guarded := 0
	for _, c := range gradCases() {
		data := make([][]float64, len(c.shapes))
		for i, shape := range c.shapes {
			data[i] = values(rng, shape.Len(), c.lo, c.hi)
		}
		// run returns the gradients of the inputs that wanted selects. It calls write with the
		// inputs and the result between the forward pass and the backward pass.
		run := func(wanted func(i int) bool, write func(variables)) (grads [][]float64, err *autograd.ModifiedError) {
			in := make(variables, len(data))
			for i := range in {
				if in[i] = autograd.FromSlice(dev, data[i], append([]int{}, c.shapes[i]...)...); wanted(i) {
					in[i].RequireGrad()
				}
			}
			y := c.f(in)
			seed := make([]float64, y.Shape().Len())
			for i := range seed {
				seed[i] = 1 + float64(i)/7
			}
			write(append(in, y))
			defer func() {
				thrown := recover()
				if e, ok := thrown.(*autograd.ModifiedError); ok {
					err = e
				} else if thrown != nil {
					panic(thrown)
				}
			}()
			mustBackwardFrom(t, y, autograd.FromSlice(dev, seed, append([]int{}, y.Shape()...)...))
			for i, x := range in {
				if wanted(i) {
					grads = append(grads, read(t, x.Grad()))
				}
			}
			return grads, nil
		}
		for only := range len(data) + 1 {
			wanted := func(i int) bool { return i == only || only == len(data) }
			want, _ := run(wanted, func(variables) {})
			for j := range len(data) + 1 {
				got, _ := run(wanted, func(vs variables) { overwrite(t, vs[j]) })
				matters := !slices.EqualFunc(got, want, slices.Equal)
				_, err := run(wanted, func(vs variables) { vs[j].BumpVersion() })
				if matters != (err != nil) {
					t.Errorf("%s, gradient %d: a write to variable %d makes another one: %v, and Backward panics with %v", c.name, only, j, matters, err)
				}
				if matters {
					guarded++
				}
			}
		}
	}
	if guarded < 500 {
		t.Errorf("%d writes matter", guarded)
	}
	labels := autograd.FromSlice(dev, []int64{1})
	loss := autograd.CrossEntropyLoss(autograd.Zeros(dev, device.Float32, 1, 3).RequireGrad(), labels)
	labels.BumpVersion()
	panics[*autograd.ModifiedError](t, func() { loss.Backward(nil) })
}

// step writes w in place as an optimizer does.
func step(w *autograd.Variable, by float64) {
	dev, m := w.Device(), w.Tensor()
	if err := kernels.Of(dev).SGD(dev.Compute(), kernels.SGDStep{Param: m, Grad: w.Grad().Tensor(), LR: by}); err != nil {
		panic(err)
	}
	w.BumpVersion()
}

// The error names the variable, the operation and both versions. Observers get it, and no gradient
// changes. The graph stays, so the program can restore the numbers and call Backward again. Two handles
// to the same memory have the same version.
func TestModifiedError(t *testing.T) {
	dev := newDevice(t)
	x := autograd.FromSlice(dev, []float64{2})
	w := autograd.FromSlice(dev, []float64{3}).RequireGrad().SetName("w")
	mustBackward(t, autograd.Sum(autograd.Mul(w, x))) // 2
	seen := &watcher{}
	loss := autograd.Observe(autograd.Sum(autograd.Mul(autograd.Reshape(w.Detach(), 1), autograd.Mul(w, x))), seen) // the gradient is 3·2, and 1·2 after the step of w
	step(w, 1)
	err := panics[*autograd.ModifiedError](t, func() { loss.Backward(nil) })
	if want := (autograd.ModifiedError{Op: "Mul", Variable: "Reshape float64[1]", Saved: 0, Now: 1}); *err != want {
		t.Errorf("got %+v, want %+v", *err, want)
	}
	var reported *autograd.PanicError
	if len(seen.ended) != 1 || !errors.As(seen.ended[0], &reported) || reported.Value != any(err) {
		t.Errorf("the observer was told %v", seen.ended)
	}
	if got := read(t, w.Grad()); got[0] != 2 || w.GradErr() != nil {
		t.Errorf("the gradient is %v, %v, and was 2", got, w.GradErr())
	}

	loss = autograd.Mul(w, w)
	if v := w.Version(); v != 1 || w.Detach().Version() != v || autograd.Reshape(w, 1, 1).Version() != v {
		t.Errorf("versions %d, %d of a handle and %d of a view, want 1", v, w.Detach().Version(), autograd.Reshape(w, 1, 1).Version())
	}
	w.Detach().BumpVersion()
	text := panics[*autograd.ModifiedError](t, func() { loss.Backward(nil) }).Error()
	for _, part := range []string{"Mul", `variable "w" float64[1]`, "version 1", "version 2"} {
		if !strings.Contains(text, part) {
			t.Errorf("%q does not say %q", text, part)
		}
	}
}

// Training loops may do all this between a forward pass and its backward pass.
func TestValidLoopsPass(t *testing.T) {
	dev := newDevice(t)
	x := autograd.FromSlice(dev, []float64{1, 2}, 1, 2)
	newWeight := func() *autograd.Variable {
		return autograd.FromSlice(dev, []float64{1, -2, 3, 4}, 2, 2).RequireGrad()
	}
	w, other := newWeight(), newWeight()
	forward := func(w *autograd.Variable) *autograd.Variable {
		return autograd.Sum(autograd.Linear(autograd.LinearReLU(x, w, nil), w, nil))
	}
	mean := autograd.Zeros(dev, device.Float64, 1, 2)
	for name, f := range map[string]func(){
		"accumulation": func() {
			for range 3 {
				mustBackward(t, forward(w))
			}
			step(w, 0.1)
		},
		"a step of others": func() {
			a := forward(w)
			mustBackward(t, forward(other))
			step(other, 0.1)
			mustBackward(t, a)
		},
		"a weight that was frozen": func() {
			x := autograd.FromSlice(dev, []float64{1, 2}, 1, 2).RequireGrad()
			a := autograd.Sum(autograd.Linear(x, w, nil))
			w.Freeze()
			x.BumpVersion() // only the gradient of w would read it
			mustBackward(t, a)
			w.RequireGrad()
		},
		"running statistics": func() {
			for _, apply := range []part{plain, autograd.Checkpoint} {
				mustBackward(t, autograd.Sum(apply(func(x *autograd.Variable) *autograd.Variable {
					y := autograd.Linear(x, w, nil)
					next := autograd.Add(autograd.MulScalar(mean, 0.9), autograd.MulScalar(y.Detach(), 0.1))
					if err := dev.Copy(dev.Compute(), mean.Tensor().Buf, next.Tensor().Buf); err != nil {
						t.Fatal(err)
					}
					mean.BumpVersion()
					return autograd.Tanh(y)
				}, x)))
			}
		},
		"a weight that moved": func() {
			a := forward(w)
			buf, err := dev.Alloc(w.Tensor().Bytes())
			if err != nil {
				t.Fatal(err)
			}
			if err := w.MoveTo(device.NewTensor(buf, device.Float64, 4)); err != nil {
				t.Fatal(err)
			}
			mustBackward(t, a)
		},
	} {
		for range 2 {
			f()
		}
		if t.Failed() {
			t.Fatal(name)
		}
		w.ZeroGrad()
		other.ZeroGrad()
	}
}

// A write to any variable that a checkpointed function reads is detected before the function runs again:
// variables that it captured, its input, and variables that a nested Checkpoint reads.
func TestCheckpointGuardsWhatItReads(t *testing.T) {
	dev := newDevice(t)
	constant := autograd.FromSlice(dev, []float64{5}).SetName("constant")
	w := autograd.FromSlice(dev, []float64{3}).RequireGrad().SetName("w")
	unrecorded := autograd.FromSlice(dev, []float64{0}).SetName("unrecorded") // no operation on it needs a gradient
	f := func(x *autograd.Variable) *autograd.Variable {
		return autograd.Checkpoint(func(x *autograd.Variable) *autograd.Variable {
			return autograd.Add(autograd.Mul(x, w), autograd.Add(constant, autograd.Checkpoint(autograd.Exp, unrecorded)))
		}, autograd.Mul(x, w))
	}
	for _, c := range []struct {
		write func(x *autograd.Variable) *autograd.Variable
		op    string
	}{
		{func(*autograd.Variable) *autograd.Variable { return w }, "Mul within Checkpoint within Checkpoint"},
		{func(*autograd.Variable) *autograd.Variable { return constant }, "Add within Checkpoint within Checkpoint"},
		{func(x *autograd.Variable) *autograd.Variable { return x }, "Mul within Checkpoint"},
		{func(*autograd.Variable) *autograd.Variable { return unrecorded }, "Exp within Checkpoint within Checkpoint"},
	} {
		x := autograd.FromSlice(dev, []float64{2}).SetName("x")
		loss := autograd.Sum(autograd.Checkpoint(f, x))
		v := c.write(x)
		v.BumpVersion()
		err := panics[*autograd.ModifiedError](t, func() { loss.Backward(nil) })
		if err.Op != c.op || err.Variable != v.String() || err.Now != err.Saved+1 {
			t.Errorf("%s written: got %v", v.Name(), err)
		}
	}
	mustBackward(t, autograd.Sum(autograd.Checkpoint(f, autograd.FromSlice(dev, []float64{2}))))
	if got := read(t, w.Grad()); got[0] != 12 { // the derivative of 2w²+5
		t.Errorf("the gradient is %v, want 12", got)
	}
	g := w.Grad()
	err := panics[*autograd.GraphError](t, func() {
		autograd.Checkpoint(func(x *autograd.Variable) *autograd.Variable { return autograd.Mul(autograd.Mul(x, w), g) }, constant)
	})
	if !strings.Contains(err.Error(), `"w.grad"`) || !strings.Contains(err.Error(), "copy") {
		t.Errorf("got %v", err)
	}
}

// If a function that runs again writes a variable that another Checkpoint of the pass reads, the pass
// fails.
func TestCheckpointGuardsWithinThePass(t *testing.T) {
	dev := newDevice(t)
	w := autograd.FromSlice(dev, []float64{3}).RequireGrad().SetName("w")
	state := autograd.FromSlice(dev, []float64{1}).SetName("state")
	x := autograd.Checkpoint(func(x *autograd.Variable) *autograd.Variable {
		return autograd.Mul(autograd.Mul(x, w), state)
	}, autograd.FromSlice(dev, []float64{2}))
	runs := 0
	y := autograd.Checkpoint(func(x *autograd.Variable) *autograd.Variable {
		if runs++; runs == 2 {
			state.BumpVersion()
		}
		return autograd.Mul(x, w)
	}, x)
	err := panics[*autograd.ModifiedError](t, func() { autograd.Sum(y).Backward(nil) })
	if err.Variable != state.String() || runs != 2 {
		t.Errorf("got %v after %d runs", err, runs)
	}
	if thrown := new(autograd.PanicError); !errors.As(w.GradErr(), &thrown) {
		t.Errorf("the gradient's error is %v", w.GradErr())
	}
}

// A gradient that is an operand keeps its value of that time, whatever the pass writes to it: overwriting
// or adding, in autograd's memory or in a sink's.
func TestGradientsAsOperands(t *testing.T) {
	for _, sinks := range []bool{false, true} {
		for _, zeroed := range []bool{false, true} {
			t.Run(fmt.Sprintf("sink %v, zeroed %v", sinks, zeroed), func(t *testing.T) {
				dev := newDevice(t)
				w := autograd.FromSlice(dev, []float64{3, 4, 0, 1}, 2, 2).RequireGrad()
				if sinks {
					newSink(w, "", nil)
				}
				mustBackward(t, autograd.Sum(autograd.Mul(w, w))) // 2w
				g := w.Grad()
				first := read(t, g)
				var want []float64
				add := func(grad ...float64) {
					for i := range grad {
						want[i] += grad[i]
					}
				}
				want = slices.Clone(first)
				var s *autograd.Variable
				s = autograd.Sum(autograd.Add(autograd.Mul(w, g), autograd.Mul(w, autograd.Reshape(g, 2, 2)))) // 2g
				s = autograd.Add(s, autograd.Sum(autograd.MatMul(g, w)))                                       // gᵀ·1
				if zeroed {
					w.ZeroGrad()
					clear(want)
				}
				mustBackward(t, s)
				add(times(2, first)...)
				add(first[0]+first[2], first[0]+first[2], first[1]+first[3], first[1]+first[3])
				near(t, "gradient", read(t, w.Grad()), want, 0)
			})
		}
	}
}

// If an operation has no memory to copy a gradient, its result has the error.
func TestAGradientThatCannotBeCopied(t *testing.T) {
	boom := errors.New("boom")
	dev := newFaulty(t, boom)
	w := autograd.FromSlice(dev, []float64{3, 4}).RequireGrad()
	mustBackward(t, autograd.Sum(autograd.Mul(w, w)))
	g := w.Grad()
	dev.alloc = 1
	y := autograd.Sum(autograd.Mul(w, g))
	if err := y.Backward(nil); !errors.Is(err, boom) || !strings.Contains(err.Error(), "copy of") {
		t.Errorf("got %v", err)
	}
	if !errors.Is(w.GradErr(), boom) {
		t.Errorf("the gradient's error is %v", w.GradErr())
	}
}

// negation is a Function that is not a Saver.
type negation struct{}

func (negation) Name() string                         { return "negation" }
func (negation) Shape(in []device.Shape) device.Shape { return in[0] }
func (negation) Forward(c *autograd.Call) error {
	return c.Kernels.(kernels.Kernels).Unary(c.Stream, kernels.Neg, c.Out, c.In[0])
}
func (negation) Backward(c *autograd.Call, _ int, dst device.Tensor, acc device.Accum, g device.Tensor) error {
	acc.Alpha = -acc.Alpha
	return c.Kernels.Axpby(c.Stream, dst, acc, g)
}

// saver is a Saver.
type saver struct{ negation }

func (saver) Saves(_, _ int) bool { return false }

// All operands of a program's own operation are guarded, unless it is a Saver.
func TestSaver(t *testing.T) {
	dev := newDevice(t)
	w := autograd.Scalar(dev, 1).RequireGrad()
	y := autograd.Apply(negation{}, w)
	w.BumpVersion()
	panics[*autograd.ModifiedError](t, func() { y.Backward(nil) })
	y = autograd.Apply(negation{}, w)
	y.BumpVersion()
	if err := panics[*autograd.ModifiedError](t, func() { y.Backward(nil) }); err.Variable != y.String() {
		t.Errorf("got %v", err)
	}
	y = autograd.Apply(saver{}, w)
	w.BumpVersion()
	y.BumpVersion()
	mustBackward(t, y)
}
