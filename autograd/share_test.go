package autograd_test

import (
	"slices"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
)

// same is the identity. It records the memory of the gradient that it receives.
type same struct{ gradient *uintptr }

func (same) Name() string                         { return "same" }
func (same) Shape(in []device.Shape) device.Shape { return in[0] }
func (same) Saves(_, _ int) bool                  { return false }
func (same) Forward(c *autograd.Call) error       { return c.Kernels.Copy(c.Stream, c.Out, c.In[0]) }
func (f same) Backward(c *autograd.Call, _ int, dst device.Tensor, acc device.Accum, g device.Tensor) error {
	*f.gradient = g.Buf.Addr()
	return c.Kernels.Axpby(c.Stream, dst, acc, g)
}

// overwriting is the identity. Its Prepare overwrites the gradient of its result.
type overwriting struct{ same }

func (overwriting) Prepare(c *autograd.Call, g device.Tensor) error {
	return c.Kernels.Fill(c.Stream, g, 100)
}

// The terms of a sum, and the operand of a Reshape, get the memory of the result's gradient.
func TestGradientsArePassedOnWithoutACopy(t *testing.T) {
	dev := newDevice(t)
	var at [4]uintptr
	f := func(i int, x *autograd.Variable) *autograd.Variable { return autograd.Apply(same{&at[i]}, x) }
	x := autograd.FromSlice(dev, []float64{1, 2, 3, 4}, 2, 2).RequireGrad()
	y := f(3, autograd.Reshape(autograd.Add(autograd.Sub(f(0, x), f(1, x)), f(2, x)), 4))
	if err := autograd.Sum(y).Backward(nil); err != nil {
		t.Fatal(err)
	}
	if at[0] != at[2] || at[0] == at[1] || at[0] == 0 {
		t.Errorf("the gradients of the terms are at %#x, want the first and the third at one place, and the second, which has another sign, elsewhere", at[:3])
	}
	if got := x.Grad(); !slices.Equal(read(t, got), []float64{1, 1, 1, 1}) {
		t.Errorf("gradient %v", read(t, got))
	}
}

// The block of a transformer and that of a ResNet pass the gradient of x + f(x) on to both terms without a copy.
func TestResidualGradientsAreNotCopied(t *testing.T) {
	for name, f := range map[string]func(x, w *autograd.Variable) *autograd.Variable{
		"Linear":      func(x, w *autograd.Variable) *autograd.Variable { return autograd.Linear(x, w, nil) },
		"FeedForward": func(x, w *autograd.Variable) *autograd.Variable { return autograd.FeedForward(x, w, nil, w, nil, nil) },
		"BatchNorm": func(x, w *autograd.Variable) *autograd.Variable {
			return autograd.BatchNorm(x, nil, nil, &autograd.BatchNormOptions{Eps: 1})
		},
	} {
		dev := newFaulty(t, nil)
		x := autograd.FromSlice(dev, []float64{1, -2, 3, 5, 4, -6}, 2, 3).RequireGrad()
		w := autograd.FromSlice(dev, []float64{1, 2, 3, -4, 5, 6, 7, -8, 9}, 3, 3).RequireGrad()
		h := autograd.MulScalar(x, 1)
		y := autograd.Add(h, f(autograd.MulScalar(h, 1), w))
		loss := autograd.Sum(autograd.Mul(y, y))
		dev.copies = 0
		mustBackward(t, loss)
		if dev.copies != 0 {
			t.Errorf("%s: the pass made %d copies", name, dev.copies)
		}
	}
}

// A gradient that several results share is copied before one of them changes its own.
func TestSharedGradientsDoNotChange(t *testing.T) {
	dev := newDevice(t)
	var at uintptr
	for _, c := range []struct {
		name string
		loss func(x *autograd.Variable) *autograd.Variable
		want float64
	}{
		// b is made before the product, so the pass adds the product's gradient to a's before it reads b's.
		{"another use adds", func(x *autograd.Variable) *autograd.Variable {
			b := autograd.MulScalar(x, 2)
			a := autograd.MulScalar(x, 3)
			product := autograd.MulScalar(a, 10)
			return autograd.Add(autograd.Sum(autograd.Add(a, b)), autograd.Sum(product))
		}, 3 + 2 + 30},
		{"Prepare overwrites", func(x *autograd.Variable) *autograd.Variable {
			b := autograd.MulScalar(x, 2)
			a := autograd.Apply(overwriting{same{&at}}, x)
			return autograd.Sum(autograd.Add(a, b))
		}, 100 + 2},
		{"a sum of one variable with itself", func(x *autograd.Variable) *autograd.Variable {
			a := autograd.MulScalar(x, 3)
			return autograd.Sum(autograd.Add(a, autograd.Add(a, a)))
		}, 9},
		{"a normalisation adds", func(x *autograd.Variable) *autograd.Variable {
			b := autograd.MulScalar(x, 2)
			a := autograd.MulScalar(x, 3)
			normed := autograd.LayerNorm(a, []int{2}, nil, nil, 1)
			return autograd.Add(autograd.Sum(autograd.Add(a, b)), autograd.Sum(normed)) // the sum of normed is constant
		}, 3 + 2},
	} {
		x := autograd.FromSlice(dev, []float64{1, 2, 3, 5}, 2, 2).RequireGrad()
		loss := c.loss(x)
		for range 2 { // the second pass finds no sharers of the first
			x.ZeroGrad()
			if err := loss.Backward(&autograd.BackwardOptions{RetainGraph: true}); err != nil {
				t.Fatal(err)
			}
			for _, v := range read(t, x.Grad()) {
				if v < c.want-1e-12 || v > c.want+1e-12 {
					t.Errorf("%s: gradient %v, want %v", c.name, v, c.want)
				}
			}
		}
	}
}
