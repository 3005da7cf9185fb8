package devicetest

import (
	"fmt"
	"math"

	"github.com/goddp/goddp/device"
)

// shapes are sizes at and around what vector units and thread blocks divide.
var shapes = []device.Shape{
	{}, {0}, {1}, {3}, {7}, {17}, {0, 5}, {255}, {256}, {257}, {1000}, {3, 1, 5}, {33, 65}, {large},
}

// large is a number of elements that is worth splitting among threads.
const large = 70001

// mapped is the array of f of one or more arrays' elements.
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

// unary is the reference of a UnaryOp: the function, and its derivative given
// what the kernel is given.
type unary struct {
	op     device.UnaryOp
	lo, hi float64 // where x is drawn from
	f      func(x float64) float64
	df     func(x, y float64) float64
	given  string // "x", "y" or neither
}

var unaries = []unary{
	{device.Neg, -4, 4, func(x float64) float64 { return -x }, func(x, y float64) float64 { return -1 }, ""},
	{device.Exp, -6, 6, math.Exp, func(x, y float64) float64 { return y }, "y"},
	{device.Log, 0.01, 8, math.Log, func(x, y float64) float64 { return 1 / x }, "x"},
	{device.Sqrt, 0.01, 8, math.Sqrt, func(x, y float64) float64 { return 0.5 / y }, "y"},
	{device.Tanh, -6, 6, math.Tanh, func(x, y float64) float64 { return 1 - y*y }, "y"},
	{device.Sigmoid, -9, 9, func(x float64) float64 { return 1 / (1 + math.Exp(-x)) }, func(x, y float64) float64 { return y * (1 - y) }, "y"},
	{device.ReLU, -4, 4, func(x float64) float64 { return max(x, 0) }, func(x, y float64) float64 {
		switch {
		case y > 0:
			return 1
		case y == 0:
			return 0
		}
		return math.NaN()
	}, "y"},
	{device.GELU, -6, 6, func(x float64) float64 { return x / 2 * (1 + math.Erf(x/math.Sqrt2)) }, func(x, y float64) float64 {
		return (1+math.Erf(x/math.Sqrt2))/2 + x*math.Exp(-x*x/2)/math.Sqrt(2*math.Pi)
	}, "x"},
	{device.GELUTanh, -6, 6, func(x float64) float64 { return x / 2 * (1 + math.Tanh(tanhOf(x))) }, func(x, y float64) float64 {
		t := math.Tanh(tanhOf(x))
		return (1+t)/2 + x/2*(1-t*t)*math.Sqrt(2/math.Pi)*(1+3*0.044715*x*x)
	}, "x"},
}

// tanhOf is what GELUTanh takes the tanh of.
func tanhOf(x float64) float64 { return math.Sqrt(2/math.Pi) * (x + 0.044715*math.Pow(x, 3)) }

func checkUnary(r *rig) {
	for _, u := range unaries {
		edge := []float64{math.NaN(), 0, 1, math.Inf(1)}
		want := make([]float64, len(edge))
		for i, x := range edge {
			want[i] = u.f(x)
		}
		px := r.put(array{device.Shape{4}, edge})
		r.result(u.op.String()+" of NaN, 0, 1, +Inf", value{array: array{device.Shape{4}, want}, c: 8}, func(dst device.Tensor) error {
			return r.k.Unary(r.s, u.op, dst, px.Tensor)
		})
		each(r, shapes, func(shape device.Shape) {
			x := r.random(u.lo, u.hi, shape...)
			px := r.put(x)
			want := value{array: mapped(func(v ...float64) float64 { return u.f(v[0]) }, x), c: 8}
			if u.op == device.GELU || u.op == device.GELUTanh { // far below 0 they are small beside x, and steep in it
				want.scale = mapped(func(v ...float64) float64 { return math.Abs(v[0]) }, x).v
			}
			r.result(u.op.String(), want, func(dst device.Tensor) error { return r.k.Unary(r.s, u.op, dst, px.Tensor) })
			r.from(u.op.String()+" in place", x, want, func(dst device.Tensor) error { return r.k.Unary(r.s, u.op, dst, dst) })
		})
	}
}

func checkUnaryGrad(r *rig) {
	for _, u := range unaries {
		each(r, shapes[:len(shapes)-1], func(shape device.Shape) {
			label := fmt.Sprintf("gradient of %v", u.op)
			x, g := r.random(u.lo, u.hi, shape...), r.random(-2, 2, shape...)
			y := mapped(func(v ...float64) float64 { return round(r.dt, u.f(v[0])) }, x)
			var tx, ty device.Tensor
			switch u.given {
			case "x":
				tx = r.put(x).Tensor
			case "y":
				ty = r.put(y).Tensor
			}
			pg := r.put(g)
			want := value{array: mapped(func(v ...float64) float64 { return v[0] * u.df(v[1], v[2]) }, g, x, y), c: 8}
			if u.op == device.GELUTanh {
				want.c = 16 // a dozen operations, one of them an exponential of a rounded number
			}
			// 1-y² and 1-y cancel near 1.
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
