package autograd_test

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
)

// Whichever allocation or kernel of a step fails, Backward and the observer get the error, nothing leaks,
// GradErr returns an error, and the next step is correct.
func TestBackwardReturnsAnyFailure(t *testing.T) {
	boom := errors.New("boom")
	dev := newFaulty(t, boom)
	x := autograd.FromSlice(dev, []float64{1, -2, 3, 0.5, 1, 1}, 2, 3)
	w := autograd.FromSlice(dev, []float64{1, 2, -1, 0.1, 0.2, 0.3}, 2, 3).RequireGrad()
	b := autograd.FromSlice(dev, []float64{0.1, 0.2}).RequireGrad()
	seen := &watcher{}
	forward := func() *autograd.Variable {
		h := autograd.LinearReLU(x, w, b)
		return autograd.Observe(autograd.Mean(autograd.Div(autograd.Mul(h, h), autograd.Exp(h))), seen)
	}
	clean := func() (grads []float64, use int64) {
		t.Helper()
		w.ZeroGrad()
		b.ZeroGrad()
		mustBackward(t, forward())
		return slices.Concat(read(t, w.Grad()), read(t, b.Grad())), dev.Memory().InUse
	}
	clean() // allocates the leaves' gradients
	want, use := clean()

	for what, n := range map[string]*int{"allocation": &dev.alloc, "kernel": &dev.kernel} {
		failed := 0
		for nth := 1; ; nth++ {
			w.ZeroGrad()
			b.ZeroGrad()
			dev.failures, seen.ended = 0, nil
			*n = nth
			loss := forward()
			if !loss.Shape().Equal(device.Shape{}) || loss.DType() != device.Float64 {
				t.Fatalf("the loss is %v", loss)
			}
			err := loss.Backward()
			*n = 0
			if dev.failures == 0 {
				break
			}
			failed++
			at := fmt.Sprintf("%s %d failed", what, nth)
			if !errors.Is(err, boom) || !slices.Equal(seen.ended, []error{err}) {
				t.Errorf("%s: Backward returned %v and told the observer %v", at, err, seen.ended)
			}
			if !errors.Is(w.GradErr(), boom) || !errors.Is(b.GradErr(), boom) {
				t.Errorf("%s: gradients have errors %v and %v", at, w.GradErr(), b.GradErr())
			}
			got, now := clean()
			near(t, at+", the next step's gradients", got, want, 0)
			if now != use || w.GradErr() != nil {
				t.Errorf("%s: in the next step %d bytes in use, want %d, error %v", at, now, use, w.GradErr())
			}
		}
		if failed < 10 {
			t.Errorf("only %d %ss of a step", failed, what)
		}
	}
}

// A value that could not be computed has a shape, and all values computed from it have its error.
func TestErrorsPropagateToResults(t *testing.T) {
	boom := errors.New("boom")
	dev := newFaulty(t, boom)
	dev.alloc = 1
	x := autograd.FromSlice(dev, []float32{1, 2})
	y := autograd.Reshape(autograd.Sum(autograd.Exp(x), 1), 1, 1)
	if !y.Shape().Equal(device.Shape{1, 1}) {
		t.Errorf("shape %v, want [1 1]", y.Shape())
	}
	if _, err := y.TryItem(t.Context()); !errors.Is(err, boom) || !errors.Is(y.Err(), boom) {
		t.Errorf("errors %v and %v, want %v", err, y.Err(), boom)
	}
	if !math.IsNaN(y.Item()) {
		t.Errorf("item %v, want NaN", y.Item())
	}
	if _, err := y.Bytes(t.Context()); !errors.Is(err, boom) {
		t.Errorf("Bytes: %v", err)
	}
	if z := autograd.Exp(autograd.Scalar(dev, 0)); z.Item() != 1 {
		t.Error("a failure reached what does not depend on it")
	}
}
