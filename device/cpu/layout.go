package cpu

import (
	"slices"
	"unsafe"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/internal/operand"
	"github.com/goddp/goddp/internal/kernels"
)

func (k *kernelSet) CopyStrided(_ device.Stream, shape device.Shape, dst device.Tensor, to kernels.Layout, acc device.Accum, src device.Tensor, from kernels.Layout) error {
	axes := operands.CopyStrided(shape, dst, to, acc, src, from)
	if axes == nil {
		return nil
	}
	if acc == device.Store {
		switch dst.DType.Size() {
		case 1:
			copyStrided(k, axes, rawElements[uint8](dst), to.Offset, rawElements[uint8](src), from.Offset, copyLine)
		case 2:
			copyStrided(k, axes, rawElements[uint16](dst), to.Offset, rawElements[uint16](src), from.Offset, copyLine)
		case 4:
			copyStrided(k, axes, rawElements[uint32](dst), to.Offset, rawElements[uint32](src), from.Offset, copyLine)
		case 8:
			copyStrided(k, axes, rawElements[uint64](dst), to.Offset, rawElements[uint64](src), from.Offset, copyLine)
		}
		return nil
	}
	if dst.DType == device.Float32 {
		copyStrided(k, axes, device.Elements[float32](dst), to.Offset, device.Elements[float32](src), from.Offset, accumulateLine[float32](acc))
	} else {
		copyStrided(k, axes, device.Elements[float64](dst), to.Offset, device.Elements[float64](src), from.Offset, accumulateLine[float64](acc))
	}
	return nil
}

// rawElements returns the memory of a non-empty tensor as unsigned integers of its elements' size.
func rawElements[T uint8 | uint16 | uint32 | uint64](t device.Tensor) []T {
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(t.Buf.Host()))), t.Len())
}

// line copies n elements from src to dst. In dst it begins at element x and advances by dx. In src it begins at
// element y and advances by dy.
type line[T any] func(dst []T, x, dx int, src []T, y, dy, n int)

// edge is the side of the squares into which copyStrided divides a plane. The rows of a square, of both
// operands, fit into the first-level cache.
const edge = 32

// copyStrided divides the plane of the first axis and of the axis with the smallest stride in src into
// squares, so that a transpose uses whole cache lines of both operands. If both operands are contiguous
// along the first axis, a square is as wide as that axis.
func copyStrided[T any](k *kernelSet, axes []operand.Axis, dst []T, x0 int, src []T, y0 int, take line[T]) {
	cols, rows := axes[0], operand.Axis{N: 1}
	rest := slices.Clone(axes[1:])
	if second := operand.Second(axes); second > 0 {
		rows = axes[second]
		rest = slices.Delete(rest, second-1, second)
	}
	wide := edge
	if cols.X == 1 && cols.Y == 1 {
		wide = cols.N
	}
	bands, outer := (rows.N+edge-1)/edge, 1
	for _, a := range rest {
		outer *= a.N
	}
	k.each(outer*bands, cols.N*min(rows.N, edge), func(lo, hi int) {
		for ; lo < hi; lo++ {
			x, y := operand.Offset(rest, lo/bands)
			x, y = x+x0, y+y0
			r0 := lo % bands * edge
			r1 := min(r0+edge, rows.N)
			for c := 0; c < cols.N; c += wide {
				n := min(wide, cols.N-c)
				for r := r0; r < r1; r++ {
					take(dst, x+c*cols.X+r*rows.X, cols.X, src, y+c*cols.Y+r*rows.Y, cols.Y, n)
				}
			}
		}
	})
}

func copyLine[T any](dst []T, x, dx int, src []T, y, dy, n int) {
	if dx == 1 && dy == 1 {
		copy(dst[x:x+n], src[y:y+n])
		return
	}
	for range n {
		dst[x] = src[y]
		x += dx
		y += dy
	}
}

func accumulateLine[T float](acc device.Accum) line[T] {
	a, b := T(acc.Alpha), T(acc.Beta)
	return func(dst []T, x, dx int, src []T, y, dy, n int) {
		if dx == 1 && dy == 1 {
			accumulate(dst[x:x+n], acc, src[y:y+n])
			return
		}
		for range n {
			v := a * src[y]
			if b != 0 {
				v += b * dst[x]
			}
			dst[x] = v
			x += dx
			y += dy
		}
	}
}
