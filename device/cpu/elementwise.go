package cpu

import (
	"fmt"
	"math"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/internal/operand"
	"github.com/goddp/goddp/internal/kernels"
)

func (k *kernelSet) Axpby(_ device.Stream, dst device.Tensor, acc device.Accum, x device.Tensor) error {
	operand.Axpby(dst, x)
	switch dst.DType {
	case device.Float32:
		axpby[float32](k, dst, acc, x)
	case device.Float64:
		axpby[float64](k, dst, acc, x)
	default:
		axpbyHalf(k, dst, acc, x)
	}
	return nil
}

func (k *kernelSet) ScaleBy(_ device.Stream, dst device.Tensor, acc device.Accum, factor, x device.Tensor) error {
	operands.ScaleBy(dst, factor, x)
	pick(dst, scaleBy[float32], scaleBy[float64])(k, dst, acc, factor, x)
	return nil
}

func (k *kernelSet) Unary(_ device.Stream, op kernels.UnaryOp, dst, x device.Tensor) error {
	operands.Same(op.String(), dst, x)
	pick(dst, unary[float32], unary[float64])(k, op, dst, x)
	return nil
}

func (k *kernelSet) UnaryGrad(_ device.Stream, op kernels.UnaryOp, dst device.Tensor, acc device.Accum, g, x, y device.Tensor) error {
	known := operands.UnaryGrad(op, dst, g, x, y)
	pick(dst, unaryGrad[float32], unaryGrad[float64])(k, op, dst, acc, g, known)
	return nil
}

func axpby[T float](k *kernelSet, dst device.Tensor, acc device.Accum, x device.Tensor) {
	d, v := device.Elements[T](dst), device.Elements[T](x)
	k.each(len(d), 1, func(lo, hi int) { accumulate(d[lo:hi], acc, v[lo:hi]) })
}

// axpbyHalf converts 16-bit operands to float32, one tile at a time.
func axpbyHalf(k *kernelSet, dst device.Tensor, acc device.Accum, x device.Tensor) {
	d, v := newOperand32(dst), newOperand32(x)
	k.each(dst.Len(), 4, func(lo, hi int) {
		var bd, bv [tile]float32
		for ; lo < hi; lo += tile {
			to := min(lo+tile, hi)
			sum := bd[:to-lo]
			if acc.Beta != 0 {
				sum = d.read(bd[:], lo, to)
			}
			accumulate(sum, acc, v.read(bv[:], lo, to))
			d.write(sum, lo)
		}
	})
}

// accumulate computes dst = Alpha·x + Beta·dst. It does not read dst if Beta is 0. dst may be x.
func accumulate[T float](dst []T, acc device.Accum, x []T) {
	a, b := T(acc.Alpha), T(acc.Beta)
	x = x[:len(dst)]
	switch {
	case b == 0 && a == 1:
		copy(dst, x)
	case b == 0:
		for i, v := range x {
			dst[i] = a * v
		}
	case a == 1 && b == 1:
		for i, v := range x {
			dst[i] += v
		}
	default:
		for i, v := range x {
			dst[i] = a*v + b*dst[i]
		}
	}
}

// tiled accumulates the results of the function value into dst, tile by tile. value writes the elements lo to
// lo+len(tile)-1 of its result to tile. It may read the same elements of dst if Beta is 0.
func tiled[T float](k *kernelSet, dst []T, acc device.Accum, value func(tile []T, lo int)) {
	k.each(len(dst), 1, func(lo, hi int) {
		if acc == device.Store {
			value(dst[lo:hi], lo)
			return
		}
		var buf [tile]T
		for ; lo < hi; lo += tile {
			t := buf[:min(tile, hi-lo)]
			value(t, lo)
			accumulate(dst[lo:lo+len(t)], acc, t)
		}
	})
}

func scaleBy[T float](k *kernelSet, dst device.Tensor, acc device.Accum, factor, x device.Tensor) {
	f, v := device.Elements[T](factor)[0], device.Elements[T](x)
	tiled(k, device.Elements[T](dst), acc, func(t []T, lo int) {
		for i, x := range v[lo : lo+len(t)] {
			t[i] = f * x
		}
	})
}

func unary[T float](k *kernelSet, op kernels.UnaryOp, dst, x device.Tensor) {
	d, v := device.Elements[T](dst), device.Elements[T](x)
	k.each(len(d), cost(op), func(lo, hi int) { apply(op, d[lo:hi], v[lo:hi]) })
}

// cost returns the time that op takes for an element, relative to a simple operation such as an addition.
func cost(op kernels.UnaryOp) int {
	switch op.Func {
	case kernels.FuncNeg, kernels.FuncReLU, kernels.FuncAbs, kernels.FuncAddScalar, kernels.FuncClamp, kernels.FuncLeakyReLU:
		return 1
	}
	return 8
}

