package nn_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/cpu"
	"github.com/goddp/goddp/nn"
)

// Layers apply the operations of package autograd with their options and PyTorch's defaults.
func TestLayersApplyTheirOperations(t *testing.T) {
	dev := newDevice(t, cpu.Options{})
	x := autograd.FromSlice(dev, input(rand.New(rand.NewPCG(1, 2)), -1, 1, 2, 4, 6, 7).Numbers, 2, 4, 6, 7)
	type op = func(x, w, b *autograd.Variable) *autograd.Variable
	f64 := nn.NormOptions{DType: device.Float64}
	all := nn.ConvOptions{
		Stride: 2, Padding: 1, Dilation: 2, Groups: 2, DType: device.Float64, Height: &nn.ConvHeight{Kernel: 2, Stride: 3, Padding: 2, Dilation: 1},
	}
	for name, c := range map[string]struct {
		layer nn.Module
		want  op
	}{
		"Conv2d": {nn.Conv2d(4, 3, 2, &nn.ConvOptions{DType: device.Float64}), func(x, w, b *autograd.Variable) *autograd.Variable {
			return autograd.Conv2d(x, w, b, &autograd.Conv2dOptions{})
		}},
		"Conv2d with options": {nn.Conv2d(4, 6, 3, &all), func(x, w, b *autograd.Variable) *autograd.Variable {
			return autograd.Conv2d(x, w, b, &autograd.Conv2dOptions{Stride: [2]int{3, 2}, Padding: [2]int{2, 1}, Dilation: [2]int{1, 2}, Groups: 2})
		}},
		"MaxPool2d": {nn.MaxPool2d(2, nil), func(x, _, _ *autograd.Variable) *autograd.Variable {
			return autograd.MaxPool2d(x, [2]int{2, 2}, &autograd.Pool2dOptions{Stride: [2]int{2, 2}})
		}},
		"MaxPool2d with options": {nn.MaxPool2d(3, &nn.PoolOptions{Stride: 1, Padding: 1, Dilation: 2, CeilMode: true}), func(x, _, _ *autograd.Variable) *autograd.Variable {
			return autograd.MaxPool2d(x, [2]int{3, 3}, &autograd.Pool2dOptions{Stride: [2]int{1, 1}, Padding: [2]int{1, 1}, Dilation: [2]int{2, 2}, Ceil: true})
		}},
		"AvgPool2d": {nn.AvgPool2d(2, &nn.PoolOptions{Padding: 1, ExcludePadding: true, ChannelsLast: true}), func(x, _, _ *autograd.Variable) *autograd.Variable {
			return autograd.AvgPool2d(x, [2]int{2, 2}, &autograd.Pool2dOptions{Stride: [2]int{2, 2}, Padding: [2]int{1, 1}, ExcludePadding: true, ChannelsLast: true})
		}},
		"AdaptiveAvgPool2d": {nn.AdaptiveAvgPool2d(1, 3, nil), func(x, _, _ *autograd.Variable) *autograd.Variable { return autograd.AdaptiveAvgPool2d(x, 1, 3, nil) }},
		"Flatten":           {nn.Flatten(), func(x, _, _ *autograd.Variable) *autograd.Variable { return autograd.Reshape(x, 2, 4*6*7) }},
		"LayerNorm": {nn.LayerNorm(7, &f64), func(x, w, b *autograd.Variable) *autograd.Variable {
			return autograd.LayerNorm(x, []int{7}, w, b, 1e-5)
		}},
		"LayerNormOver": {nn.LayerNormOver([]int{6, 7}, &f64), func(x, w, b *autograd.Variable) *autograd.Variable {
			return autograd.LayerNorm(x, []int{6, 7}, w, b, 1e-5)
		}},
		"RMSNorm":   {nn.RMSNorm(7, &f64), func(x, w, _ *autograd.Variable) *autograd.Variable { return autograd.RMSNorm(x, []int{7}, w, 0x1p-52) }},
		"GroupNorm": {nn.GroupNorm(2, 4, &f64), func(x, w, b *autograd.Variable) *autograd.Variable { return autograd.GroupNorm(x, 2, w, b, 1e-5) }},
		"BatchNorm2d": {nn.BatchNorm2d(4, &f64), func(x, w, b *autograd.Variable) *autograd.Variable {
			return autograd.BatchNorm(x, w, b, &autograd.BatchNormOptions{Eps: 1e-5})
		}},
		"Linear": {nn.Linear(7, 3, &nn.LinearOptions{DType: device.Float64}), func(x, w, b *autograd.Variable) *autograd.Variable {
			return autograd.Add(autograd.MatMulT(x, false, w, true), b)
		}},
	} {
		if err := nn.Place(c.layer, dev, 3); err != nil {
			t.Fatal(err)
		}
		var vars [2]*autograd.Variable
		for i, p := range c.layer.Parameters() {
			vars[i] = p.Var()
			if i == 0 && p.Shape().Len() < 50 { // scales that are not all 1
				for j, data := 0, device.Elements[float64](p.Var().Tensor()); j < len(data); j++ {
					data[j] += float64(j)
				}
			}
		}
		near(t, name, read(t, c.layer.Forward(x)), read(t, c.want(x, vars[0], vars[1])), 1e-14)
	}
	conv := nn.Conv2d(4, 60, 3, &nn.ConvOptions{Groups: 2, DType: device.Float64})
	if err := nn.Place(conv, dev, 3); err != nil {
		t.Fatal(err)
	}
	for _, p := range conv.Parameters() {
		bound := 1 / math.Sqrt(2*3*3)
		if v := read(t, p.Var()); slices.Max(v) > bound || slices.Min(v) < -bound || slices.Max(v) < 0.9*bound {
			t.Errorf("%v starts between %v and %v, want ±%v", p, slices.Min(v), slices.Max(v), bound)
		}
	}
}
