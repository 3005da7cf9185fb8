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

// eachFailure lets each allocation and each kernel of a step fail in turn: those of the forward pass and of the
// backward pass, or of the backward pass alone. Then Backward and the observer get the error, nothing leaks, GradErr
// returns an error, and the next step is correct. It wants least failures of each kind.
func eachFailure(t *testing.T, dev *faulty, leaves variables, seen *watcher, inForward bool, least int, forward func() *autograd.Variable) {
	t.Helper()
	zero := func() {
		for _, v := range leaves {
			v.ZeroGrad()
		}
	}
	clean := func() (grads []float64, use int64) {
		t.Helper()
		zero()
		mustBackward(t, forward())
		for _, v := range leaves {
			grads = append(grads, read(t, v.Grad())...)
		}
		return grads, dev.Memory().InUse
	}
	clean() // allocates the leaves' gradients
	want, use := clean()
	for what, n := range map[string]*int{"allocation": &dev.alloc, "kernel": &dev.kernel} {
		failed := 0
		for nth := 1; ; nth++ {
			zero()
			dev.failures, seen.ended = 0, nil
			if inForward {
				*n = nth
			}
			loss := forward()
			if !loss.Shape().Equal(device.Shape{}) || loss.DType() != device.Float64 {
				t.Fatalf("the loss is %v", loss)
			}
			if !inForward {
				*n = nth
			}
			err := loss.Backward(nil)
			*n = 0
			if dev.failures == 0 {
				break
			}
			failed++
			at := fmt.Sprintf("%s %d failed", what, nth)
			if !errors.Is(err, dev.err) || !slices.Equal(seen.ended, []error{err}) {
				t.Errorf("%s: Backward returned %v and told the observer %v", at, err, seen.ended)
			}
			for _, v := range leaves {
				if !errors.Is(v.GradErr(), dev.err) {
					t.Errorf("%s: a gradient has the error %v", at, v.GradErr())
				}
			}
			got, now := clean()
			near(t, at+", the next step's gradients", got, want, 0)
			if now != use || leaves[0].GradErr() != nil {
				t.Errorf("%s: in the next step %d bytes in use, want %d, error %v", at, now, use, leaves[0].GradErr())
			}
		}
		if failed < least {
			t.Errorf("only %d %ss of a step", failed, what)
		}
	}
}

func TestBackwardReturnsAnyFailure(t *testing.T) {
	dev := newFaulty(t, errors.New("boom"))
	x := autograd.FromSlice(dev, []float64{1, -2, 3, 0.5, 1, 1}, 2, 3)
	w := autograd.FromSlice(dev, []float64{1, 2, -1, 0.1, 0.2, 0.3}, 2, 3).RequireGrad()
	b := autograd.FromSlice(dev, []float64{0.1, 0.2}).RequireGrad()
	seen := &watcher{}
	eachFailure(t, dev, variables{w, b}, seen, true, 10, func() *autograd.Variable {
		h := autograd.LinearReLU(x, w, b)
		return autograd.Observe(autograd.Mean(autograd.Div(autograd.Mul(h, h), autograd.Exp(h))), seen)
	})
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
