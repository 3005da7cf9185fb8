package ulptest

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/nn"
)

// The references are accurate in both tails.

func sigmoid(x float64) float64 {
	if x < 0 {
		return math.Exp(x) / (1 + math.Exp(x))
	}
	return 1 / (1 + math.Exp(-x))
}

func sigmoidSlope(x float64) float64 { return sigmoid(x) * sigmoid(-x) }

func softplus(x float64) float64 { return max(x, 0) + math.Log1p(math.Exp(-math.Abs(x))) }

func normal(x float64) float64 { return math.Erfc(-x/math.Sqrt2) / 2 }

func density(x float64) float64 { return math.Exp(-x*x/2) / math.Sqrt(2*math.Pi) }

// tanhOf returns twice the argument of tanh in GELUTanh, and its derivative.
func tanhOf(x float64) (u2, du2 float64) {
	c := 2 * math.Sqrt(2/math.Pi)
	return c * (x + 0.044715*x*x*x), c * (1 + 3*0.044715*x*x)
}

func geluTanhTerms(x float64) (a, b float64) {
	u2, du2 := tanhOf(x)
	return sigmoid(u2), x * sigmoidSlope(u2) * du2
}

func sign(x float64) float64 {
	switch {
	case x > 0:
		return 1
	case x < 0:
		return -1
	}
	return 0
}

func isPositive(x float64) bool { return x > 0 }

// offset is added to logits. What it rounds away is not measured.
const offset = 10000

func shifted(x float64) float64 { return float64(float32(x)+offset) - offset }

func isNearOffset(x float64) bool { return math.Abs(x) < 100 }

// logits returns rows [x 0], plus by.
func logits(x *autograd.Variable, by float64) *autograd.Variable {
	n := x.Shape()[0]
	return autograd.AddScalar(autograd.Concat(1, autograd.Reshape(x, n, 1), autograd.Zeros(x.Device(), device.Float32, n, 1)), by)
}

func labels(x *autograd.Variable, label int64) *autograd.Variable {
	all := make([]int64, x.Shape()[0])
	for i := range all {
		all[i] = label
	}
	return autograd.FromSlice(x.Device(), all)
}

// first returns the first column of y.
func first(y *autograd.Variable) *autograd.Variable {
	return autograd.Reshape(autograd.Slice(y, 1, 0, 1, 1), -1)
}

func full(x *autograd.Variable, v float64) *autograd.Variable {
	return autograd.AddScalar(autograd.Zeros(x.Device(), device.Float32, x.Shape()...), v)
}

