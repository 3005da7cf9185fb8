package nn_test

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/cpu"
	"github.com/goddp/goddp/nn"
)

// A BatchNorm has PyTorch's state, updates its running moments in training, and uses them in evaluation.
func TestBatchNorm(t *testing.T) {
	dev := newDevice(t, cpu.Options{})
	l := nn.BatchNorm1d(1, &nn.NormOptions{Momentum: 0.5})
	net := nn.Sequential(l)
	if err := nn.Place(net, dev, 1); err != nil {
		t.Fatal(err)
	}
	if got, want := describe(net.Parameters()), []string{"0.weight float32[1]", "0.bias float32[1]"}; !slices.Equal(got, want) {
		t.Errorf("parameters %q, want %q", got, want)
	}
	if got, want := describe(net.Buffers()), []string{"0.running_mean float32[1]", "0.running_var float32[1]", "0.num_batches_tracked int64[]"}; !slices.Equal(got, want) {
		t.Errorf("buffers %q, want %q", got, want)
	}
	x := autograd.FromSlice(dev, []float32{1, 3, 5}, 3, 1)
	y := read(t, net.Forward(x))
	if want := 2 / math.Sqrt(8./3+1e-5); math.Abs(y[2]-want) > 1e-6 || math.Abs(y[0]+want) > 1e-6 || y[1] != 0 {
		t.Errorf("in training %v, want ±%v and 0", y, want)
	}
	state := func() [3]float64 {
		return [3]float64{l.RunningMean.Var().Item(), l.RunningVar.Var().Item(), l.NumBatchesTracked.Var().Item()}
	}
	if got, want := state(), [3]float64{1.5, 2.5, 1}; got != want { // the unbiased variance is 4
		t.Errorf("running moments and batches are %v, want %v", got, want)
	}
	net.Forward(autograd.Zeros(dev, device.Float32, 0, 1)) // an empty batch counts, as in PyTorch, but has no moments
	if got, want := state(), [3]float64{1.5, 2.5, 2}; got != want {
		t.Errorf("after an empty batch running moments and batches are %v, want %v", got, want)
	}
	nn.Eval(net)
	y = read(t, net.Forward(x))
	if want := (5 - 1.5) / math.Sqrt(2.5+1e-5); math.Abs(y[2]-want) > 1e-6 {
		t.Errorf("in evaluation %v, want %v", y[2], want)
	}
	if got, want := state(), [3]float64{1.5, 2.5, 2}; got != want {
		t.Errorf("an evaluation changed the state to %v", got)
	}
	if y := net.Forward(autograd.FromSlice(dev, []float32{2}, 1, 1)); y.Shape().Len() != 1 {
		t.Errorf("one sample in evaluation: %v", y)
	}
}

// Layers that are cast, or made with another type, compute in that type.
func TestNormalizationTypes(t *testing.T) {
	dev := newDevice(t, cpu.Options{})
	for _, made := range []device.DType{device.Float32, device.Float64} {
		for name, l := range map[string]nn.Module{
			"LayerNorm": nn.LayerNorm(4, &nn.NormOptions{DType: made}), "RMSNorm": nn.RMSNorm(4, &nn.NormOptions{DType: made}),
			"GroupNorm": nn.GroupNorm(2, 4, &nn.NormOptions{DType: made}), "BatchNorm1d": nn.BatchNorm1d(4, &nn.NormOptions{DType: made}),
			"no affine": nn.LayerNorm(4, &nn.NormOptions{NoAffine: true}), "no bias": nn.LayerNorm(4, &nn.NormOptions{NoBias: true, DType: made}),
		} {
			if err := errors.Join(nn.Place(l, dev, 1), nn.Cast(l, device.Float64, nil)); err != nil {
				t.Fatal(err)
			}
			x := autograd.FromSlice(dev, []float64{1, 2, 3, 4, 0, -1, 5, 2}, 2, 4).RequireGrad()
			y := l.Forward(x)
			if y.DType() != device.Float64 {
				t.Errorf("%s of %v: %v", name, made, y)
			}
			if err := autograd.Sum(autograd.Mul(y, y)).Backward(nil); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

// ForwardAdd equals Add and Forward, also for terms of a type that the layer converts.
func TestForwardAdd(t *testing.T) {
	dev := newDevice(t, cpu.Options{})
	for name, l := range map[string]*nn.NormLayer{
		"LayerNorm": nn.LayerNorm(4, nil), "LayerNorm of float64": nn.LayerNorm(4, &nn.NormOptions{DType: device.Float64}), "no affine": nn.LayerNorm(4, &nn.NormOptions{NoAffine: true}),
		"RMSNorm": nn.RMSNorm(4, nil), "GroupNorm": nn.GroupNorm(2, 4, nil),
	} {
		if err := nn.Place(l, dev, 1); err != nil {
			t.Fatal(err)
		}
		x := autograd.FromSlice(dev, []float32{1, 2, 3, 4, 0, -1, 5, 2}, 2, 4)
		y := autograd.FromSlice(dev, []float32{3, -2, 1, 0, 7, 1, 0.5, 1}, 2, 4)
		sum, normed := l.ForwardAdd(x, y)
		want := autograd.Add(x, y)
		if got := read(t, sum); !slices.Equal(got, read(t, want)) {
			t.Errorf("%s: sum %v", name, got)
		}
		if got, want := read(t, normed), read(t, l.Forward(want)); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
}

// Layers other than a BatchNorm refuse its options instead of ignoring them.
func TestOptionsOfBatchNormAlone(t *testing.T) {
	last := nn.NormOptions{ChannelsLast: true}
	for name, f := range map[string]func(){
		"GroupNorm":     func() { nn.GroupNorm(2, 4, &last) },
		"LayerNorm":     func() { nn.LayerNorm(4, &nn.NormOptions{ReLU: true}) },
		"LayerNormOver": func() { nn.LayerNormOver([]int{4}, &nn.NormOptions{Momentum: 0.5}) },
		"RMSNorm":       func() { nn.RMSNorm(4, &nn.NormOptions{NoRunning: true}) },
	} {
		if err := thrown(f); err == nil || !strings.Contains(err.Error(), "which only BatchNorm supports") {
			t.Errorf("%s: panic with %v, want an error about the options", name, err)
		}
	}
}

// Without running moments, evaluation uses the moments of the batch.
func TestBatchNormWithoutRunningMoments(t *testing.T) {
	dev := newDevice(t, cpu.Options{})
	l := nn.BatchNorm2d(1, &nn.NormOptions{NoRunning: true})
	if err := nn.Place(l, dev, 1); err != nil {
		t.Fatal(err)
	}
	x := autograd.FromSlice(dev, []float32{1, 3, 5, 7}, 2, 1, 1, 2)
	trained := read(t, l.Forward(x))
	nn.Eval(l)
	if got := read(t, l.Forward(x)); !slices.Equal(got, trained) || nn.Buffers(l) != nil {
		t.Errorf("in evaluation %v, in training %v", got, trained)
	}
}
