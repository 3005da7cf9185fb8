package autograd_test

import (
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
)

// Each product counts two operations for each element of the result and term of its sum, forward and for each operand that
// needs a gradient. What is computed again does not count, nor what is masked.
func TestOperations(t *testing.T) {
	dev := newDevice(t)
	of := func(needsGrad bool, shape ...int) *autograd.Variable {
		v := autograd.FromSlice(dev, make([]float32, device.Shape(shape).Len()), shape...)
		if needsGrad {
			return v.RequireGrad()
		}
		return v
	}
	x := func(shape ...int) *autograd.Variable { return of(false, shape...) }
	w := func(shape ...int) *autograd.Variable { return of(true, shape...) }
	const product = 2 * 3 * 4 * 5 // 3 rows, 4 terms, 5 results
	label := autograd.FromSlice(dev, []int64{1, 1, 2}, 3)
	ignored := int64(1)
	for name, c := range map[string]struct {
		f    func() *autograd.Variable
		want float64
	}{
		"MatMul":        {func() *autograd.Variable { return autograd.MatMul(x(3, 4), w(4, 5)) }, 2 * product},
		"both operands": {func() *autograd.Variable { return autograd.MatMul(w(3, 4), w(4, 5)) }, 3 * product},
		"transposed":    {func() *autograd.Variable { return autograd.MatMulT(w(2, 4, 3), true, w(5, 4), true) }, 2 * 3 * product},
		"Linear":        {func() *autograd.Variable { return autograd.LinearReLU(w(3, 4), w(5, 4), w(5)) }, 3 * product},
		"frozen":        {func() *autograd.Variable { return autograd.Linear(w(3, 4), x(5, 4), w(5)) }, 2 * product},
		"Linears": {func() *autograd.Variable {
			y := autograd.Linears(w(3, 4), []*autograd.Variable{w(5, 4), w(5, 4)}, []*autograd.Variable{nil, w(5)})
			return autograd.Add(y[0], y[1])
		}, 2 * 3 * product},
		"FeedForward": {func() *autograd.Variable {
			return autograd.FeedForward(w(3, 4), w(5, 4), w(5), w(4, 5), nil, &autograd.FeedForwardOptions{Recompute: true})
		}, 2 * 3 * product},
		"LowRankLinear": {func() *autograd.Variable { return autograd.LowRankLinear(w(3, 4), x(5, 4), nil, w(1, 4), w(5, 1), 1) }, 2*product + 3*2*3*4 + 3*2*3*5},
		"Conv2d": {func() *autograd.Variable {
			return autograd.Conv2d(w(2, 4, 6, 6), w(8, 2, 3, 3), w(8), &autograd.Conv2dOptions{Groups: 2})
		}, 3 * 2 * (2 * 8 * 4 * 4) * (2 * 3 * 3)},
		"attention": {func() *autograd.Variable {
			return autograd.ScaledDotProductAttention(w(2, 4, 6, 8), w(2, 2, 3, 8), w(2, 2, 3, 8), nil)
		}, 6 * 2 * 2 * 4 * 8 * (6 * 3)},
		"causal": {func() *autograd.Variable {
			return autograd.PackedAttention(w(2, 5, 4*8), 2, 1, &autograd.AttentionOptions{Causal: true})
		}, 6 * 2 * 2 * 2 * 8 * (1 + 2 + 3 + 4 + 5)},
		"window": {func() *autograd.Variable {
			return autograd.PackedAttention(w(2, 5, 4*8), 2, 1, &autograd.AttentionOptions{Causal: true, Window: 2})
		}, 6 * 2 * 2 * 2 * 8 * (1 + 2 + 2 + 2 + 2)},
		"loss": {func() *autograd.Variable { return autograd.LinearCrossEntropyLoss(w(3, 4), w(5, 4), label, nil) }, 3 * product},
		"ignored labels": {func() *autograd.Variable {
			return autograd.LinearCrossEntropyLoss(w(3, 4), w(5, 4), label, &autograd.LinearLossOptions{IgnoreIndex: &ignored})
		}, product},
		"Checkpoint": {func() *autograd.Variable {
			m := w(5, 4)
			return autograd.Checkpoint(func(x *autograd.Variable) *autograd.Variable { return autograd.Linear(x, m, nil) }, w(3, 4))
		}, 3 * product},
		"no product": {func() *autograd.Variable { return autograd.Mul(w(3, 4), w(3, 4)) }, 0},
	} {
		before := autograd.Operations(dev, device.Float32)
		if err := autograd.Sum(c.f()).Backward(nil); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got := autograd.Operations(dev, device.Float32) - before; got != c.want {
			t.Errorf("%s: %v operations, want %v", name, got, c.want)
		}
	}
}