// float32s returns v if its type is float32, else nil. Vector kernels exist only for that type.
func float32s[T float](v []T) []float32 {
	f, _ := any(v).([]float32)
	return f
}

// apply computes dst = op(x).
func apply[T float](op kernels.UnaryOp, dst, x []T) {
	x = x[:len(dst)]
	a, b := T(op.A), T(op.B)
	switch op.Func {
	case kernels.FuncNeg:
		for i, v := range x {
			dst[i] = -v
		}
	case kernels.FuncReLU:
		relu(dst, x)
	case kernels.FuncAbs:
		for i, v := range x {
			dst[i] = T(math.Abs(float64(v)))
		}
	case kernels.FuncAddScalar:
		for i, v := range x {
			dst[i] = v + a
		}
	case kernels.FuncClamp:
		for i, v := range x {
			dst[i] = min(max(v, a), b)
		}
	case kernels.FuncLeakyReLU:
		for i, v := range x {
			if !(v > 0) {
				v *= a
			}
			dst[i] = v
		}
	default:
		if vectorUnary(op.Func, float32s(dst), float32s(x)) {
			return
		}
		f := function(op)
		for i, v := range x {
			dst[i] = T(f(float64(v)))
		}
	}
}

// function returns op as a Go function of one number. It is for operations that take much longer than a call.
func function(op kernels.UnaryOp) func(x float64) float64 {
	switch op.Func {
	case kernels.FuncExp:
		return math.Exp
	case kernels.FuncLog:
		return math.Log
	case kernels.FuncSqrt:
		return func(x float64) float64 { return math.Sqrt(x) }
	case kernels.FuncTanh:
		return math.Tanh
	case kernels.FuncSigmoid:
		return sigmoid
	case kernels.FuncGELU:
		return func(x float64) float64 { return x * normalCDF(x) }
	case kernels.FuncGELUTanh:
		return func(x float64) float64 { return x * sigmoid(2*geluTanh(x)) }
	case kernels.FuncRsqrt:
		return func(x float64) float64 { return 1 / math.Sqrt(x) }
	case kernels.FuncSin:
		return math.Sin
	case kernels.FuncCos:
		return math.Cos
	case kernels.FuncSiLU:
		return func(x float64) float64 { return x * sigmoid(x) }
	case kernels.FuncPow:
		return power(op.A)
	case kernels.FuncELU:
		return func(x float64) float64 {
			if x > 0 {
				return x
			}
			return op.A * math.Expm1(x)
		}
	case kernels.FuncSoftplus:
		return func(x float64) float64 {
			z := op.A * x
			if z > op.B {
				return x
			}
			return (max(z, 0) + math.Log1p(math.Exp(-math.Abs(z)))) / op.A
		}
	}
	panic(fmt.Errorf("cpu: no function %d", op.Func))
}

// sigmoid and its derivative sigmoidSlope are accurate in both tails: they compute small results without a
// subtraction from 1.
func sigmoid(x float64) float64 {
	e := math.Exp(-math.Abs(x))
	if x < 0 {
		return e / (1 + e)
	}
	return 1 / (1 + e)
}

func sigmoidSlope(x float64) float64 {
	e := math.Exp(-math.Abs(x))
	return e / ((1 + e) * (1 + e))
}

// power returns x to the power of a.
func power(a float64) func(x float64) float64 {
	switch a {
	case 1:
		return func(x float64) float64 { return x }
	case 2:
		return func(x float64) float64 { return x * x }
	}
	return func(x float64) float64 { return math.Pow(x, a) }
}

// normalCDF returns the normal distribution function. It uses erfc, which stays accurate for small results.
func normalCDF(x float64) float64 { return math.Erfc(-x/math.Sqrt2) / 2 }

// The coefficients of u, the argument of tanh in GELUTanh. (1 + tanh u)/2 is computed as sigmoid(2u), which is accurate
// for small results.
const (
	geluC = math.Sqrt2 / math.SqrtPi
	geluK = 0.044715
)

func geluTanh(x float64) float64 { return geluC * (x + geluK*x*x*x) }

// relu computes dst = max(x, 0). NaN stays NaN.
func relu[T float](dst, x []T) {
	if vectorReLU(float32s(dst), float32s(x)) {
		return
	}
	for i, v := range x {
		dst[i] = max(v, 0)
	}
}

// unaryGrad accumulates g·op'(x) into dst. known is x or op(x), as op.Given states.
func unaryGrad[T float](k *kernelSet, op kernels.UnaryOp, dst device.Tensor, acc device.Accum, g, known device.Tensor) {
	d, gs, ks := device.Elements[T](dst), device.Elements[T](g), device.Elements[T](known)
	tiled(k, d, acc, func(t []T, lo int) { derive(op, t, gs[lo:], ks[lo:]) })
}

