//go:build cgo && linux

package cuda

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
func (k *kernelSet) meanOf(st device.Stream, versions *perFloat, blocks, threadsX int, dst device.Tensor, a lossArgs) error {
	s := k.d.stream(st)
	work, err := s.workspace()
	if err != nil {
		return err
	}
	a.dst, a.part, a.parts = k.addr(dst), uint64(work.Addr()), uint64(blocks)
	if blocks > 0 {
		if err := k.launch(s, versions[dst.DType], grid{blocks, 1, 1, threadsX, 1}, unsafe.Pointer(&a), unsafe.Sizeof(a)); err != nil {
			return err
		}
	}
	return k.launch(s, k.mean[dst.DType], grid{1, 1, 1, threads, 1}, unsafe.Pointer(&a), unsafe.Sizeof(a))
}

func (k *kernelSet) MSE(s device.Stream, dst, x, y device.Tensor) error {
	operands.MSE(dst, x, y)
	a := lossArgs{x: k.addr(x), y: k.addr(y), rows: uint64(x.Len()), cols: 1}
	a.setWide(x.DType, x.Len())
	return k.meanOf(s, &k.squares, min(ceil(x.Len(), 8*threads), lossBlocks), threads, dst, a)
}

// CrossEntropy does not check labels, which are on the device. If a label is out of range, the loss
// is NaN.
func (k *kernelSet) CrossEntropy(s device.Stream, loss, probs, logits, labels device.Tensor) error {
	m, n := operands.CrossEntropy(loss, probs, logits, labels)
	a := lossArgs{x: k.addr(logits), y: k.addr(probs), labels: k.addr(labels), rows: uint64(m), cols: uint64(n)}
	a.setWide(logits.DType, n)
	if n == 0 {
		m = 0
	}
	return k.meanOf(s, &k.crossEntropy, min(m, 8*lossBlocks), rowThreads(n), loss, a)
}

func (k *kernelSet) CrossEntropyGrad(s device.Stream, dst device.Tensor, acc device.Accum, g, probs, labels device.Tensor) error {
	m, n := operands.CrossEntropyGrad(dst, g, probs, labels)
	if dst.Len() == 0 {
		return nil
	}
	a := lossArgs{
		dst: k.addr(dst), x: k.addr(probs), labels: k.addr(labels), g: k.addr(g),
		rows: uint64(m), cols: uint64(n), acc: acc,
	}
	a.setWide(dst.DType, n)
	return k.launch(k.d.stream(s), k.crossEntropyGrad[dst.DType], grid{min(m, 1<<20), 1, 1, rowThreads(n), 1}, unsafe.Pointer(&a), unsafe.Sizeof(a))
}

// setWide sets whether the kernels move rows of n elements in packs.
func (a *lossArgs) setWide(dt device.DType, n int) {
	a.wide = uint64(flag(packed(a.x, a.y, a.dst) && n%(packBytes/dt.Size()) == 0))
}

// rowThreads returns the number of threads that share a row of n elements.
func rowThreads(n int) int {
	t := warp
	for t < threads && 4*t < n {
		t *= 2
	}
	return t
}