// functions returns all functions. The bounds hold on the CPU, and on GPUs.
func functions() []function {
	none := nn.LossOptions{Reduction: nn.ReduceNone}
	bce := func(target float64) func(x *autograd.Variable) *autograd.Variable {
		return func(x *autograd.Variable) *autograd.Variable {
			return nn.BCEWithLogitsLoss(x, full(x, target), &nn.BCEOptions{Reduction: nn.ReduceNone})
		}
	}
	crossEntropy := func(label int64) func(x *autograd.Variable) *autograd.Variable {
		return func(x *autograd.Variable) *autograd.Variable {
			return nn.CrossEntropyLoss(logits(x, 0), labels(x, label), &nn.CrossEntropyOptions{Reduction: nn.ReduceNone})
		}
	}
	oneKernel := func(label int64, by float64) func(x *autograd.Variable) *autograd.Variable {
		return func(x *autograd.Variable) *autograd.Variable {
			return autograd.Reshape(autograd.CrossEntropyLoss(logits(x, by), labels(x, label)), 1)
		}
	}
	linearLoss := func(x *autograd.Variable) *autograd.Variable {
		w := autograd.FromSlice(x.Device(), []float32{1, 0}, 2, 1)
		return autograd.Reshape(autograd.LinearCrossEntropyLoss(autograd.Reshape(x, 1, 1), w, labels(x, 0), nil), 1)
	}
	minusSoftplus := func(x float64) float64 { return softplus(-x) }
	minusSigmoid := func(x float64) float64 { return -sigmoid(-x) }
	return []function{
		{name: "Exp", f: autograd.Exp, y: math.Exp, dy: math.Exp},
		{name: "Log", f: autograd.Log, y: math.Log, dy: func(x float64) float64 { return 1 / x }},
		{name: "Sqrt", f: autograd.Sqrt, y: math.Sqrt, dy: func(x float64) float64 { return 0.5 / math.Sqrt(x) }},
		{name: "Rsqrt", gradBound: [2]float64{4, 8}, f: autograd.Rsqrt, y: func(x float64) float64 { return 1 / math.Sqrt(x) }, dy: func(x float64) float64 { return -0.5 / (x * math.Sqrt(x)) }, in: isPositive},
		{name: "Sin", f: autograd.Sin, y: math.Sin, dy: math.Cos},
		{name: "Cos", f: autograd.Cos, y: math.Cos, dy: func(x float64) float64 { return -math.Sin(x) }},
		{name: "Abs", f: autograd.Abs, y: math.Abs, dy: sign},
		{name: "Pow 3", f: func(x *autograd.Variable) *autograd.Variable { return autograd.Pow(x, 3) },
			y: func(x float64) float64 { return x * x * x }, dy: func(x float64) float64 { return 3 * x * x }},
		{name: "Pow -1.5", f: func(x *autograd.Variable) *autograd.Variable { return autograd.Pow(x, -1.5) },
			y: func(x float64) float64 { return math.Pow(x, -1.5) }, dy: func(x float64) float64 { return -1.5 * math.Pow(x, -2.5) }},
		{name: "Clamp -1 to 1", f: func(x *autograd.Variable) *autograd.Variable { return autograd.Clamp(x, -1, 1) },
			y: func(x float64) float64 { return min(max(x, -1), 1) }, dy: func(x float64) float64 {
				if math.Abs(x) > 1 {
					return 0
				}
				return 1
			}, drops: func(x float64) bool { return math.Abs(x) > 1 }},

		{name: "ReLU", f: autograd.ReLU, y: func(x float64) float64 { return max(x, 0) }, dy: func(x float64) float64 { return max(sign(x), 0) },
			drops: func(x float64) bool { return x <= 0 }},
		{name: "LeakyReLU 0.01", f: func(x *autograd.Variable) *autograd.Variable { return autograd.LeakyReLU(x, 0.01) },
			y: func(x float64) float64 { return max(x, 0.01*x) }, dy: func(x float64) float64 { return max(sign(x), 0.01) }},
		{name: "ELU", f: func(x *autograd.Variable) *autograd.Variable { return autograd.ELU(x, 1) },
			y: func(x float64) float64 { return max(x, 0) + math.Expm1(min(x, 0)) }, dy: func(x float64) float64 { return math.Exp(min(x, 0)) }},
		{name: "Tanh", f: autograd.Tanh, y: math.Tanh, dy: func(x float64) float64 { return 4 * sigmoidSlope(2*x) }},
		{name: "Sigmoid", f: autograd.Sigmoid, y: sigmoid, dy: sigmoidSlope},
		{name: "LogSigmoid", f: autograd.LogSigmoid, y: func(x float64) float64 { return -softplus(-x) }, dy: func(x float64) float64 { return sigmoid(-x) }},
		{name: "Softplus", f: func(x *autograd.Variable) *autograd.Variable { return autograd.Softplus(x, 1, 20) }, y: softplus, dy: sigmoid},
		{name: "SiLU", bound: [2]float64{1, 64}, gradBound: [2]float64{2, 64}, f: autograd.SiLU, y: func(x float64) float64 { return x * sigmoid(x) },
			dy:    func(x float64) float64 { return sigmoid(x) * (1 + x*sigmoid(-x)) },
			scale: func(x float64) float64 { return sigmoid(x) * (1 + math.Abs(x*sigmoid(-x))) }},
		{name: "GELU", bound: [2]float64{1, 16}, gradBound: [2]float64{2, 24}, f: autograd.GELU, y: func(x float64) float64 { return x * normal(x) },
			dy:    func(x float64) float64 { return normal(x) + x*density(x) },
			scale: func(x float64) float64 { return normal(x) + math.Abs(x*density(x)) }},
		{name: "GELUTanh", bound: [2]float64{1, 256}, gradBound: [2]float64{2, 256}, f: autograd.GELUTanh, y: func(x float64) float64 { a, _ := geluTanhTerms(x); return x * a },
			dy:    func(x float64) float64 { a, b := geluTanhTerms(x); return a + b },
			scale: func(x float64) float64 { a, b := geluTanhTerms(x); return a + math.Abs(b) }},
		{name: "Softmax", bound: [2]float64{2, 4}, f: func(x *autograd.Variable) *autograd.Variable { return first(autograd.Softmax(logits(x, 0), 1)) },
			y: sigmoid, dy: sigmoidSlope, scale: sigmoid},
		{name: "LogSoftmax", f: func(x *autograd.Variable) *autograd.Variable { return first(autograd.LogSoftmax(logits(x, 0), 1)) },
			y: func(x float64) float64 { return -softplus(-x) }, dy: func(x float64) float64 { return sigmoid(-x) }},
		{name: fmt.Sprintf("LogSoftmax near %d", offset), f: func(x *autograd.Variable) *autograd.Variable { return first(autograd.LogSoftmax(logits(x, offset), 1)) },
			y: func(x float64) float64 { return -softplus(-shifted(x)) }, dy: func(x float64) float64 { return sigmoid(-shifted(x)) }, in: isNearOffset},

		{name: "MSELoss", bound: [2]float64{2, 4}, f: func(x *autograd.Variable) *autograd.Variable { return nn.MSELoss(x, full(x, 0.5), &none) },
			y: func(x float64) float64 { return (x - 0.5) * (x - 0.5) }, dy: func(x float64) float64 { return 2 * (x - 0.5) }},
		{name: "L1Loss", f: func(x *autograd.Variable) *autograd.Variable { return nn.L1Loss(x, full(x, 0.5), &none) },
			y: func(x float64) float64 { return math.Abs(x - 0.5) }, dy: func(x float64) float64 { return sign(x - 0.5) }},
		{name: "HuberLoss", f: func(x *autograd.Variable) *autograd.Variable {
			return nn.HuberLoss(x, full(x, 0), &nn.HuberOptions{Reduction: nn.ReduceNone})
		}, y: func(x float64) float64 { d := math.Abs(x); c := min(d, 1); return c * (d - c/2) }, dy: func(x float64) float64 { return min(max(x, -1), 1) }},
		{name: "SmoothL1Loss 0.25", bound: [2]float64{2, 4}, f: func(x *autograd.Variable) *autograd.Variable {
			return nn.SmoothL1Loss(x, full(x, 0), &nn.HuberOptions{Reduction: nn.ReduceNone, Threshold: 0.25})
		}, y: func(x float64) float64 { d := math.Abs(x); c := min(d, 0.25); return 4 * c * (d - c/2) }, dy: func(x float64) float64 { return 4 * min(max(x, -0.25), 0.25) }},
		{name: "KLDivLoss of the target", bound: [2]float64{2, 4}, f: func(x *autograd.Variable) *autograd.Variable {
			return nn.KLDivLoss(full(x, -2), x, &nn.KLDivOptions{Reduction: nn.ReduceNone})
		}, y: func(x float64) float64 { return x * (math.Log(x) + 2) }, dy: func(x float64) float64 { return math.Log(x) + 3 }, in: isPositive,
			yScale: func(x float64) float64 { return x * (math.Abs(math.Log(x)) + 2) },
			scale:  func(x float64) float64 { return math.Abs(math.Log(x)) + 3 }},
		{name: "BCEWithLogitsLoss of 0", f: bce(0), y: softplus, dy: sigmoid},
		{name: "BCEWithLogitsLoss of 1", f: bce(1), y: minusSoftplus, dy: minusSigmoid},
		{name: "BCEWithLogitsLoss of 0.25", bound: [2]float64{2, 4}, f: bce(0.25), y: func(x float64) float64 { return softplus(-x)/4 + softplus(x)*3/4 },
			dy:    func(x float64) float64 { return sigmoid(x)*3/4 - sigmoid(-x)/4 },
			scale: func(x float64) float64 { return sigmoid(x)*3/4 + sigmoid(-x)/4 }},
		{name: "CrossEntropyLoss of 0", f: crossEntropy(0), y: minusSoftplus, dy: minusSigmoid},
		{name: "CrossEntropyLoss of 1", gradBound: [2]float64{10, 16}, f: crossEntropy(1), y: softplus, dy: sigmoid},
		{name: "CrossEntropyLoss of 0, fused", single: true, f: oneKernel(0, 0), y: minusSoftplus, dy: minusSigmoid},
		{name: "CrossEntropyLoss of 1, fused", gradBound: [2]float64{2, 16}, single: true, f: oneKernel(1, 0), y: softplus, dy: sigmoid},
		{name: fmt.Sprintf("CrossEntropyLoss near %d", offset), single: true, f: oneKernel(0, offset),
			y: func(x float64) float64 { return softplus(-shifted(x)) }, dy: func(x float64) float64 { return -sigmoid(-shifted(x)) }, in: isNearOffset},
		{name: "LinearCrossEntropyLoss", single: true, f: linearLoss, y: minusSoftplus, dy: minusSigmoid},
	}
}