// derive computes dst = g·op'(x). v is x or y = op(x), as op.Given states.
func derive[T float](op kernels.UnaryOp, dst, g, v []T) {
	g, v = g[:len(dst)], v[:len(dst)]
	a, b := T(op.A), T(op.B)
	switch op.Func {
	case kernels.FuncNeg:
		for i := range dst {
			dst[i] = -g[i]
		}
	case kernels.FuncAddScalar:
		copy(dst, g)
	case kernels.FuncExp:
		for i := range dst {
			dst[i] = g[i] * v[i]
		}
	case kernels.FuncLog:
		for i := range dst {
			dst[i] = g[i] / v[i]
		}
	case kernels.FuncSqrt:
		for i := range dst {
			dst[i] = g[i] / (2 * v[i])
		}
	case kernels.FuncRsqrt:
		for i := range dst {
			dst[i] = g[i] * -0.5 * v[i] * v[i] * v[i] // halve first: no intermediate product overflows unless the result does
		}
	case kernels.FuncReLU:
		reluGrad(dst, g, v)
	case kernels.FuncAbs:
		for i, x := range v {
			switch {
			case x > 0:
				dst[i] = g[i]
			case x < 0:
				dst[i] = -g[i]
			default: // 0 or NaN
				dst[i] = g[i] * x
			}
		}
	case kernels.FuncClamp:
		for i, x := range v {
			switch {
			case x >= a && x <= b:
				dst[i] = g[i]
			case x != x:
				dst[i] = x
			default:
				dst[i] = 0
			}
		}
	case kernels.FuncLeakyReLU:
		for i, x := range v {
			switch {
			case x > 0:
				dst[i] = g[i]
			case x <= 0:
				dst[i] = a * g[i]
			default:
				dst[i] = x
			}
		}
	default:
		if vectorUnaryGrad(op.Func, float32s(dst), float32s(g), float32s(v)) {
			return
		}
		df := derivative(op)
		for i, x := range v {
			dst[i] = T(float64(g[i]) * df(float64(x)))
		}
	}
}

// derivative returns the derivative of op as a Go function of x. It is for operations that take much longer than a call.
func derivative(op kernels.UnaryOp) func(x float64) float64 {
	switch op.Func {
	case kernels.FuncGELU:
		return func(x float64) float64 {
			density := math.Exp(-x*x/2) / math.Sqrt(2*math.Pi)
			return normalCDF(x) + x*density
		}
	case kernels.FuncGELUTanh:
		return func(x float64) float64 {
			u2 := 2 * geluTanh(x)
			slope := sigmoidSlope(u2)
			if slope != 0 { // else x² may be infinite
				slope *= x * 2 * geluC * (1 + 3*geluK*x*x)
			}
			return sigmoid(u2) + slope
		}
	case kernels.FuncTanh:
		return func(x float64) float64 { return 4 * sigmoidSlope(2*x) }
	case kernels.FuncSigmoid:
		return sigmoidSlope
	case kernels.FuncSin:
		return math.Cos
	case kernels.FuncCos:
		return func(x float64) float64 { return -math.Sin(x) }
	case kernels.FuncSiLU:
		return func(x float64) float64 {
			s := sigmoid(x)
			return s * (1 + x*(1-s))
		}
	case kernels.FuncPow:
		if op.A == 0 {
			return func(float64) float64 { return 0 }
		}
		f := power(op.A - 1)
		return func(x float64) float64 { return op.A * f(x) }
	case kernels.FuncELU:
		return func(x float64) float64 {
			if x > 0 {
				return 1
			}
			return op.A * math.Exp(x)
		}
	case kernels.FuncSoftplus:
		return func(x float64) float64 {
			z := op.A * x
			if z > op.B {
				return 1
			}
			return sigmoid(z)
		}
	}
	panic(fmt.Errorf("cpu: no derivative of function %d", op.Func))
}

// reluGrad computes dst = g where y > 0, and dst = y, which is 0 or NaN, elsewhere. It converts g and y to
// integers and selects one of them, because for integers the compiler makes no branch. Branches on the signs of
// activations, which are close to random, would be mispredicted, and take several times as long as the memory accesses.
func reluGrad[T float](dst, g, y []T) {
	if vectorReLUGrad(float32s(dst), float32s(g), float32s(y)) {
		return
	}
	switch dst := any(dst).(type) {
	case []float32:
		g, y := any(g).([]float32), any(y).([]float32)
		for i, v := range y[:len(dst)] {
			b := math.Float32bits(g[i])
			if !(v > 0) {
				b = math.Float32bits(v)
			}
			dst[i] = math.Float32frombits(b)
		}
	case []float64:
		g, y := any(g).([]float64), any(y).([]float64)
		for i, v := range y[:len(dst)] {
			b := math.Float64bits(g[i])
			if !(v > 0) {
				b = math.Float64bits(v)
			}
			dst[i] = math.Float64frombits(b)
		}
	}
}
