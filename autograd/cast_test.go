package autograd_test

import (
	"slices"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
)

// typed returns a leaf of type dt with data rounded to it.
func typed(t *testing.T, dev device.Device, dt device.DType, data ...float64) *autograd.Variable {
	t.Helper()
	v := autograd.Zeros(dev, dt, len(data))
	if err := dev.Kernels().Copy(dev.Compute(), v.Tensor(), device.HostTensor(data, device.Invalid)); err != nil {
		t.Fatal(err)
	}
	return v
}

// Cast rounds values in the forward pass and gradients in the backward pass.
func TestCast(t *testing.T) {
	dev := newDevice(t)
	fine := []float64{1 + 0x1p-8 + 0x1p-20, -3.14159}
	for _, c := range []struct {
		from, to device.DType
		y, grad  []float64
	}{
		{device.Float32, device.BFloat16, []float64{1 + 0x1p-7, -3.140625}, []float64{1 + 0x1p-7, 0x1p-24}},
		{device.Float32, device.Float16, []float64{1 + 0x1p-8, -3.140625}, []float64{1 + 0x1p-8, 0x1p-24}},
		{device.BFloat16, device.Float32, []float64{1 + 0x1p-7, -3.140625}, []float64{1 + 0x1p-7, 0x1p-24}},
		{device.BFloat16, device.Float16, []float64{1 + 0x1p-7, -3.140625}, []float64{1, 0x1p-24}}, // by way of 1 + 1/256, a tie
		{device.Float16, device.Float64, []float64{1 + 0x1p-8, -3.140625}, []float64{1 + 0x1p-8, 0x1p-24}},
		{device.Float64, device.Float32, []float64{1 + 0x1p-8 + 0x1p-20, float64(float32(-3.14159))}, []float64{1 + 0x1p-8 + 0x1p-20, 0x1p-24}},
	} {
		x := typed(t, dev, c.from, fine...).RequireGrad()
		y := autograd.Cast(x, c.to)
		if y.DType() != c.to || !slices.Equal(read(t, y), c.y) {
			t.Errorf("%v to %v: %v, want %v", c.from, c.to, read(t, y), c.y)
		}
		g := autograd.FromSlice(dev, []float64{1 + 0x1p-8 + 0x1p-20, 0x1p-24})
		// The gradient of y is g rounded to y's type.
		mustBackwardFrom(t, autograd.Cast(y, device.Float64), g)
		if got := x.Grad(); got.DType() != c.from || !slices.Equal(read(t, got), c.grad) {
			t.Errorf("%v to %v: the gradient is %v %v, want %v", c.from, c.to, got.DType(), read(t, got), c.grad)
		}
	}
	x := typed(t, dev, device.Float32, 1)
	if autograd.Cast(x, device.Float32) != x {
		t.Error("a variable of the type already is another one")
	}
	panics[*device.DTypeError](t, func() { autograd.Cast(x, device.Int64) })
	panics[*device.DTypeError](t, func() { autograd.Cast(autograd.FromSlice(dev, []int64{1}), device.Float32) })
}

// A 16-bit leaf rounds each sum of gradients once, and the factor of a sink along with the last sum.
func TestCastAccumulates(t *testing.T) {
	dev := newDevice(t)
	x := typed(t, dev, device.BFloat16, 1).RequireGrad()
	third := autograd.FromSlice(dev, []float32{0x1.8p-9})
	wide := autograd.Cast(x, device.Float32)
	// 1·0x1.8p-9 is added to 1: the sum, 1.0029, is nearer to 1 than to 1 + 1/128.
	again := autograd.Cast(x, device.Float32)
	if err := autograd.Sum(autograd.Add(autograd.Mul(wide, third), again)).Backward(nil); err != nil {
		t.Fatal(err)
	}
	if got := x.Grad().Item(); got != 1 {
		t.Errorf("1 + 0.0029 became %v, want 1", got)
	}

	for _, to := range []device.DType{device.Float32, device.Float16} {
		x := typed(t, dev, device.BFloat16, 1).RequireGrad()
		s := newSink(x, "x", nil)
		s.scale = 1. / 3
		for pass := range 2 { // the second pass adds to the gradient of the first
			if err := autograd.Sum(autograd.Cast(autograd.Cast(x, to), device.Float32)).Backward(nil); err != nil {
				t.Fatal(err)
			}
			want := []float64{0.333984375, 0.4453125}[pass] // (0 + 1)/3, then (0.333984375 + 1)/3, in bfloat16
			if got := x.Grad().Item(); got != want {
				t.Errorf("through %v, pass %d: %v, want %v", to, pass, got, want)
			}
		}
	}

	// A sink with a factor, of a float32 leaf.
	y := typed(t, dev, device.Float32, 1).RequireGrad()
	newSink(y, "y", nil).scale = 1. / 3
	if err := autograd.Sum(autograd.Cast(autograd.Cast(y, device.BFloat16), device.Float32)).Backward(nil); err != nil {
		t.Fatal(err)
	}
	if got := y.Grad().Item(); got != float64(float32(1)/3) {
		t.Errorf("a third is %v", got)
	}
}

func mustBackwardFrom(t *testing.T, v, g *autograd.Variable) {
	t.Helper()
	if err := v.Backward(&autograd.BackwardOptions{Gradient: g}); err != nil {
		t.Fatal(err)
	}
}
