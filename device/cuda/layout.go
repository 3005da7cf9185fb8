//go:build cgo && linux

package cuda

// #include "driver.h"
import "C"

import (
	"slices"
	"unsafe"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/internal/operand"
	"github.com/goddp/goddp/internal/kernels"
)

// perSize holds the versions of a kernel that moves elements of any type, indexed by the size of an
// element in bytes.
type perSize [9]C.uintptr_t

// stridedArgs has the layout of the structure Strided in kernels/layout.cu.
type stridedArgs struct {
	dst, src     uint64
	acc          device.Accum
	rows, cols   uint64
	xstep, ystep int64
	wide         uint64
	rank         uint64
	n            [maxAxes]uint64
	x, y         [maxAxes]int64
}

// transposeAxis is the minimum size of both axes of a plane that is transposed in shared memory.
const transposeAxis = 8

func (k *kernelSet) CopyStrided(st device.Stream, shape device.Shape, dst device.Tensor, to kernels.Layout, acc device.Accum, src device.Tensor, from kernels.Layout) error {
	axes := operands.CopyStrided(shape, dst, to, acc, src, from)
	if axes == nil {
		return nil
	}
	size := dst.DType.Size()
	cols, outer := axes[0], slices.Clone(axes[1:])
	// The kernel transpose needs the axis with the smallest stride in src as the second one. To the kernel
	// strided the order does not matter.
	second := operand.Second(axes)
	if second > 0 {
		outer = slices.Insert(slices.Delete(outer, second-1, second), 0, axes[second])
	}
	checkAxes("CopyStrided", outer)
	a := stridedArgs{
		dst: k.addr(dst) + uint64(to.Offset*size), src: k.addr(src) + uint64(from.Offset*size), acc: acc,
		rows: 1, cols: uint64(cols.N), xstep: int64(cols.X), ystep: int64(cols.Y), rank: uint64(len(outer)),
	}
	per := packBytes / size
	wide := cols.X == 1 && cols.Y == 1 && packed(a.dst, a.src)
	for i, ax := range outer {
		a.n[i], a.x[i], a.y[i] = uint64(ax.N), int64(ax.X), int64(ax.Y)
		a.rows *= a.n[i]
		wide = wide && ax.X%per == 0 && ax.Y%per == 0
	}
	rows, squares := k.stridedBits[size], k.transposeBits[size]
	if acc != device.Store {
		rows, squares = k.strided[dst.DType], k.transpose[dst.DType]
	}
	s := k.d.stream(st)
	if cols.X == 1 && cols.Y != 1 && second > 0 && outer[0].Y == 1 && min(cols.N, outer[0].N) >= transposeAxis {
		blocks := ceil(cols.N, warp) * ceil(outer[0].N, warp) * (int(a.rows) / outer[0].N)
		g := grid{min(blocks, k.d.props.sms*64), 1, 1, warp, threads / warp}
		return k.launch(s, squares, g, unsafe.Pointer(&a), unsafe.Sizeof(a))
	}
	width := cols.N
	if wide {
		a.wide = 1
		width = ceil(width, per)
	}
	return k.launch(s, rows, k.plane(int(a.rows), width), unsafe.Pointer(&a), unsafe.Sizeof(a))
}
