//go:build cgo && linux

package cuda

// #include <stdint.h>
import "C"

import (
	"unsafe"

	"github.com/goddp/goddp/device"
)

// lossArgs has the layout of the structure Loss in kernels/loss.cu.
type lossArgs struct {
	dst, part, parts uint64
	x, y, labels, g  uint64
	rows, cols       uint64
	acc              device.Accum
	wide             uint64
}

// lossBlocks is the maximum number of partial sums of a loss.
const lossBlocks = 1024

// meanOf launches a kernel that writes a partial sum for each of its blocks, and then a kernel that
// writes the sum divided by rows to dst.
func (k *kernelSet) meanOf(st device.Stream, f C.uintptr_t, blocks, threadsX int, dst device.Tensor, a lossArgs) error {
	s := k.d.stream(st)
	work, err := s.workspace()
	if err != nil {
		return err
	}
	a.dst, a.part, a.parts = k.addr(dst), uint64(work.Addr()), uint64(blocks)
	if blocks > 0 {
		if err := k.launch(s, f, grid{blocks, 1, 1, threadsX, 1}, unsafe.Pointer(&a), unsafe.Sizeof(a)); err != nil {
			return err
		}
	}
	return k.launch(s, k.mean[dst.DType], grid{1, 1, 1, threads, 1}, unsafe.Pointer(&a), unsafe.Sizeof(a))
}

func (k *kernelSet) MSE(s device.Stream, dst, x, y device.Tensor) error {
	operands.MSE(dst, x, y)
	a := lossArgs{x: k.addr(x), y: k.addr(y), rows: uint64(x.Len()), cols: 1, wide: inRowsOfPacks(x.DType, x.Len(), k.addr(x), k.addr(y))}
	return k.meanOf(s, k.squares[x.DType], min(ceil(x.Len(), 8*threads), lossBlocks), threads, dst, a)
}

// CrossEntropy does not check labels, which are on the device. If a label is out of range, the loss
// is NaN.
func (k *kernelSet) CrossEntropy(s device.Stream, loss, lse, logits, labels device.Tensor) error {
	m, n := operands.CrossEntropy(loss, lse, logits, labels)
	a := lossArgs{x: k.addr(logits), y: k.addr(lse), labels: k.addr(labels), rows: uint64(m), cols: uint64(n)}
	a.wide = inRowsOfPacks(logits.DType, n, a.x)
	if n == 0 {
		m = 0
	}
	return k.meanOf(s, k.crossEntropy[logits.DType], min(m, 8*lossBlocks), rowThreads(n), loss, a)
}

func (k *kernelSet) CrossEntropyGrad(s device.Stream, dst device.Tensor, acc device.Accum, g, lse, logits, labels device.Tensor) error {
	m, n := operands.CrossEntropyGrad(dst, g, lse, logits, labels)
	if dst.Len() == 0 {
		return nil
	}
	a := lossArgs{
		dst: k.addr(dst), x: k.addr(logits), y: k.addr(lse), labels: k.addr(labels), g: k.addr(g),
		rows: uint64(m), cols: uint64(n), acc: acc,
	}
	a.wide = inRowsOfPacks(logits.DType, n, a.x, a.dst)
	return k.launch(k.d.stream(s), k.crossEntropyGrad[dst.DType], grid{min(m, 1<<20), 1, 1, rowThreads(n), 1}, unsafe.Pointer(&a), unsafe.Sizeof(a))
}

func (k *kernelSet) CrossEntropyInPlace(s device.Stream, losses, logits, labels device.Tensor) error {
	m, n := operands.CrossEntropyInPlace(losses, logits, labels)
	if m == 0 {
		return nil
	}
	a := lossArgs{x: k.addr(logits), y: k.addr(losses), labels: k.addr(labels), rows: uint64(m), cols: uint64(n)}
	a.wide = inRowsOfPacks(logits.DType, n, a.x)
	f, t := k.crossEntropyInPlace[logits.DType], rowThreads(n)
	if row := n * logits.DType.Size(); a.wide != 0 && row > cachedRow && row <= heldRow {
		f, t = k.crossEntropyHeld[logits.DType], heldThreads
	}
	return k.launch(k.d.stream(s), f, grid{min(m, 1<<20), 1, 1, t, 1}, unsafe.Pointer(&a), unsafe.Sizeof(a))
}

// heldThreads is the number of threads that keep a row of at most heldRow bytes in registers. Rows of at most
// cachedRow bytes stay in the GPU's cache between the two reads.
const (
	heldThreads = 256
	heldRow     = 25 * heldThreads * packBytes
	cachedRow   = 64 << 10
)

// inRowsOfPacks returns 1 if rows of n elements at addrs are aligned and consist of whole packs, and otherwise 0.
func inRowsOfPacks(dt device.DType, n int, addrs ...uint64) uint64 {
	return uint64(flag(packed(addrs...) && n%(packBytes/dt.Size()) == 0))
}

// rowThreads returns the number of threads that share a row of n elements.
func rowThreads(n int) int {
	t := warp
	for t < threads && 4*t < n {
		t *= 2
	}
	return t
}
