package cpu

import (
	"math"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/internal/operand"
	"github.com/goddp/goddp/internal/kernels"
)

func (k *kernelSet) Fill(_ device.Stream, dst device.Tensor, v float64) error {
	operand.Fill(dst)
	k.each(dst.Len(), 1, func(lo, hi int) {
		var buf [tile]float64
		fill(buf[:min(tile, hi-lo)], v)
		for ; lo < hi; lo += tile {
			n := min(tile, hi-lo)
			narrow(dst.Range(lo, lo+n), buf[:n])
		}
	})
	return nil
}

// Copy converts floats through float64, which represents each of them exactly, and integers through int64. It
// converts directly between float32 and the 16-bit types, the most frequent conversions. A float outside
// an integer type's range becomes the nearest number in the range, and NaN becomes 0. Integers wrap.
func (k *kernelSet) Copy(_ device.Stream, dst, src device.Tensor) error {
	operand.Copy(dst, src)
	n := dst.Len()
	if dst.DType == src.DType {
		size := dst.DType.Size()
		to, from := dst.Buf.Host(), src.Buf.Host()
		k.each(n, 1, func(lo, hi int) { copy(to[lo*size:hi*size], from[lo*size:hi*size]) })
		return nil
	}
	half := func(dt device.DType) bool { return dt == device.Float16 || dt == device.BFloat16 }
	switch {
	case dst.DType == device.Float32 && half(src.DType):
		to, from := device.Elements[float32](dst), newOperand32(src)
		k.each(n, 1, func(lo, hi int) { from.read(to[lo:hi], lo, hi) })
		return nil
	case src.DType == device.Float32 && half(dst.DType):
		to, from := newOperand32(dst), device.Elements[float32](src)
		k.each(n, 1, func(lo, hi int) { to.write(from[lo:hi], lo) })
		return nil
	}
	k.each(n, 1, func(lo, hi int) {
		for ; lo < hi; lo += tile {
			to := min(lo+tile, hi)
			if src.DType.IsFloat() {
				var buf [tile]float64
				widen(buf[:to-lo], src.Range(lo, to))
				narrow(dst.Range(lo, to), buf[:to-lo])
			} else {
				var buf [tile]int64
				widenInts(buf[:to-lo], src.Range(lo, to))
				narrowInts(dst.Range(lo, to), buf[:to-lo])
			}
		}
	})
	return nil
}

// fill sets every element of dst to v.
func fill[T device.Element](dst []T, v T) {
	for i := range dst {
		dst[i] = v
	}
}

// convert computes dst = f(src) element by element.
func convert[D, S any](dst []D, src []S, f func(S) D) {
	for i, v := range src {
		dst[i] = f(v)
	}
}

// widen reads a tensor of floats.
func widen(dst []float64, src device.Tensor) {
	switch src.DType {
	case device.Float32:
		for i, v := range device.Elements[float32](src) {
			dst[i] = float64(v)
		}
	case device.Float64:
		copy(dst, device.Elements[float64](src))
	case device.Float16:
		convert(dst, device.Elements[uint16](src), func(v uint16) float64 { return float64(kernels.FromF16(v)) })
	case device.BFloat16:
		convert(dst, device.Elements[uint16](src), func(v uint16) float64 { return float64(kernels.FromBF16(v)) })
	}
}

// narrow writes floats to a tensor of any type.
func narrow(dst device.Tensor, src []float64) {
	switch dst.DType {
	case device.Float32:
		d := device.Elements[float32](dst)
		for i, v := range src {
			d[i] = float32(v)
		}
	case device.Float64:
		copy(device.Elements[float64](dst), src)
	case device.Float16:
		convert(device.Elements[uint16](dst), src, func(v float64) uint16 { return kernels.F16(odd(v)) })
	case device.BFloat16:
		convert(device.Elements[uint16](dst), src, func(v float64) uint16 { return kernels.BF16(odd(v)) })
	case device.Int32:
		convert(device.Elements[int32](dst), src, func(v float64) int32 {
			return int32(min(max(truncate(v), math.MinInt32), math.MaxInt32))
		})
	case device.Int64:
		convert(device.Elements[int64](dst), src, truncate)
	case device.Uint8:
		convert(device.Elements[uint8](dst), src, func(v float64) uint8 {
			return uint8(min(max(truncate(v), 0), math.MaxUint8))
		})
	}
}

// widenInts reads a tensor of integers.
func widenInts(dst []int64, src device.Tensor) {
	switch src.DType {
	case device.Int32:
		convert(dst, device.Elements[int32](src), func(v int32) int64 { return int64(v) })
	case device.Int64:
		copy(dst, device.Elements[int64](src))
	case device.Uint8:
		convert(dst, device.Elements[uint8](src), func(v uint8) int64 { return int64(v) })
	}
}

// narrowInts writes integers to a tensor of any type.
func narrowInts(dst device.Tensor, src []int64) {
	switch dst.DType {
	case device.Float32:
		convert(device.Elements[float32](dst), src, func(v int64) float32 { return float32(v) })
	case device.Float64:
		convert(device.Elements[float64](dst), src, func(v int64) float64 { return float64(v) })
	case device.Float16:
		convert(device.Elements[uint16](dst), src, func(v int64) uint16 { return kernels.F16(odd(sticky(v))) })
	case device.BFloat16:
		convert(device.Elements[uint16](dst), src, func(v int64) uint16 { return kernels.BF16(odd(sticky(v))) })
	case device.Int32:
		convert(device.Elements[int32](dst), src, func(v int64) int32 { return int32(v) })
	case device.Int64:
		copy(device.Elements[int64](dst), src)
	case device.Uint8:
		convert(device.Elements[uint8](dst), src, func(v int64) uint8 { return uint8(v) })
	}
}

// truncate rounds v towards zero.
func truncate(v float64) int64 {
	switch {
	case v != v:
		return 0
	case v >= 1<<63:
		return math.MaxInt64
	case v < -1<<63:
		return math.MinInt64
	}
	return int64(v)
}

// odd converts v to float32. If the conversion is inexact, it rounds to odd. If the result is then rounded to a
// type of at most 22 bits, that gives the same as rounding v itself to this type.
func odd(v float64) float32 {
	f := float32(v)
	if float64(f) == v || f != f {
		return f
	}
	bits := math.Float32bits(f)
	if math.Abs(float64(f)) > math.Abs(v) {
		bits-- // the next number towards zero; for an infinity, the largest number
	}
	return math.Float32frombits(bits | 1)
}

// sticky converts v to float64 and rounds to odd if it is inexact.
func sticky(v int64) float64 {
	const low = 1<<10 - 1 // the lowest 10 of 63 bits, which a float64 with its 53 bits cannot hold
	if v&low != 0 && (v >= 1<<53 || v <= -1<<53) {
		v = v&^low | 1<<10
	}
	return float64(v)
}
