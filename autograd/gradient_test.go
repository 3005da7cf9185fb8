package autograd_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
)

type variables = []*autograd.Variable

type gradCase struct {
	name   string
	shapes []device.Shape // the shapes of the inputs
	lo, hi float64        // the range of the inputs' elements
	f      func(variables) *autograd.Variable
}

func gradCases() (cases []gradCase) {
	add := func(name string, lo, hi float64, f func(variables) *autograd.Variable, shapes ...device.Shape) {
		cases = append(cases, gradCase{fmt.Sprintf("%s%v", name, shapes), shapes, lo, hi, f})
	}
	for name, f := range map[string]func(x *autograd.Variable) *autograd.Variable{
		"Neg": autograd.Neg, "Exp": autograd.Exp, "Tanh": autograd.Tanh, "Sigmoid": autograd.Sigmoid, "ReLU": autograd.ReLU,
		"GELU": autograd.GELU, "GELUTanh": autograd.GELUTanh,
		"MulScalar": func(x *autograd.Variable) *autograd.Variable { return autograd.MulScalar(x, -2.5) },
		"Reshape":   func(x *autograd.Variable) *autograd.Variable { return autograd.Reshape(x, 4, 3) },
		"Sum":       func(x *autograd.Variable) *autograd.Variable { return autograd.Sum(x) },
		"Sum2":      func(x *autograd.Variable) *autograd.Variable { return autograd.Sum(x, 1, 2) },
		"Sum3":      func(x *autograd.Variable) *autograd.Variable { return autograd.Sum(x, 3, 2, 1) },
		"Mean":      func(x *autograd.Variable) *autograd.Variable { return autograd.Mean(x) },
		"Mean2":     func(x *autograd.Variable) *autograd.Variable { return autograd.Mean(x, 2, 2) },
	} {
		add(name, -2, 2, func(in variables) *autograd.Variable { return f(in[0]) }, device.Shape{3, 2, 2})
	}
	for name, f := range map[string]func(x *autograd.Variable) *autograd.Variable{"Log": autograd.Log, "Sqrt": autograd.Sqrt} {
		add(name, 0.3, 3, func(in variables) *autograd.Variable { return f(in[0]) }, device.Shape{5})
	}
	shapes := []device.Shape{{}, {1}, {4}, {3, 1}, {3, 4}, {1, 4}, {2, 1, 4}, {2, 3, 1}, {2, 3, 4}}
	for name, f := range map[string]func(x, y *autograd.Variable) *autograd.Variable{
		"Add": autograd.Add, "Sub": autograd.Sub, "Mul": autograd.Mul, "Div": autograd.Div,
	} {
		for _, a := range shapes {
			for _, b := range shapes {
				add(name, 0.5, 2, func(in variables) *autograd.Variable { return f(in[0], in[1]) }, a, b)
			}
		}
	}
	for _, tx := range []bool{false, true} {
		for _, ty := range []bool{false, true} {
			a, b := device.Shape{2, 3}, device.Shape{3, 4}
			if tx {
				slices.Reverse(a)
			}
			if ty {
				slices.Reverse(b)
			}
			add("MatMul", -1, 1, func(in variables) *autograd.Variable { return autograd.MatMulT(in[0], tx, in[1], ty) }, a, b)
		}
	}
	for name, layer := range map[string]func(x, w, bias *autograd.Variable) *autograd.Variable{"Linear": autograd.Linear, "LinearReLU": autograd.LinearReLU} {
		linear := func(in variables) *autograd.Variable {
			if len(in) == 2 {
				return layer(in[0], in[1], nil)
			}
			return layer(in[0], in[1], in[2])
		}
		add(name, -1, 1, linear, device.Shape{5, 3}, device.Shape{4, 3})
		add(name, -1, 1, linear, device.Shape{5, 3}, device.Shape{4, 3}, device.Shape{4})
		add(name, -1, 1, linear, device.Shape{2, 2, 3}, device.Shape{4, 3}, device.Shape{4})
		add(name, -1, 1, linear, device.Shape{3}, device.Shape{4, 3}, device.Shape{4})
		// One kernel computes the gradients of weight and bias only if both need one, and the bias is a
		// leaf or the weight is none.
		add(name+" of a result", -1, 1, func(in variables) *autograd.Variable {
			return layer(in[0], autograd.Neg(in[1]), in[2])
		}, device.Shape{5, 3}, device.Shape{4, 3}, device.Shape{4})
		add(name+" of results", -1, 1, func(in variables) *autograd.Variable {
			return layer(in[0], autograd.Neg(in[1]), autograd.Exp(in[2]))
		}, device.Shape{5, 3}, device.Shape{4, 3}, device.Shape{4})
		add(name+" and its bias", -1, 1, func(in variables) *autograd.Variable { // the bias already has a gradient when the weight gets its first
			return autograd.Add(layer(in[0], in[1], in[2]), in[2])
		}, device.Shape{5, 3}, device.Shape{4, 3}, device.Shape{4})
		add(name+" of a constant", -1, 1, func(in variables) *autograd.Variable {
			w := autograd.FromSlice(in[0].Device(), []float64{1, -2, 3, 0.5, 0.25, -1}, 2, 3)
			return layer(in[0], w, in[1])
		}, device.Shape{5, 3}, device.Shape{2})
	}
	for name, o := range map[string]autograd.FeedForwardOptions{"": {}, "Recompute": {Recompute: true}, "Tanh": {Tanh: true}} {
		x, w1, b1, w2, b2 := device.Shape{2, 2, 3}, device.Shape{5, 3}, device.Shape{5}, device.Shape{4, 5}, device.Shape{4}
		add("FeedForward"+name, -1, 1, func(in variables) *autograd.Variable {
			return autograd.FeedForward(in[0], in[1], in[2], in[3], in[4], &o)
		}, x, w1, b1, w2, b2)
		add("FeedForward without biases"+name, -1, 1, func(in variables) *autograd.Variable {
			return autograd.FeedForward(in[0], in[1], nil, in[2], nil, &o)
		}, x, w1, w2)
		add("FeedForward with the second bias"+name, -1, 1, func(in variables) *autograd.Variable {
			return autograd.FeedForward(in[0], in[1], nil, in[2], in[3], &o)
		}, x, w1, w2, b2)
		add("FeedForward of a constant"+name, -1, 1, func(in variables) *autograd.Variable {
			x := autograd.FromSlice(in[0].Device(), []float64{1, -2, 3, 0.5, 0.25, -1}, 2, 3)
			return autograd.FeedForward(x, in[0], in[1], in[2], nil, &o)
		}, w1, b1, w2)
	}
	x, w, bias, a, b := device.Shape{2, 2, 3}, device.Shape{5, 3}, device.Shape{5}, device.Shape{2, 3}, device.Shape{5, 2}
	add("LowRankLinear", -1, 1, func(in variables) *autograd.Variable {
		return autograd.LowRankLinear(in[0], in[1], in[2], in[3], in[4], 0.5)
	}, x, w, bias, a, b)
	add("LowRankLinear without a bias", -1, 1, func(in variables) *autograd.Variable {
		return autograd.LowRankLinear(in[0], in[1], nil, in[2], in[3], 2)
	}, x, w, a, b)
	add("LowRankLinear with a frozen weight", -1, 1, func(in variables) *autograd.Variable {
		w := autograd.FromSlice(in[0].Device(), []float64{1, -2, 3, 0.5, 0.25, -1, 2, 1, 0, -1, 1.5, 0.75, -0.5, 2, 1}, 5, 3)
		return autograd.LowRankLinear(in[0], w, nil, in[1], in[2], 2)
	}, x, a, b)
	add("SwiGLU", -3, 3, func(in variables) *autograd.Variable { return autograd.SwiGLU(in[0], in[1]) }, device.Shape{2, 5}, device.Shape{2, 5})
	add("SwiGLU of one for both", -3, 3, func(in variables) *autograd.Variable { return autograd.SwiGLU(in[0], in[0]) }, device.Shape{2, 5})
	add("SwiGLU of a result", -3, 3, func(in variables) *autograd.Variable { return autograd.SwiGLU(autograd.Neg(in[0]), in[1]) }, device.Shape{2, 5}, device.Shape{2, 5})
	add("MSELoss", -1, 1, func(in variables) *autograd.Variable { return autograd.MSELoss(in[0], in[1]) }, device.Shape{2, 3}, device.Shape{2, 3})
	add("CrossEntropyLoss", -2, 2, func(in variables) *autograd.Variable {
		return autograd.CrossEntropyLoss(in[0], autograd.FromSlice(in[0].Device(), []int64{2, 0, 2, 3}))
	}, device.Shape{4, 5})
	for _, lead := range []device.Shape{{4}, {2, 2}} {
		add("LinearCrossEntropyLoss", -2, 2, func(in variables) *autograd.Variable {
			labels := autograd.Reshape(autograd.FromSlice(in[0].Device(), []int64{2, 0, 2, 3}), lead...)
			return autograd.LinearCrossEntropyLoss(in[0], in[1], labels, nil)
		}, append(append(device.Shape{}, lead...), 3), device.Shape{5, 3})
	}
	// A leaf that is used several times, and a result that two operations use.
	add("Shared", 0.5, 2, func(in variables) *autograd.Variable {
		h := autograd.Mul(in[0], in[1])
		return autograd.Add(autograd.Mul(h, autograd.Exp(autograd.Neg(h))), autograd.Mul(in[0], in[0]))
	}, device.Shape{2, 3}, device.Shape{3})
	cases = append(cases, mathCases()...)
	cases = append(cases, attentionCases()...)
	cases = append(cases, normalizationCases()...)
	cases = append(cases, convolutionCases()...)
	cases = append(cases, movementCases()...)
	return cases
}

