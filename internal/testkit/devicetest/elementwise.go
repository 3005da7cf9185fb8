package devicetest

import (
	"fmt"
	"math"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

// shapes has sizes that vector units and thread blocks divide, and sizes next to those.
var shapes = []device.Shape{
	{}, {0}, {1}, {3}, {7}, {17}, {0, 5}, {255}, {256}, {257}, {1000}, {3, 1, 5}, {33, 65}, {large},
}

// large is a number of elements that kernels divide among threads.
const large = 70001

// mapped returns the array of f's results for the elements of one or more arrays.
func mapped(f func(v ...float64) float64, as ...array) array {
	out := newArray(as[0].shape...)
	args := make([]float64, len(as))
	for i := range out.v {
		for j, a := range as {
			args[j] = a.v[i]
		}
		out.v[i] = f(args...)
	}
	return out
}

func checkAxpby(r *rig) {
	each(r, shapes, func(shape device.Shape) {
		x := r.random(-2, 2, shape...)
		px := r.put(x)
		r.accumulates("Axpby", value{array: x, c: 8}, func(dst device.Tensor, acc device.Accum) error {
			return r.k.Axpby(r.s, dst, acc, px.Tensor)
		})
		scaled := mapped(func(v ...float64) float64 { return v[0]/3 + v[0]/4 }, x)
		r.from("Axpby in place", x, value{array: scaled, c: 8}, func(dst device.Tensor) error {
			return r.k.Axpby(r.s, dst, device.Accum{Alpha: 1. / 3, Beta: 1. / 4}, dst)
		})
	})
}

func checkScaleBy(r *rig) {
	each(r, shapes, func(shape device.Shape) {
		x, f := r.random(-2, 2, shape...), r.random(0.5, 2)
		px, pf := r.put(x), r.placed(r.sums(), f)
		want := mapped(func(v ...float64) float64 { return f.v[0] * v[0] }, x)
		r.accumulates("ScaleBy", value{array: want, c: 8}, func(dst device.Tensor, acc device.Accum) error {
			return r.k.ScaleBy(r.s, dst, acc, pf.Tensor, px.Tensor)
		})
	})
}

// unary is the reference of a UnaryOp: the function, and its derivative as a function of the
// kernel's operands.
type unary struct {
	op     kernels.UnaryOp
	lo, hi float64 // the range of x
	f      func(x float64) float64
	df     func(x, y float64) float64
	// scale returns the scale of f's error; nil stands for the magnitude of f.
	scale func(x float64) float64
}

func (u unary) String() string { return fmt.Sprintf("%v(%v, %v)", u.op, u.op.A, u.op.B) }

var unaries = append([]unary{
	{op: kernels.Neg, lo: -4, hi: 4, f: func(x float64) float64 { return -x }, df: func(x, y float64) float64 { return -1 }},
	{op: kernels.Exp, lo: -6, hi: 6, f: math.Exp, df: func(x, y float64) float64 { return y }},
	{op: kernels.Log, lo: 0.01, hi: 8, f: math.Log, df: func(x, y float64) float64 { return 1 / x }},
	{op: kernels.Sqrt, lo: 0.01, hi: 8, f: math.Sqrt, df: func(x, y float64) float64 { return 0.5 / y }},
	{op: kernels.Rsqrt, lo: 0.01, hi: 8, f: func(x float64) float64 { return 1 / math.Sqrt(x) }, df: func(x, y float64) float64 { return -y * y * y / 2 }},
	{op: kernels.Tanh, lo: -6, hi: 6, f: math.Tanh, df: func(x, y float64) float64 { return 1 - math.Tanh(x)*math.Tanh(x) }},
	{op: kernels.Sigmoid, lo: -9, hi: 9, f: logistic, df: func(x, y float64) float64 { return logistic(x) * logistic(-x) }},
	{op: kernels.ReLU, lo: -4, hi: 4, f: func(x float64) float64 { return max(x, 0) }, df: func(x, y float64) float64 { return choose(y, 0, 0, 1) }},
	{op: kernels.GELU, lo: -6, hi: 6, f: func(x float64) float64 { return x / 2 * (1 + math.Erf(x/math.Sqrt2)) }, df: func(x, y float64) float64 {
		return (1+math.Erf(x/math.Sqrt2))/2 + x*math.Exp(-x*x/2)/math.Sqrt(2*math.Pi)
	}, scale: math.Abs}, // far below 0, f is small compared with x but its relative slope is steep
	{op: kernels.GELUTanh, lo: -6, hi: 6, f: func(x float64) float64 { return x / 2 * (1 + math.Tanh(tanhOf(x))) }, df: func(x, y float64) float64 {
		t := math.Tanh(tanhOf(x))
		return (1+t)/2 + x/2*(1-t*t)*math.Sqrt(2/math.Pi)*(1+3*0.044715*x*x)
	}, scale: math.Abs},
	{op: kernels.Abs, lo: -4, hi: 4, f: math.Abs, df: func(x, y float64) float64 { return choose(x, 0, -1, 1) + 0*x }},
	{op: kernels.Sin, lo: -4, hi: 4, f: math.Sin, df: func(x, y float64) float64 { return math.Cos(x) }, scale: one},
	{op: kernels.Cos, lo: -4, hi: 4, f: math.Cos, df: func(x, y float64) float64 { return -math.Sin(x) }, scale: one},
	{op: kernels.SiLU, lo: -6, hi: 6, f: func(x float64) float64 { return x * logistic(x) }, df: func(x, y float64) float64 {
		return logistic(x) * (1 + x*(1-logistic(x)))
	}, scale: math.Abs},
	{op: kernels.AddScalar(0.75), lo: -4, hi: 4, f: func(x float64) float64 { return x + 0.75 }, df: func(x, y float64) float64 { return 1 },
		scale: func(x float64) float64 { return math.Abs(x) + 1 }},
	{op: kernels.Clamp(-1, 0.5), lo: -2, hi: 2, f: func(x float64) float64 { return min(max(x, -1), 0.5) }, df: clampSlope(-1, 0.5)},
	{op: kernels.Clamp(math.Inf(-1), 0.5), lo: -2, hi: 2, f: func(x float64) float64 { return min(x, 0.5) }, df: clampSlope(math.Inf(-1), 0.5)},
	{op: kernels.Clamp(1, -0.5), lo: -2, hi: 2, f: func(x float64) float64 { return min(max(x, 1), -0.5) }, df: func(x, y float64) float64 { return 0 * x }},
	{op: kernels.LeakyReLU(0.01), lo: -4, hi: 4, f: func(x float64) float64 { return max(x, 0.01*x) }, df: func(x, y float64) float64 {
		return choose(x, 0.01, 0.01, 1)
	}},
	{op: kernels.ELU(0.7), lo: -4, hi: 4, f: func(x float64) float64 { return max(x, 0) + 0.7*math.Expm1(min(x, 0)) }, df: func(x, y float64) float64 {
		return choose(x, 0.7, 0.7*math.Exp(x), 1)
	}},
	softplus(2, 4), softplus(1, math.Inf(1)),
}, powers(-1.5, 0, 0.5, 1, 2, 3)...)

func one(float64) float64 { return 1 }

func logistic(x float64) float64 { return 1 / (1 + math.Exp(-x)) }

// choose returns zero, below or above, by the sign of x, and NaN if x is NaN.
func choose(x, zero, below, above float64) float64 {
	switch {
	case x < 0:
		return below
	case x > 0:
		return above
	case x == 0:
		return zero
	}
	return x
}

// clampSlope returns the derivative of Clamp.
func clampSlope(lo, hi float64) func(x, y float64) float64 {
	return func(x, y float64) float64 {
		switch {
		case x >= lo && x <= hi:
			return 1
		case x != x:
			return x
		}
		return 0
	}
}

func softplus(beta, threshold float64) unary {
	return unary{op: kernels.Softplus(beta, threshold), lo: -4, hi: 4, f: func(x float64) float64 {
		if beta*x > threshold {
			return x
		}
		return math.Log1p(math.Exp(beta*x)) / beta
	}, df: func(x, y float64) float64 {
		if beta*x > threshold {
			return 1
		}
		return logistic(beta * x)
	}, scale: func(x float64) float64 { return 1 + math.Abs(x) }}
}

func powers(exponents ...float64) (out []unary) {
	for _, a := range exponents {
		u := unary{op: kernels.Pow(a), lo: 0.1, hi: 4, f: func(x float64) float64 { return math.Pow(x, a) }, df: func(x, y float64) float64 {
			if a == 0 {
				return 0
			}
			return a * math.Pow(x, a-1)
		}, scale: func(x float64) float64 { return 4 * math.Abs(math.Pow(x, a)) }} // CUDA's powf may be off by 4 units in the last place
		if a == math.Trunc(a) && a > 0 {
			u.lo = -3
		}
		out = append(out, u)
	}
	return out
}

// tanhOf returns the argument of tanh in GELUTanh.
func tanhOf(x float64) float64 { return math.Sqrt(2/math.Pi) * (x + 0.044715*math.Pow(x, 3)) }

func checkUnary(r *rig) {
	for i, u := range unaries {
		shapes := shapes
		if r.quick && i > 0 {
			shapes = shapes[:len(shapes)-1]
		}
		edge := []float64{math.NaN(), 0, 1, math.Inf(1)}
		want := make([]float64, len(edge))
		for i, x := range edge {
			want[i] = u.f(x)
		}
		px := r.put(array{device.Shape{4}, edge})
		r.result(u.String()+" of NaN, 0, 1, +Inf", value{array: array{device.Shape{4}, want}, c: 8}, func(dst device.Tensor) error {
			return r.k.Unary(r.s, u.op, dst, px.Tensor)
		})
		each(r, shapes, func(shape device.Shape) {
			x := r.random(u.lo, u.hi, shape...)
			px := r.put(x)
			want := value{array: mapped(func(v ...float64) float64 { return u.f(v[0]) }, x), c: 8}
			if u.scale != nil {
				want.scale = mapped(func(v ...float64) float64 { return u.scale(v[0]) }, x).v
			}
			r.result(u.String(), want, func(dst device.Tensor) error { return r.k.Unary(r.s, u.op, dst, px.Tensor) })
			r.from(u.String()+" in place", x, want, func(dst device.Tensor) error { return r.k.Unary(r.s, u.op, dst, dst) })
		})
	}
}

func checkUnaryGrad(r *rig) {
	for _, u := range unaries {
		each(r, shapes[:len(shapes)-1], func(shape device.Shape) {
			label := fmt.Sprintf("gradient of %v", u)
			x, g := r.random(u.lo, u.hi, shape...), r.random(-2, 2, shape...)
			y := mapped(func(v ...float64) float64 { return round(r.dt, u.f(v[0])) }, x)
			var tx, ty device.Tensor
			switch u.op.Given() {
			case kernels.GivenX:
				tx = r.put(x).Tensor
			case kernels.GivenY:
				ty = r.put(y).Tensor
			}
			pg := r.put(g)
			want := value{array: mapped(func(v ...float64) float64 { return v[0] * u.df(v[1], v[2]) }, g, x, y), c: 8}
			switch u.op.Func {
			case kernels.FuncGELUTanh, kernels.FuncSiLU, kernels.FuncSoftplus, kernels.FuncELU, kernels.FuncPow:
				want.c = 16 // the kernel rounds several times, once before an exponential
			}
			want.scale = mapped(func(v ...float64) float64 { return math.Abs(v[0]) * max(1, math.Abs(u.df(v[1], v[2]))) }, g, x, y).v
			r.accumulates(label, want, func(dst device.Tensor, acc device.Accum) error {
				return r.k.UnaryGrad(r.s, u.op, dst, acc, pg.Tensor, tx, ty)
			})
			for i := range want.v {
				want.v[i] /= 3
			}
			r.from(label+" over g", g, want, func(dst device.Tensor) error {
				return r.k.UnaryGrad(r.s, u.op, dst, device.Accum{Alpha: 1. / 3}, dst, tx, ty)
			})
		})
	}
}
