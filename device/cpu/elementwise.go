package cpu

import (
	"math"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/internal/operand"
)

func (k *kernels) Axpby(_ device.Stream, dst device.Tensor, acc device.Accum, x device.Tensor) error {
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

func (k *kernels) Unary(_ device.Stream, op device.UnaryOp, dst, x device.Tensor) error {
	operands.Same(op.String(), dst, x)
	if dst.DType == device.Float32 {
		unary[float32](k, op, dst, x)
	} else {
		unary[float64](k, op, dst, x)
	}
	return nil
}

func (k *kernels) UnaryGrad(_ device.Stream, op device.UnaryOp, dst device.Tensor, acc device.Accum, g, x, y device.Tensor) error {
	known := operands.UnaryGrad(op, dst, g, x, y)
	if dst.DType == device.Float32 {
		unaryGrad[float32](k, op, dst, acc, g, known)
	} else {
		unaryGrad[float64](k, op, dst, acc, g, known)
	}
	return nil
}

func axpby[T float](k *kernels, dst device.Tensor, acc device.Accum, x device.Tensor) {
	d, v := device.Elements[T](dst), device.Elements[T](x)
	k.each(len(d), 1, func(lo, hi int) { accumulate(d[lo:hi], acc, v[lo:hi]) })
}

// axpbyHalf takes what is in 16 bits through float32, a tile at a time.
func axpbyHalf(k *kernels, dst device.Tensor, acc device.Accum, x device.Tensor) {
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

// accumulate computes dst = Alpha·x + Beta·dst, without reading dst when Beta
// is 0; dst may be x.
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

// tiled accumulates into dst what value writes: elements lo to lo+len(tile)
// of a result. value may read dst's own elements when Beta is 0.
func tiled[T float](k *kernels, dst []T, acc device.Accum, value func(tile []T, lo int)) {
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

func unary[T float](k *kernels, op device.UnaryOp, dst, x device.Tensor) {
	d, v := device.Elements[T](dst), device.Elements[T](x)
	k.each(len(d), 1, func(lo, hi int) { apply(op, d[lo:hi], v[lo:hi]) })
}

// apply computes dst = op(x).
func apply[T float](op device.UnaryOp, dst, x []T) {
	x = x[:len(dst)]
	switch op {
	case device.Neg:
		for i, v := range x {
			dst[i] = -v
		}
	case device.Exp:
		for i, v := range x {
			dst[i] = T(math.Exp(float64(v)))
		}
	case device.Log:
		for i, v := range x {
			dst[i] = T(math.Log(float64(v)))
		}
	case device.Sqrt:
		for i, v := range x {
			dst[i] = T(math.Sqrt(float64(v)))
		}
	case device.Tanh:
		for i, v := range x {
			dst[i] = T(math.Tanh(float64(v)))
		}
	case device.Sigmoid:
		for i, v := range x {
			dst[i] = T(1 / (1 + math.Exp(-float64(v))))
		}
	case device.ReLU:
		relu(dst, x)
	case device.GELU:
		for i, v := range x {
			dst[i] = T(float64(v) * normalCDF(float64(v)))
		}
	case device.GELUTanh:
		for i, v := range x {
			x := float64(v)
			dst[i] = T(x * (1 + geluTanh(x)) / 2)
		}
	}
}

// normalCDF is the normal distribution function: by erfc, which keeps its
// digits where the result is small.
func normalCDF(x float64) float64 { return math.Erfc(-x/math.Sqrt2) / 2 }

// GELUTanh takes the tanh of geluC·(x + geluK·x³).
const (
	geluC = math.Sqrt2 / math.SqrtPi
	geluK = 0.044715
)

func geluTanh(x float64) float64 { return math.Tanh(geluC * (x + geluK*x*x*x)) }

// relu computes dst = max(x, 0); a NaN stays one.
func relu[T float](dst, x []T) {
	for i, v := range x {
		dst[i] = max(v, 0)
	}
}

// unaryGrad accumulates g·op'(x) into dst, given what op's derivative is
// written in: y = op(x), or x for Log and the GELUs.
func unaryGrad[T float](k *kernels, op device.UnaryOp, dst device.Tensor, acc device.Accum, g, known device.Tensor) {
	d, gs, ks := device.Elements[T](dst), device.Elements[T](g), device.Elements[T](known)
	tiled(k, d, acc, func(t []T, lo int) { derive(op, t, gs[lo:], ks[lo:]) })
}

// derive computes dst = g·op'(x); v is y = op(x), or x for Log and the GELUs.
func derive[T float](op device.UnaryOp, dst, g, v []T) {
	g, v = g[:len(dst)], v[:len(dst)]
	switch op {
	case device.Neg:
		for i := range dst {
			dst[i] = -g[i]
		}
	case device.Exp:
		for i := range dst {
			dst[i] = g[i] * v[i]
		}
	case device.Log:
		for i := range dst {
			dst[i] = g[i] / v[i]
		}
	case device.Sqrt:
		for i := range dst {
			dst[i] = g[i] / (2 * v[i])
		}
	case device.Tanh:
		for i := range dst {
			dst[i] = g[i] * (1 - v[i]*v[i])
		}
	case device.Sigmoid:
		for i := range dst {
			dst[i] = g[i] * v[i] * (1 - v[i])
		}
	case device.ReLU:
		reluGrad(dst, g, v)
	case device.GELU:
		for i := range dst {
			x := float64(v[i])
			density := math.Exp(-x*x/2) / math.Sqrt(2*math.Pi)
			dst[i] = T(float64(g[i]) * (normalCDF(x) + x*density))
		}
	case device.GELUTanh:
		for i := range dst {
			x := float64(v[i])
			t := geluTanh(x)
			dst[i] = T(float64(g[i]) * (1 + t + x*(1-t*t)*geluC*(1+3*geluK*x*x)) / 2)
		}
	}
}

// reluGrad computes dst = g where y > 0, else y, which is then 0 or NaN. It
// selects among integers, which the compiler does without a branch: the signs of
// activations are as good as random, and a branch on them costs several times
// the memory's time.
func reluGrad[T float](dst, g, y []T) {
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
