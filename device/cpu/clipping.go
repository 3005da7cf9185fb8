package cpu

import (
	"math"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/internal/operand"
	"github.com/goddp/goddp/internal/kernels"
)

func (k *kernelSet) PowerSum(_ device.Stream, dst device.Tensor, p float64, xs ...device.Tensor) error {
	operand.PowerSum(dst, xs)
	var sum float64
	for _, x := range xs {
		var part float64
		if x.DType == device.Float64 {
			v := device.Elements[float64](x)
			part = powerSum(k, p, len(v), func(_ []float64, lo, hi int) []float64 { return v[lo:hi] })
		} else {
			part = powerSum(k, p, x.Len(), newOperand32(x).read)
		}
		sum = joinPowers(p, sum, part)
	}
	device.Elements[float64](dst)[0] = sum
	return nil
}

// powerSum returns Σ|x|^p over n elements, or the largest |x| if p is infinite. The function read returns the elements
// lo to hi, and may use the memory of buf for them.
func powerSum[T float](k *kernelSet, p float64, n int, read func(buf []T, lo, hi int) []T) (sum float64) {
	parts := make([]float64, (n+chunk-1)/chunk)
	k.each(len(parts), chunk, func(first, last int) {
		var buf [tile]T
		for i := first; i < last; i++ {
			end := min((i+1)*chunk, n)
			for lo := i * chunk; lo < end; lo += tile {
				parts[i] = joinPowers(p, parts[i], powers(p, read(buf[:], lo, min(lo+tile, end))))
			}
		}
	})
	for _, part := range parts {
		sum = joinPowers(p, sum, part)
	}
	return sum
}

// powers returns Σ|x|^p, or the largest |x| if p is infinite.
func powers[T float](p float64, x []T) (sum float64) {
	switch {
	case p == 2:
		return squares(x, 0)
	case math.IsInf(p, 1):
		for _, v := range x {
			sum = max(sum, math.Abs(float64(v)))
		}
	case p == 1:
		for _, v := range x {
			sum += math.Abs(float64(v))
		}
	default:
		for _, v := range x {
			sum += math.Pow(math.Abs(float64(v)), p)
		}
	}
	return sum
}

// joinPowers combines what the function powers returned for two parts of an array: their sum, or their maximum if
// p is infinite.
func joinPowers(p, a, b float64) float64 {
	if math.IsInf(p, 1) {
		return max(a, b)
	}
	return a + b
}

func (k *kernelSet) ScaleToNorm(_ device.Stream, norm, total device.Tensor, p, limit float64, xs ...device.Tensor) error {
	operand.ScaleToNorm(norm, total, xs)
	root := kernels.PowerRoot(device.Elements[float64](total)[0], p)
	if norm.DType == device.Float32 {
		device.Elements[float32](norm)[0] = float32(root)
	} else {
		device.Elements[float64](norm)[0] = root
	}
	factor := kernels.NormFactor(root, limit)
	if factor == 1 {
		return nil
	}
	for _, x := range xs {
		if x.DType == device.Float64 {
			v := device.Elements[float64](x)
			k.each(len(v), 1, func(lo, hi int) { scale(v[lo:hi], factor) })
			continue
		}
		v := newOperand32(x)
		k.each(x.Len(), 1, func(lo, hi int) {
			var buf [tile]float32
			for ; lo < hi; lo += tile {
				part := v.read(buf[:], lo, min(lo+tile, hi))
				scale(part, float32(factor))
				v.write(part, lo)
			}
		})
	}
	return nil
}

func scale[T float](x []T, factor T) {
	for i := range x {
		x[i] *= factor
	}
}
