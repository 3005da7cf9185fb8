//go:build cgo && linux

package cuda

// #include "driver.h"
import "C"

import (
	"errors"
	"math/bits"
	"unsafe"

	"github.com/goddp/goddp/device"
)

// gatherArgs has the layout of the structure Gather in kernels/indexing.cu.
type gatherArgs struct {
	dst, src, index   uint64
	rows, m, n, inner uint64
	each, wide        int32
}

func (k *kernelSet) Gather(st device.Stream, dst, src, index device.Tensor) error {
	sizes := operands.Gather(dst, src, index)
	if dst.Len() == 0 {
		return nil
	}
	per := packBytes / dst.DType.Size()
	a := gatherArgs{
		dst: k.addr(dst), src: k.addr(src), index: k.addr(index),
		rows: uint64(sizes.Outer * sizes.M), m: uint64(sizes.M), n: uint64(sizes.N), inner: uint64(sizes.Inner), each: flag(sizes.Each),
	}
	width := sizes.Inner
	if !sizes.Each && packed(a.dst, a.src) && width%per == 0 {
		a.wide = 1
		width /= per
	}
	return k.launch(k.d.stream(st), k.gather[dst.DType], k.plane(int(a.rows), width), unsafe.Pointer(&a), unsafe.Sizeof(a))
}

// scatterArgs has the layout of the structure Scatter in kernels/indexing.cu.
type scatterArgs struct {
	dst, src, index      uint64
	acc                  device.Accum
	items, keys          uint64
	m, n, inner, each    uint64
	skip                 int64
	columns, width       uint64
	wide                 uint64
	from, to             uint64
	table, blocks, shift uint64
	part, chunks         uint64
}

// The constants have the same values in kernels/indexing.cu.
const (
	sortDigits = 16
	sortTile   = 256 * 8 // the number of items that a block sorts
	chunkItems = 32

	selectThreads = 1024
)

func (k *kernelSet) ScatterAdd(st device.Stream, dst device.Tensor, acc device.Accum, src, index device.Tensor, skip int) (err error) {
	sizes := operands.ScatterAdd(dst, src, index)
	if dst.Len() == 0 {
		return nil
	}
	if acc.Beta != 1 {
		if err := k.scale(st, dst, acc.Beta); err != nil {
			return err
		}
	}
	if src.Len() == 0 {
		return nil
	}
	if acc.Beta != 0 {
		acc.Beta = 1
	}
	a := scatterArgs{
		dst: k.addr(dst), src: k.addr(src), index: k.addr(index), acc: acc, items: uint64(sizes.M), keys: uint64(sizes.N),
		m: uint64(sizes.M), n: uint64(sizes.N), inner: uint64(sizes.Inner), skip: int64(skip),
		columns: uint64(sizes.Outer * sizes.Inner), width: uint64(sizes.Inner),
	}
	if sizes.Each {
		a.each, a.items, a.keys, a.columns, a.width = 1, uint64(src.Len()), uint64(dst.Len()), 1, 1
	}
	per := packBytes / dst.DType.Size()
	width := int(a.columns)
	if packed(a.dst, a.src) && int(a.width)%per == 0 {
		a.wide = 1
		width /= per
	}
	items := int(a.items)
	blocks, chunks := ceil(items, sortTile), ceil(items, chunkItems)
	a.blocks, a.chunks = uint64(blocks), uint64(chunks)

	s := k.d.stream(st)
	orderBytes, tableBytes := 8*items, 8*sortDigits*blocks
	work, err := k.d.Alloc(2*orderBytes + tableBytes + 16*chunks*int(a.columns))
	if err != nil {
		return err
	}
	defer k.d.Free(work)
	if s != k.d.compute { // Free orders the reuse of memory only after the compute stream
		defer func() { err = errors.Join(err, k.d.compute.WaitFor(s.Mark())) }()
	}
	first := uint64(work.Addr())
	second := first + uint64(orderBytes)
	a.table = second + uint64(orderBytes)
	a.part = a.table + uint64(tableBytes)
	a.to = second
	for a.shift = 0; a.shift < uint64(bits.Len64(a.keys)); a.shift += 4 {
		if a.shift > 0 {
			a.from, a.to = a.to, first+second-a.to
		}
		for _, f := range []C.uintptr_t{k.sortCount, k.sortPlace} {
			if err := k.launch(s, f, grid{blocks, 1, 1, threads, 1}, unsafe.Pointer(&a), unsafe.Sizeof(a)); err != nil {
				return err
			}
		}
	}
	for _, f := range []C.uintptr_t{k.addRuns[dst.DType], k.joinRuns[dst.DType]} {
		if err := k.launch(s, f, k.plane(chunks, width), unsafe.Pointer(&a), unsafe.Sizeof(a)); err != nil {
			return err
		}
	}
	return nil
}

// labelArgs has the layout of the structure Labels in kernels/indexing.cu.
type labelArgs struct {
	index, selected, count, labels uint64
	r, m                           uint64
	ignore                         int64
	wide                           uint64
}

func (k *kernelSet) SelectLabels(s device.Stream, index, selected, count, labels device.Tensor, ignore int64) error {
	operands.SelectLabels(index, selected, count, labels)
	a := labelArgs{
		index: k.addr(index), selected: k.addr(selected), count: k.addr(count), labels: k.addr(labels),
		r: uint64(index.Len()), m: uint64(labels.Len()), ignore: ignore, wide: uint64(flag(count.DType == device.Float64)),
	}
	return k.launch(k.d.stream(s), k.selectLabels, grid{1, 1, 1, selectThreads, 1}, unsafe.Pointer(&a), unsafe.Sizeof(a))
}
