//go:build cgo && linux

package cuda

// #include "driver.h"
import "C"

import (
	"errors"
	"unsafe"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/internal/operand"
	"github.com/goddp/goddp/internal/kernels"
)

func (k *kernelSet) Compare(st device.Stream, c kernels.Comparison, dst, x, y device.Tensor) error {
	operands.Compare(c, dst, x, y)
	return k.pairs(st, c.String(), k.compare[x.DType], int32(c), dst, x, y)
}

func (k *kernelSet) MaskedCopy(st device.Stream, dst, mask, x device.Tensor) error {
	operand.MaskedCopy(dst, mask, x)
	return k.pairs(st, "MaskedCopy", k.maskedCopy[dst.DType.Size()], 0, dst, mask, x)
}

// pairs launches a kernel f over the elements of dst. x and y are broadcast to dst's shape.
func (k *kernelSet) pairs(st device.Stream, name string, f C.uintptr_t, op int32, dst, x, y device.Tensor) error {
	n := dst.Len()
	if n == 0 {
		return nil
	}
	space := operand.Space(dst.Shape, x.Shape, y.Shape)
	row, outer := space[0], space[1:]
	checkAxes(name, outer)
	a := binaryArgs{
		dst: k.addr(dst), x: k.addr(x), y: k.addr(y), rows: uint64(n / row.N), cols: uint64(row.N),
		xstep: int32(row.X), ystep: int32(row.Y), op: op, rank: uint64(len(outer)),
	}
	for i, ax := range outer {
		a.n[i], a.xstride[i], a.ystride[i] = uint64(ax.N), uint64(ax.X), uint64(ax.Y)
	}
	return k.launch(k.d.stream(st), f, k.plane(int(a.rows), row.N), unsafe.Pointer(&a), unsafe.Sizeof(a))
}

// findArgs has the layout of the structure Find in kernels/selection.cu.
type findArgs struct {
	values, indices, src uint64
	from                 uint64
	outer, n, inner      uint64
	chunk, chunks        uint64
	smallest             uint64
}

// findChunk is the number of elements that a thread of find_extreme compares.
const findChunk = 16

// FindExtreme reduces chunks to their extremes, repeatedly, until one extreme is left.
func (k *kernelSet) FindExtreme(st device.Stream, e kernels.Extreme, values, indices, src device.Tensor) (err error) {
	outer, n, inner := operands.FindExtreme(e, values, indices, src)
	if outer*inner == 0 {
		return nil
	}
	a := findArgs{src: k.addr(src), outer: uint64(outer), n: uint64(n), inner: uint64(inner), chunk: findChunk, smallest: uint64(e)}
	s, size := k.d.stream(st), src.DType.Size()
	for n > findChunk {
		a.n, n = uint64(n), ceil(n, findChunk)
		results := outer * n * inner
		part, failed := k.d.Alloc(results * (8 + size))
		if failed != nil {
			return failed
		}
		defer k.d.Free(part)
		if s != k.d.compute { // Free orders the reuse of memory only after the compute stream
			defer func() { err = errors.Join(err, k.d.compute.WaitFor(s.Mark())) }()
		}
		a.indices, a.values, a.chunks = uint64(part.Addr()), uint64(part.Addr())+uint64(8*results), uint64(n)
		if err := k.find(s, src.DType, a); err != nil {
			return err
		}
		a.src, a.from = a.values, a.indices
	}
	a.n, a.chunks, a.values, a.indices = uint64(n), 1, 0, 0
	if !values.IsZero() {
		a.values = k.addr(values)
	}
	if !indices.IsZero() {
		a.indices = k.addr(indices)
	}
	return k.find(s, src.DType, a)
}

func (k *kernelSet) find(s *gpuStream, dt device.DType, a findArgs) error {
	return k.launch(s, k.findExtreme[dt], k.flat(int(a.outer*a.chunks*a.inner)), unsafe.Pointer(&a), unsafe.Sizeof(a))
}
