package cpu

import (
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/internal/operand"
	"github.com/goddp/goddp/internal/kernels"
)

func (k *kernelSet) Gather(_ device.Stream, dst, src, index device.Tensor) error {
	sizes := operands.Gather(dst, src, index)
	at := device.Elements[int64](index)
	checkIndices("Gather", at, sizes.N)
	pick(dst, gather[float32], gather[float64])(k, sizes, dst, src, at)
	return nil
}

func (k *kernelSet) ScatterAdd(_ device.Stream, dst device.Tensor, acc device.Accum, src, index device.Tensor, skip int) error {
	sizes := operands.ScatterAdd(dst, src, index)
	at := device.Elements[int64](index)
	checkIndices("ScatterAdd", at, sizes.N)
	pick(dst, scatterAdd[float32], scatterAdd[float64])(k, sizes, dst, acc, src, at, int64(skip))
	return nil
}

func (k *kernelSet) SelectLabels(_ device.Stream, index, selected, count, labels device.Tensor, ignore int64) error {
	operands.SelectLabels(index, selected, count, labels)
	at, to, n := device.Elements[int64](index), device.Elements[int64](selected), 0
	for i, l := range device.Elements[int64](labels) {
		if l == ignore {
			continue
		}
		if n < len(to) {
			at[n], to[n] = int64(i), l
		} else if len(to) > 0 {
			to[0] = -1
		}
		n++
	}
	for i := n; i < len(to); i++ {
		at[i], to[i] = 0, kernels.NoLabel
	}
	if count.DType == device.Float32 {
		copy(device.Elements[float32](count), []float32{float32(n), float32(max(n, 1))})
	} else {
		copy(device.Elements[float64](count), []float64{float64(n), float64(max(n, 1))})
	}
	return nil
}

func checkIndices(op string, index []int64, limit int) {
	for i, v := range index {
		if v < 0 || v >= int64(limit) {
			panic(&device.IndexError{Op: op, At: i, Index: v, Limit: limit})
		}
	}
}

func gather[T float](k *kernelSet, s operand.Indexed, to, from device.Tensor, index []int64) {
	dst, src := device.Elements[T](to), device.Elements[T](from)
	if len(dst) == 0 {
		return
	}
	k.each(s.Outer*s.M, s.Inner, func(lo, hi int) {
		for ; lo < hi; lo++ {
			row := dst[lo*s.Inner : (lo+1)*s.Inner]
			from := lo / s.M * s.N
			if !s.Each {
				copy(row, src[(from+int(index[lo%s.M]))*s.Inner:])
				continue
			}
			for i, v := range index[lo*s.Inner : (lo+1)*s.Inner] {
				row[i] = src[(from+int(v))*s.Inner+i]
			}
		}
	})
}

// scatterAdd divides the columns among threads. Each thread adds the rows in order.
func scatterAdd[T float](k *kernelSet, s operand.Indexed, to device.Tensor, acc device.Accum, from device.Tensor, index []int64, skip int64) {
	dst, src := device.Elements[T](to), device.Elements[T](from)
	alpha, beta := T(acc.Alpha), T(acc.Beta)
	k.each(len(dst), 1, func(lo, hi int) {
		switch beta {
		case 0:
			clear(dst[lo:hi])
		case 1:
		default:
			for i := lo; i < hi; i++ {
				dst[i] *= beta
			}
		}
	})
	k.each(s.Outer*s.Inner, s.M, func(lo, hi int) {
		for lo < hi {
			o, first := lo/s.Inner, lo%s.Inner
			n := min(s.Inner-first, hi-lo)
			for i := range s.M {
				terms := src[(o*s.M+i)*s.Inner+first:][:n]
				if s.Each {
					for j, v := range index[(o*s.M+i)*s.Inner+first:][:n] {
						if v != skip {
							dst[(o*s.N+int(v))*s.Inner+first+j] += alpha * terms[j]
						}
					}
				} else if v := index[i]; v != skip {
					sums := dst[(o*s.N+int(v))*s.Inner+first:][:n]
					for j, t := range terms {
						sums[j] += alpha * t
					}
				}
			}
			lo += n
		}
	})
}