// The gradients of every operation, in float64, agree with central differences. They are right when they
// overwrite NaN, add to the gradient of an earlier pass, and are scaled by the last write.
func TestGradients(t *testing.T) { checkGradients(t, gradCases()) }

func checkGradients(t *testing.T, cases []gradCase) {
	dev := newDevice(t)
	rng := rand.New(rand.NewPCG(1, 2))
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			data := make([][]float64, len(c.shapes))
			in := make(variables, len(c.shapes))
			sinks := make([]*sink, len(in))
			for i, shape := range c.shapes {
				data[i] = values(rng, shape.Len(), c.lo, c.hi)
				in[i] = autograd.FromSlice(dev, data[i], append([]int{}, shape...)...).RequireGrad()
			}
			var weights *autograd.Variable
			loss := func(in variables) *autograd.Variable {
				y := c.f(in)
				if weights == nil {
					weights = autograd.FromSlice(dev, values(rng, y.Shape().Len(), -1, 1), append([]int{}, y.Shape()...)...)
				}
				return autograd.Sum(autograd.Mul(y, weights))
			}
			backward := func() {
				t.Helper()
				if err := loss(in).Backward(nil); err != nil {
					t.Fatal(err)
				}
			}
			backward()

			grads := make([][]float64, len(in))
			for i := range in {
				want := numeric(dev, data, c.shapes, i, loss)
				grads[i] = read(t, in[i].Grad())
				near(t, fmt.Sprintf("gradient of input %d", i), grads[i], want, 1e-6)
				sinks[i] = newSink(in[i], "", nil)
				sinks[i].scale = 0.5
			}
			backward()
			for i := range in {
				near(t, fmt.Sprintf("half of gradient %d, over NaN", i), read(t, in[i].Grad()), times(0.5, grads[i]), 1e-12)
				sinks[i].scale = 1
			}
			backward()
			for i := range in {
				near(t, fmt.Sprintf("gradient %d on top of its half", i), read(t, in[i].Grad()), times(1.5, grads[i]), 1e-12)
				sinks[i].scale = 0.25
			}
			backward()
			for i := range in {
				near(t, fmt.Sprintf("a quarter of all gradients %d", i), read(t, in[i].Grad()), times(0.625, grads[i]), 1e-12)
			}
		})
	}
}

