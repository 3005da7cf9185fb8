package autograd_test

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
)

// elementwise are operations of one input with parameters, and their expressions in PyTorch.
var elementwise = []struct {
	name, torch string
	lo, hi      float64
	f           func(x *autograd.Variable) *autograd.Variable
}{
	{"Abs", "x[0].abs()", -2, 2, autograd.Abs},
	{"Rsqrt", "x[0].rsqrt()", 0.3, 3, autograd.Rsqrt},
	{"Sin", "x[0].sin()", -4, 4, autograd.Sin},
	{"Cos", "x[0].cos()", -4, 4, autograd.Cos},
	{"SiLU", "F.silu(x[0])", -4, 4, autograd.SiLU},
	{"AddScalar", "x[0] + 0.75", -2, 2, func(x *autograd.Variable) *autograd.Variable { return autograd.AddScalar(x, 0.75) }},
	{"Pow 3", "x[0] ** 3", -2, 2, func(x *autograd.Variable) *autograd.Variable { return autograd.Pow(x, 3) }},
	{"Pow 2", "x[0] ** 2", -2, 2, func(x *autograd.Variable) *autograd.Variable { return autograd.Pow(x, 2) }},
	{"Pow 1", "x[0] ** 1", -2, 2, func(x *autograd.Variable) *autograd.Variable { return autograd.Pow(x, 1) }},
	{"Pow 0", "x[0] ** 0", -2, 2, func(x *autograd.Variable) *autograd.Variable { return autograd.Pow(x, 0) }},
	{"Pow -1.5", "x[0] ** -1.5", 0.3, 3, func(x *autograd.Variable) *autograd.Variable { return autograd.Pow(x, -1.5) }},
	{"Clamp", "x[0].clamp(-0.75, 0.5)", -2, 2, func(x *autograd.Variable) *autograd.Variable { return autograd.Clamp(x, -0.75, 0.5) }},
	{"Clamp below", "x[0].clamp(min=0.5)", -2, 2, func(x *autograd.Variable) *autograd.Variable { return autograd.Clamp(x, 0.5, math.Inf(1)) }},
	{"LeakyReLU", "F.leaky_relu(x[0], 0.2)", -2, 2, func(x *autograd.Variable) *autograd.Variable { return autograd.LeakyReLU(x, 0.2) }},
	{"ELU", "F.elu(x[0], 0.7)", -2, 2, func(x *autograd.Variable) *autograd.Variable { return autograd.ELU(x, 0.7) }},
	{"Softplus", "F.softplus(x[0], 2, 3)", -2, 2, func(x *autograd.Variable) *autograd.Variable { return autograd.Softplus(x, 2, 3) }},
	{"LogSigmoid", "F.logsigmoid(x[0])", -40, 40, autograd.LogSigmoid},
}

// mathCases returns the gradient tests of elementwise operations.
func mathCases() (cases []gradCase) {
	for _, e := range elementwise {
		f := func(in variables) *autograd.Variable { return e.f(in[0]) }
		cases = append(cases, gradCase{e.name, []device.Shape{{3, 2, 2}}, max(e.lo, -4), min(e.hi, 4), f})
	}
	for _, axis := range []int{0, 1, -1} {
		for name, f := range map[string]func(*autograd.Variable, int) *autograd.Variable{"Softmax": autograd.Softmax, "LogSoftmax": autograd.LogSoftmax} {
			f := func(in variables) *autograd.Variable { return f(in[0], axis) }
			cases = append(cases, gradCase{fmt.Sprint(name, " along ", axis), []device.Shape{{3, 4, 2}}, -3, 3, f})
		}
	}
	for _, b := range [][2]device.Shape{{{2}, {2}}, {{2}, {}}, {{}, {2}}, {{2, 1}, {3}}, {{1, 2}, {2, 1}}, {{2, 2}, {2, 2}}} {
		for i := range 4 {
			x, y := append(append(device.Shape{}, b[0]...), 2, 3), append(append(device.Shape{}, b[1]...), 3, 4)
			if i%2 == 1 {
				slices.Reverse(x[len(x)-2:])
			}
			if i/2 == 1 {
				slices.Reverse(y[len(y)-2:])
			}
			f := func(in variables) *autograd.Variable { return autograd.MatMulT(in[0], i%2 == 1, in[1], i/2 == 1) }
			cases = append(cases, gradCase{fmt.Sprint("MatMul of batches ", x, y, i), []device.Shape{x, y}, -1, 1, f})
		}
	}
	dropout := func(in variables) *autograd.Variable {
		autograd.Generator(in[0].Device()).Seed(3) // the same mask in every pass
		return autograd.Dropout(in[0], 0.4)
	}
	cases = append(cases, gradCase{"Dropout", []device.Shape{{5, 3}}, -2, 2, dropout})
	return cases
}

// Values and gradients equal PyTorch's where a function is not smooth or not finite.
func TestElementwiseAtKinks(t *testing.T) {
	dev := newDevice(t)
	inf := math.Inf(1)
	for _, c := range []struct {
		name      string
		f         func(x *autograd.Variable) *autograd.Variable
		x, y, dxs []float64
	}{
		{"Abs", autograd.Abs, []float64{-1, 0, 1}, []float64{1, 0, 1}, []float64{-1, 0, 1}},
		{"Clamp", func(x *autograd.Variable) *autograd.Variable { return autograd.Clamp(x, -1, 1) },
			[]float64{-inf, -1, 0, 1, 1.5}, []float64{-1, -1, 0, 1, 1}, []float64{0, 1, 1, 1, 0}},
		{"Clamp to nothing", func(x *autograd.Variable) *autograd.Variable { return autograd.Clamp(x, 1, -1) },
			[]float64{-2, 0, 2}, []float64{-1, -1, -1}, []float64{0, 0, 0}},
		{"Pow 2", func(x *autograd.Variable) *autograd.Variable { return autograd.Pow(x, 2) }, []float64{0}, []float64{0}, []float64{0}},
		{"Pow 1", func(x *autograd.Variable) *autograd.Variable { return autograd.Pow(x, 1) }, []float64{0}, []float64{0}, []float64{1}},
		{"Pow 0", func(x *autograd.Variable) *autograd.Variable { return autograd.Pow(x, 0) }, []float64{0, inf}, []float64{1, 1}, []float64{0, 0}},
		{"Pow 1/2", func(x *autograd.Variable) *autograd.Variable { return autograd.Pow(x, 0.5) }, []float64{0}, []float64{0}, []float64{inf}},
		{"LeakyReLU", func(x *autograd.Variable) *autograd.Variable { return autograd.LeakyReLU(x, 0.25) }, []float64{-4, 0, 4}, []float64{-1, 0, 4}, []float64{0.25, 0.25, 1}},
	} {
		x := autograd.FromSlice(dev, c.x).RequireGrad()
		y := c.f(x)
		if err := autograd.Sum(y).Backward(nil); err != nil {
			t.Fatal(err)
		}
		for i := range c.x {
			if got, grad := read(t, y)[i], read(t, x.Grad())[i]; got != c.y[i] || grad != c.dxs[i] {
				t.Errorf("%s at %v: %v with derivative %v, want %v with %v", c.name, c.x[i], got, grad, c.y[i], c.dxs[i])
			}
		}
	}
}
