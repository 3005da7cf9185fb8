package cpu

import (
	"math"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

func (k *kernelSet) WriteRows(_ device.Stream, dst, src, first device.Tensor) error {
	operands.WriteRows(dst, src, first)
	pick(dst, writeRows[float32], writeRows[float64])(dst, src, device.Elements[int64](first))
	return nil
}

func writeRows[T float](dst, src device.Tensor, first []int64) {
	d, v := device.Elements[T](dst), device.Elements[T](src)
	s, t, n := dst.Shape[1], src.Shape[1], dst.Shape[2]
	for b, at := range first {
		if at < 0 || at+int64(t) > int64(s) {
			panic(&device.IndexError{Op: "WriteRows", At: b, Index: at + int64(t) - 1, Limit: s})
		}
		copy(d[(b*s+int(at))*n:], v[b*t*n:(b+1)*t*n])
	}
}

func (k *kernelSet) AttendLast(_ device.Stream, o device.Tensor, a kernels.Last) error {
	operands.AttendLast(o, a)
	last := device.Elements[int64](a.Last)
	checkIndices("AttendLast", last, a.Keys.Shape[1])
	pick(o, attendLast[float32], attendLast[float64])(k, o, a, last)
	return nil
}

func attendLast[T float](k *kernelSet, o device.Tensor, a kernels.Last, last []int64) {
	out, query, key, value := device.Elements[T](o), device.Elements[T](a.Q), device.Elements[T](a.Keys), device.Elements[T](a.Values)
	heads, d, s, keyHeads, window, scale := a.Q.Shape[1], a.Q.Shape[2], a.Keys.Shape[1], a.Keys.Shape[2], a.Window, T(a.Scale)
	for b, at := range last {
		n := keyHeads * d
		copy(key[(b*s+int(at))*n:], device.Elements[T](a.K)[b*n:(b+1)*n])
		copy(value[(b*s+int(at))*n:], device.Elements[T](a.V)[b*n:(b+1)*n])
	}
	k.each(a.Q.Shape[0]*heads, s*d, func(lo, hi int) {
		weights := make([]T, s)
		for ; lo < hi; lo++ {
			b, kept := lo/heads, lo%heads/(heads/keyHeads)
			from, to := 0, int(last[b])+1
			if window > 0 {
				from = max(0, to-window)
			}
			row := func(all []T, i int) []T {
				at := ((b*s+i)*keyHeads + kept) * d
				return all[at : at+d]
			}
			top := T(math.Inf(-1))
			for i := from; i < to; i++ {
				var product T
				for j, v := range row(key, i) {
					product += query[lo*d+j] * v
				}
				weights[i] = scale * product
				top = max(top, weights[i])
			}
			y := out[lo*d : (lo+1)*d]
			clear(y)
			var sum T
			for i := from; i < to; i++ {
				w := T(math.Exp(float64(weights[i] - top)))
				sum += w
				for j, v := range row(value, i) {
					y[j] += w * v
				}
			}
			for j := range y {
				y[j] /= sum
			}
		}
	})
}
