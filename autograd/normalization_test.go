package autograd_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/testkit"
	"github.com/goddp/goddp/internal/torchtest"
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
			return autograd.BatchNorm(in[0], opt(in, 1), opt(in, 2), autograd.BatchNormOptions{Eps: 1e-2})
		}, affine(device.Shape{3, 2, 2, 2}, device.Shape{2})...)
		add("BatchNorm of rows", func(in variables) *autograd.Variable {
			return autograd.BatchNorm(in[0], opt(in, 1), opt(in, 2), autograd.BatchNormOptions{Eps: 1e-2})
		}, affine(device.Shape{5, 3}, device.Shape{3})...)
		add("BatchNorm with channels last", func(in variables) *autograd.Variable {
			return autograd.BatchNorm(in[0], opt(in, 1), opt(in, 2), autograd.BatchNormOptions{Eps: 1e-2, ChannelsLast: true})
		}, affine(device.Shape{3, 2, 2, 2}, device.Shape{2})...)
		add("BatchNorm in evaluation", func(in variables) *autograd.Variable {
			dev := in[0].Device()
			return autograd.BatchNorm(in[0], opt(in, 1), opt(in, 2), autograd.BatchNormOptions{
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
			return autograd.BatchNorm(x, w, b, autograd.BatchNormOptions{Eps: 1e-2, ChannelsLast: last, Residual: residual, ReLU: relu})
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

// Normalisations and their gradients equal PyTorch's for random shapes.
func TestNormalizationParityWithPyTorch(t *testing.T) {
	testkit.Long(t)
	rng := rand.New(rand.NewPCG(3, 4))
	var cases []torchtest.Case
	size := func() int {
		if rng.IntN(12) == 0 {
			return 0
		}
		return 1 + rng.IntN(7)
	}
	// 200 random shapes for each operation. params is the maximum number of its parameters, which
	// the Python expression takes as W and B.
	each := func(name, expr string, params int, shapes func() (x, w []int, args []any), f func(args []any, x, w, b *autograd.Variable) *autograd.Variable) {
		for n := range randomShapes() {
			x, w, args := shapes()
			in := []torchtest.Input{randomInput(rng, -2, 2, x...)}
			names := [2]string{"None", "None"}
			for i := range rng.IntN(params + 1) {
				in = append(in, randomInput(rng, -2, 2, w...))
				names[i] = fmt.Sprintf("x[%d]", i+1)
			}
			cases = append(cases, torchtest.Case{
				Name: fmt.Sprintf("%s %d of %v over %v, %v, %d parameters", name, n, x, w, args, len(in)-1),
				Expr: fmt.Sprintf(expr, append([]any{names[0], names[1]}, args...)...),
				In:   in, DType: randomType(n),
				Tolerance: map[device.DType]float64{device.Float32: 1e-4, device.Float64: 1e-9}[randomType(n)],
				Go: func(v []*autograd.Variable) *autograd.Variable {
					all := append(slices.Clone(v), nil, nil)
					return f(args, all[0], all[1], all[2])
				},
			})
		}
	}
	each("LayerNorm", "F.layer_norm(x[0], %[3]v, %[1]s, %[2]s, 1e-3)", 2, func() (x, w []int, args []any) {
		for range 1 + rng.IntN(4) {
			x = append(x, size())
		}
		w = x[rng.IntN(len(x)):]
		list := "["
		for _, n := range w {
			list += fmt.Sprint(n, ",")
		}
		return x, w, []any{list + "]"}
	}, func(_ []any, x, w, b *autograd.Variable) *autograd.Variable {
		shape := x.Shape()
		if w != nil {
			shape = w.Shape()
		}
		return autograd.LayerNorm(x, shape, w, b, 1e-3)
	})
	// Without a weight, the case has to state the shape.
	for i := range cases {
		c := &cases[i]
		if len(c.In) == 1 {
			w := c.In[0].Shape
			c.Expr = "F.layer_norm(x[0], list(x[0].shape), None, None, 1e-3)"
			c.Go = func(v []*autograd.Variable) *autograd.Variable { return autograd.LayerNorm(v[0], w, nil, nil, 1e-3) }
		}
	}
	each("RMSNorm", "(lambda y: y if %[1]s is None else y * %[1]s)(x[0] * torch.rsqrt(x[0].pow(2).mean(-1, keepdim=True) + 1e-3))%.0[2]s", 1, func() (x, w []int, args []any) {
		for range 1 + rng.IntN(3) {
			x = append(x, max(size(), 1))
		}
		return x, x[len(x)-1:], nil
	}, func(_ []any, x, w, _ *autograd.Variable) *autograd.Variable {
		return autograd.RMSNorm(x, x.Shape()[len(x.Shape())-1:], w, 1e-3)
	})
	channels := func(least int) []int {
		x := []int{max(size(), least), 1 + rng.IntN(6)}
		for range rng.IntN(3) {
			x = append(x, max(size(), 1))
		}
		return x
	}
	each("GroupNorm", "F.group_norm(x[0], %[3]d, %[1]s, %[2]s, 1e-3)", 2, func() (x, w []int, args []any) {
		x = channels(0)
		if device.Shape(x).Len()/max(x[1], 1) == 1 { // PyTorch rejects such a batch
			x[0] = 2
		}
		groups := 1 + rng.IntN(x[1])
		for x[1]%groups != 0 {
			groups--
		}
		return x, x[1:2], []any{groups}
	}, func(args []any, x, w, b *autograd.Variable) *autograd.Variable {
		return autograd.GroupNorm(x, args[0].(int), w, b, 1e-3)
	})
	each("BatchNorm", "F.batch_norm(x[0], None, None, %[1]s, %[2]s, True, 0.1, 1e-3)", 2, func() (x, w []int, args []any) {
		x = channels(2)
		return x, x[1:2], nil
	}, func(_ []any, x, w, b *autograd.Variable) *autograd.Variable {
		return autograd.BatchNorm(x, w, b, autograd.BatchNormOptions{Eps: 1e-3})
	})
	torchtest.Check(t, cases)
}

// A checkpointed BatchNorm updates its running moments once.
func TestCheckpointedBatchNormTracksOnce(t *testing.T) {
	dev := newDevice(t)
	o := autograd.BatchNormOptions{
		Mean: autograd.FromSlice(dev, []float64{0}), Variance: autograd.FromSlice(dev, []float64{1}), Batches: autograd.FromLabels(dev, []int64{0}), Momentum: 0.5,
	}
	x := autograd.FromSlice(dev, []float64{1, 3}, 2, 1).RequireGrad()
	f := func(x *autograd.Variable) *autograd.Variable { return autograd.BatchNorm(x, nil, nil, o) }
	if err := autograd.Sum(autograd.Checkpoint(f, x)).Backward(); err != nil {
		t.Fatal(err)
	}
	if mean, variance, batches := o.Mean.Item(), o.Variance.Item(), o.Batches.Item(); mean != 1 || variance != 1.5 || batches != 1 {
		t.Errorf("mean %v, variance %v, after %v batches; want 1, 1.5 after 1", mean, variance, batches)
	}
}
