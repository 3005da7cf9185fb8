package autograd_test

import (
	"fmt"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
)

func normalizationCases() (cases []gradCase) {
	add := func(name string, f func(in variables) *autograd.Variable, shapes ...device.Shape) {
		cases = append(cases, gradCase{fmt.Sprintf("%s%v", name, shapes), shapes, 0.5, 2, f})
	}
	// opt returns input i, nil if there are fewer inputs.
	opt := func(in variables, i int) *autograd.Variable {
		if i < len(in) {
			return in[i]
		}
		return nil
	}
	for n := 1; n <= 3; n++ { // without parameters, with a weight, with weight and bias
		affine := func(x, w device.Shape) []device.Shape { return []device.Shape{x, w, w}[:n] }
		add("LayerNorm", func(in variables) *autograd.Variable {
			return autograd.LayerNorm(in[0], []int{5}, opt(in, 1), opt(in, 2), 1e-2)
		},
			affine(device.Shape{2, 3, 5}, device.Shape{5})...)
		add("LayerNorm2", func(in variables) *autograd.Variable {
			return autograd.LayerNorm(in[0], []int{3, 5}, opt(in, 1), opt(in, 2), 1e-2)
		},
			affine(device.Shape{2, 3, 5}, device.Shape{3, 5})...)
		add("GroupNorm", func(in variables) *autograd.Variable {
			return autograd.GroupNorm(in[0], 2, opt(in, 1), opt(in, 2), 1e-2)
		},
			affine(device.Shape{2, 4, 3}, device.Shape{4})...)
		add("BatchNorm", func(in variables) *autograd.Variable {
			return autograd.BatchNorm(in[0], opt(in, 1), opt(in, 2), &autograd.BatchNormOptions{Eps: 1e-2})
		}, affine(device.Shape{3, 2, 2, 2}, device.Shape{2})...)
		add("BatchNorm of rows", func(in variables) *autograd.Variable {
			return autograd.BatchNorm(in[0], opt(in, 1), opt(in, 2), &autograd.BatchNormOptions{Eps: 1e-2})
		}, affine(device.Shape{5, 3}, device.Shape{3})...)
		add("BatchNorm with channels last", func(in variables) *autograd.Variable {
			return autograd.BatchNorm(in[0], opt(in, 1), opt(in, 2), &autograd.BatchNormOptions{Eps: 1e-2, ChannelsLast: true})
		}, affine(device.Shape{3, 2, 2, 2}, device.Shape{2})...)
		add("BatchNorm in evaluation", func(in variables) *autograd.Variable {
			dev := in[0].Device()
			return autograd.BatchNorm(in[0], opt(in, 1), opt(in, 2), &autograd.BatchNormOptions{
				Eps: 1e-2, Evaluate: true, Mean: autograd.FromSlice(dev, []float32{1, 0.5}), Variance: autograd.FromSlice(dev, []float32{2, 0.25}),
			})
		}, affine(device.Shape{3, 2, 2}, device.Shape{2})...)
	}
	add("AddLayerNorm", func(in variables) *autograd.Variable {
		sum, normed := autograd.AddLayerNorm(in[0], in[1], []int{5}, in[2], in[3], 1e-2)
		return autograd.Add(autograd.Mul(sum, sum), normed)
	}, device.Shape{2, 3, 5}, device.Shape{2, 3, 5}, device.Shape{5}, device.Shape{5})
	add("AddLayerNorm of a broadcast term", func(in variables) *autograd.Variable {
		sum, normed := autograd.AddLayerNorm(in[0], in[1], []int{5}, nil, nil, 1e-2)
		return autograd.Add(sum, normed)
	}, device.Shape{2, 3, 5}, device.Shape{5})
	add("AddRMSNorm", func(in variables) *autograd.Variable {
		sum, normed := autograd.AddRMSNorm(in[0], in[1], []int{5}, in[2], 1e-2)
		return autograd.Add(autograd.Mul(sum, sum), normed)
	}, device.Shape{2, 3, 5}, device.Shape{2, 3, 5}, device.Shape{5})
	add("AddLayerNorm within a Checkpoint", func(in variables) *autograd.Variable {
		return autograd.Checkpoint(func(x *autograd.Variable) *autograd.Variable {
			sum, normed := autograd.AddLayerNorm(autograd.Tanh(x), autograd.Sin(in[1]), []int{5}, in[2], in[3], 1e-2)
			return autograd.Add(sum, autograd.Mul(normed, normed))
		}, in[0])
	}, device.Shape{2, 3, 5}, device.Shape{2, 3, 5}, device.Shape{5}, device.Shape{5})
	for _, last := range []bool{false, true} {
		fused := func(x, w, b, residual *autograd.Variable, relu bool) *autograd.Variable {
			return autograd.BatchNorm(x, w, b, &autograd.BatchNormOptions{Eps: 1e-2, ChannelsLast: last, Residual: residual, ReLU: relu})
		}
		shapes := []device.Shape{{2, 3, 2, 3}, {3}, {3}, {2, 3, 2, 3}} // three channels in both layouts
		add(fmt.Sprint("BatchNorm with a residual, channels last ", last), func(in variables) *autograd.Variable {
			return fused(in[0], in[1], in[2], in[3], false)
		}, shapes...)
		add(fmt.Sprint("BatchNorm with a residual and ReLU, channels last ", last), func(in variables) *autograd.Variable {
			return fused(in[0], in[1], in[2], autograd.AddScalar(in[3], -2), true)
		}, shapes...)
		add(fmt.Sprint("BatchNorm with itself for a residual, channels last ", last), func(in variables) *autograd.Variable {
			return fused(in[0], in[1], in[2], in[0], true)
		}, shapes[:3]...)
	}
	for n := 1; n <= 2; n++ {
		add("RMSNorm", func(in variables) *autograd.Variable { return autograd.RMSNorm(in[0], []int{5}, opt(in, 1), 1e-2) },
			[]device.Shape{{2, 3, 5}, {5}}[:n]...)
	}
	add("LayerNorm of a bias alone", func(in variables) *autograd.Variable { return autograd.LayerNorm(in[0], []int{4}, nil, in[1], 1e-2) },
		device.Shape{3, 4}, device.Shape{4})
	return cases
}

// A checkpointed BatchNorm updates its running moments once.
func TestCheckpointedBatchNormTracksOnce(t *testing.T) {
	dev := newDevice(t)
	o := autograd.BatchNormOptions{
		Mean: autograd.FromSlice(dev, []float64{0}), Variance: autograd.FromSlice(dev, []float64{1}), Batches: autograd.FromSlice(dev, []int64{0}), Momentum: 0.5,
	}
	x := autograd.FromSlice(dev, []float64{1, 3}, 2, 1).RequireGrad()
	f := func(x *autograd.Variable) *autograd.Variable { return autograd.BatchNorm(x, nil, nil, &o) }
	if err := autograd.Sum(autograd.Checkpoint(f, x)).Backward(nil); err != nil {
		t.Fatal(err)
	}
	if mean, variance, batches := o.Mean.Item(), o.Variance.Item(), o.Batches.Item(); mean != 1 || variance != 1.5 || batches != 1 {
		t.Errorf("mean %v, variance %v, after %v batches; want 1, 1.5 after 1", mean, variance, batches)
	}
}