// A reduction makes one number of many.
type reduction struct {
	name  string
	f     func(x *autograd.Variable) *autograd.Variable
	y     func(xs []float32) float64
	bound float64
}

var reductions = []reduction{
	{"Sum", func(x *autograd.Variable) *autograd.Variable { return autograd.Sum(x) }, sum, 1},
	{"Mean", func(x *autograd.Variable) *autograd.Variable { return autograd.Mean(x) }, mean, 1},
	{"Max", func(x *autograd.Variable) *autograd.Variable { return autograd.Max(x) }, func(xs []float32) float64 { return float64(maxOf(xs)) }, 0},
	{"MSELoss, mean", func(x *autograd.Variable) *autograd.Variable {
		return nn.MSELoss(x, autograd.Zeros(x.Device(), device.Float32, x.Shape()...), nil)
	},
		func(xs []float32) float64 {
			squares := 0.
			for _, x := range xs {
				squares += float64(x) * float64(x)
			}
			return squares / float64(len(xs))
		}, 1},
}

func sum(xs []float32) (s float64) {
	for _, x := range xs {
		s += float64(x)
	}
	return s
}

func mean(xs []float32) float64 { return sum(xs) / float64(len(xs)) }

func maxOf(xs []float32) float32 {
	most := xs[0]
	for _, x := range xs {
		most = max(most, x)
	}
	return most
}

// measure returns the largest error of r, and for which numbers.
func (r *reduction) measure(t *testing.T, dev device.Device) (most float64, at string) {
	rnd := rand.New(rand.NewPCG(3, 4))
	for _, exponent := range []int{-149, -140, -126, -60, 0, 60, 120, 127} {
		for _, n := range []int{1, 2, 3, 1000, 4099} {
			xs := make([]float32, n)
			for i := range xs {
				xs[i] = float32(math.Ldexp(1+rnd.Float64(), exponent-rnd.IntN(20)))
			}
			got, err := r.f(autograd.FromSlice(dev, xs, n)).TryItem(t.Context())
			if err != nil {
				t.Fatalf("%s: %v", r.name, err)
			}
			if e := ulps(got, r.y(xs), 0); e > most {
				most, at = e, fmt.Sprintf("%d below 2^%d", n, exponent+1)
			}
		}
	}
	return most, at
}
