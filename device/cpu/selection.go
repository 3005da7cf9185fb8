package cpu

import (
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/internal/operand"
	"github.com/goddp/goddp/internal/kernels"
)

func (k *kernelSet) Compare(_ device.Stream, c kernels.Comparison, dst, x, y device.Tensor) error {
	operands.Compare(c, dst, x, y)
	switch x.DType {
	case device.Float32:
		compare[float32](k, c, dst, x, y)
	case device.Float64:
		compare[float64](k, c, dst, x, y)
	case device.Int32:
		compare[int32](k, c, dst, x, y)
	case device.Int64:
		compare[int64](k, c, dst, x, y)
	case device.Uint8:
		compare[uint8](k, c, dst, x, y)
	}
	return nil
}

func (k *kernelSet) MaskedCopy(_ device.Stream, dst, mask, x device.Tensor) error {
	operand.MaskedCopy(dst, mask, x)
	if dst.Len() == 0 {
		return nil
	}
	switch dst.DType.Size() {
	case 1:
		maskedCopy[uint8](k, dst, mask, x)
	case 2:
		maskedCopy[uint16](k, dst, mask, x)
	case 4:
		maskedCopy[uint32](k, dst, mask, x)
	case 8:
		maskedCopy[uint64](k, dst, mask, x)
	}
	return nil
}

func (k *kernelSet) FindExtreme(_ device.Stream, e kernels.Extreme, values, indices, src device.Tensor) error {
	_, n, inner := operands.FindExtreme(e, values, indices, src)
	pick(src, findExtreme[float32], findExtreme[float64])(k, e, values, indices, src, n, inner)
	return nil
}

// eachRow calls the function row for runs of n elements. A run begins at the element `first` of dst, and at the
// elements with the indices x and y of the operands. dx and dy, 0 or 1, are the distances between the run's elements
// in the operands.
func (k *kernelSet) eachRow(dst, x, y device.Tensor, row func(first, n, x, dx, y, dy int)) {
	space := operand.Space(dst.Shape, x.Shape, y.Shape)
	cols, rows := space[0], space[1:]
	k.each(dst.Len(), 1, func(lo, hi int) {
		for lo < hi {
			i := lo % cols.N
			xo, yo := operand.Offset(rows, lo/cols.N)
			n := min(cols.N-i, hi-lo)
			row(lo, n, xo+i*cols.X, cols.X, yo+i*cols.Y, cols.Y)
			lo += n
		}
	})
}

func compare[T float | int32 | int64 | uint8](k *kernelSet, c kernels.Comparison, dst, x, y device.Tensor) {
	d, xs, ys := device.Elements[uint8](dst), device.Elements[T](x), device.Elements[T](y)
	holds := map[kernels.Comparison]func(a, b T) bool{
		kernels.Equal:        func(a, b T) bool { return a == b },
		kernels.NotEqual:     func(a, b T) bool { return a != b },
		kernels.Less:         func(a, b T) bool { return a < b },
		kernels.LessEqual:    func(a, b T) bool { return a <= b },
		kernels.Greater:      func(a, b T) bool { return a > b },
		kernels.GreaterEqual: func(a, b T) bool { return a >= b },
	}[c]
	k.eachRow(dst, x, y, func(first, n, x, dx, y, dy int) {
		for i := range d[first : first+n] {
			var v uint8
			if holds(xs[x+i*dx], ys[y+i*dy]) {
				v = 1
			}
			d[first+i] = v
		}
	})
}

func maskedCopy[T uint8 | uint16 | uint32 | uint64](k *kernelSet, dst, mask, x device.Tensor) {
	d, ms, xs := rawElements[T](dst), rawElements[uint8](mask), rawElements[T](x)
	k.eachRow(dst, mask, x, func(first, n, m, dm, x, dx int) {
		for i := range n {
			if ms[m+i*dm] != 0 {
				d[first+i] = xs[x+i*dx]
			}
		}
	})
}

func findExtreme[T float](k *kernelSet, e kernels.Extreme, values, indices, src device.Tensor, n, inner int) {
	s, vs, is := device.Elements[T](src), device.Elements[T](values), device.Elements[int64](indices)
	results := src.Shape[0] * inner
	k.each(results, n, func(lo, hi int) {
		for ; lo < hi; lo++ {
			at := lo/inner*n*inner + lo%inner
			best, where := s[at], 0
			for i := 1; i < n && best == best; i++ { // the loop ends at a NaN, which counts as the most extreme value
				if v := s[at+i*inner]; e == kernels.Largest && v > best || e == kernels.Smallest && v < best || v != v {
					best, where = v, i
				}
			}
			if vs != nil {
				vs[lo] = best
			}
			if is != nil {
				is[lo] = int64(where)
			}
		}
	})
}
