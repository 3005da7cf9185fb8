package autograd_test

import (
	"math"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
)

// movementCases returns the gradient tests of operations that move or select elements.
func movementCases() []gradCase {
	index := func(x *autograd.Variable, at []int64, shape ...int) *autograd.Variable {
		return autograd.FromSlice(x.Device(), at, shape...)
	}
	mask := func(x *autograd.Variable, m []uint8, shape ...int) *autograd.Variable {
		return autograd.FromSlice(x.Device(), m, shape...)
	}
	one := func(name string, f func(x *autograd.Variable) *autograd.Variable, shape ...int) gradCase {
		return gradCase{name, []device.Shape{shape}, -2, 2, func(in variables) *autograd.Variable { return f(in[0]) }}
	}
	return []gradCase{
		one("Reshape", func(x *autograd.Variable) *autograd.Variable { return autograd.Reshape(x, 4, -1) }, 2, 3, 2),
		one("Flatten", func(x *autograd.Variable) *autograd.Variable { return autograd.Flatten(x, 1) }, 2, 3, 2),
		one("Permute", func(x *autograd.Variable) *autograd.Variable { return autograd.Permute(x, 2, 0, -2) }, 2, 3, 4),
		one("Transpose", func(x *autograd.Variable) *autograd.Variable { return autograd.Transpose(x, 1, -1) }, 2, 3, 4),
		one("Slice, a view", func(x *autograd.Variable) *autograd.Variable { return autograd.Slice(x, 0, 1, -1, 1) }, 4, 3),
		one("Slice", func(x *autograd.Variable) *autograd.Variable { return autograd.Slice(x, -1, 1, 3, 1) }, 2, 4),
		one("Slice", func(x *autograd.Variable) *autograd.Variable { return autograd.Slice(x, 0, 1, math.MaxInt, 2) }, 6, 2),
		one("Slice twice", func(x *autograd.Variable) *autograd.Variable {
			return autograd.Mul(autograd.Slice(x, 1, 0, 3, 1), autograd.Slice(x, 1, 2, 5, 1))
		}, 2, 5),
		one("Expand", func(x *autograd.Variable) *autograd.Variable { return autograd.Expand(x, 2, 3, 4) }, 3, 1),
		{"Concat", []device.Shape{{2, 3}, {2, 1}, {2, 2}}, -2, 2, func(in variables) *autograd.Variable { return autograd.Concat(1, in...) }},
		{"Concat of one twice", []device.Shape{{2, 3}}, -2, 2, func(in variables) *autograd.Variable { return autograd.Concat(-2, in[0], in[0]) }},
		{"Stack", []device.Shape{{2, 3}, {2, 3}}, -2, 2, func(in variables) *autograd.Variable { return autograd.Stack(-1, in...) }},
		one("IndexSelect", func(x *autograd.Variable) *autograd.Variable {
			return autograd.IndexSelect(x, 1, index(x, []int64{2, 0, 2, 2}))
		}, 2, 3, 2),
		one("Embedding", func(x *autograd.Variable) *autograd.Variable {
			return autograd.Embedding(x, index(x, []int64{4, 1, 4, 0, 1, 4}, 2, 3), -1)
		}, 5, 3),
		one("Gather", func(x *autograd.Variable) *autograd.Variable {
			return autograd.Gather(x, -1, index(x, []int64{0, 0, 3, 1, 3, 3}, 3, 2))
		}, 3, 4),
		one("Gather of a part", func(x *autograd.Variable) *autograd.Variable {
			return autograd.Gather(x, 0, index(x, []int64{2, 1, 2, 2, 0, 0}, 3, 2))
		}, 3, 4),
		{"Where", []device.Shape{{2, 3}, {3}}, -2, 2, func(in variables) *autograd.Variable {
			return autograd.Where(mask(in[0], []uint8{1, 0}, 2, 1), in[0], in[1])
		}},
		{"Where of numbers", []device.Shape{{}, {2, 1}}, -2, 2, func(in variables) *autograd.Variable {
			return autograd.Where(mask(in[0], []uint8{1, 0, 0, 1, 1, 0}, 2, 3), in[0], in[1])
		}},
		one("MaskedFill", func(x *autograd.Variable) *autograd.Variable {
			return autograd.MaskedFill(x, mask(x, []uint8{0, 1, 1}), -7)
		}, 2, 3),
		one("Max", func(x *autograd.Variable) *autograd.Variable { return autograd.Max(x) }, 2, 3),
		one("Max over an axis", func(x *autograd.Variable) *autograd.Variable { return autograd.Max(x, 2, 1, 4) }, 2, 3, 4),
		one("Min over two axes", func(x *autograd.Variable) *autograd.Variable { return autograd.Min(x, 1, 3, 1) }, 2, 3, 4),
	}
}

// Equal largest elements share the gradient of a Max equally, as in PyTorch.
func TestTiesShareTheGradientOfMax(t *testing.T) {
	x := autograd.FromSlice(newDevice(t), []float64{2, 1, 2, 0}).RequireGrad()
	mustBackward(t, autograd.Sub(autograd.Max(x), autograd.Min(x)))
	near(t, "gradient", read(t, x.Grad()), []float64{0.5, 0, 0.5, -1}, 0)
}

// A slice of leading rows and a Reshape share x's memory; other slices do not.
func TestViewsShareMemory(t *testing.T) {
	dev := newDevice(t)
	x := autograd.FromSlice(dev, []float32{0, 1, 2, 3, 4, 5}, 3, 2)
	memory := device.Elements[float32](x.Tensor())
	for name, c := range map[string]struct {
		y      *autograd.Variable
		at     int // the index in x of y's first element
		shared bool
	}{
		"Reshape":       {autograd.Reshape(x, 2, -1), 0, true},
		"Flatten":       {autograd.Flatten(x, 0), 0, true},
		"leading rows":  {autograd.Slice(x, 0, 1, math.MaxInt, 1), 2, true},
		"part of a row": {autograd.Slice(autograd.Slice(x, 0, 1, 2, 1), 1, 1, 2, 1), 3, true},
		"columns":       {autograd.Slice(x, 1, 1, 2, 1), 1, false},
		"a vast step":   {autograd.Slice(x, 0, 0, 3, math.MaxInt), 0, true},
		"every other":   {autograd.Slice(x, 0, 0, 3, 2), 0, false},
	} {
		first := &device.Elements[float32](c.y.Tensor())[0]
		if got := first == &memory[c.at]; got != c.shared {
			t.Errorf("%s: shares x's memory: %v, want %v", name, got, c.shared)
		}
	}
}