func times(f float64, x []float64) []float64 {
	y := make([]float64, len(x))
	for i := range x {
		y[i] = f * x[i]
	}
	return y
}

// numeric computes the gradient of loss for input i by central differences.
func numeric(dev device.Device, data [][]float64, shapes []device.Shape, i int, loss func(variables) *autograd.Variable) []float64 {
	const h = 1e-5
	at := func(j int, x float64) (y float64) {
		autograd.NoGrad(dev, func() {
			in := make(variables, len(data))
			for k := range data {
				d := slices.Clone(data[k])
				if k == i {
					d[j] = x
				}
				in[k] = autograd.FromSlice(dev, d, append([]int{}, shapes[k]...)...)
			}
			y = loss(in).Item()
		})
		return y
	}
	grad := make([]float64, len(data[i]))
	for j, x := range data[i] {
		grad[j] = (at(j, x+h) - at(j, x-h)) / (2 * h)
	}
	return grad
}

// A variable copies its shape: the caller may reuse the slice.
func TestShapeIsCopied(t *testing.T) {
	dev := newDevice(t)
	x := autograd.FromSlice(dev, []float64{1, 2, 3, 4}, 2, 2)
	for name, f := range map[string]func(shape ...int) *autograd.Variable{
		"Sum":     func(shape ...int) *autograd.Variable { return autograd.Sum(x, shape...) },
		"Mean":    func(shape ...int) *autograd.Variable { return autograd.Mean(x, shape...) },
		"Reshape": func(shape ...int) *autograd.Variable { return autograd.Reshape(autograd.Sum(x, 2), shape...) },
		"Zeros":   func(shape ...int) *autograd.Variable { return autograd.Zeros(dev, device.Float64, shape...) },
		"FromSlice": func(shape ...int) *autograd.Variable {
			return autograd.FromSlice(dev, []float64{1, 2}, shape...)
		},
		"FromBytes": func(shape ...int) *autograd.Variable {
			return autograd.FromBytes(dev, device.Float64, shape, make([]byte, 16))
		},
	} {
		shape := []int{1, 2}
		y := f(shape...)
		shape[1] = 7
		if !y.Shape().Equal(device.Shape{1, 2}) {
			t.Errorf("%s: the shape has become %v", name, y.Shape())
		}
	}
}
