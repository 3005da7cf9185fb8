//go:build cgo && linux

package cuda

import (
	"unsafe"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/internal/operand"
)

// softmaxArgs has the layout of the structure Softmax in kernels/softmax.cu.
type softmaxArgs struct {
	dst, x, y      uint64
	lines, n, step uint64
	acc            device.Accum
	log, wide      int32
}

func (k *kernelSet) Softmax(s device.Stream, dst, x device.Tensor, axis int, log bool) error {
	l := operands.Softmax(dst, x, axis)
	return k.softmaxLines(s, &k.softmax, l, dst, softmaxArgs{x: k.addr(x), y: k.addr(x), log: flag(log)})
}

func (k *kernelSet) SoftmaxGrad(s device.Stream, dst device.Tensor, acc device.Accum, g, y device.Tensor, axis int, log bool) error {
	l := operands.SoftmaxGrad(dst, g, y, axis)
	return k.softmaxLines(s, &k.softmaxGrad, l, dst, softmaxArgs{x: k.addr(g), y: k.addr(y), acc: acc, log: flag(log)})
}

func (k *kernelSet) softmaxLines(s device.Stream, versions *perFloat, l operand.Lines, dst device.Tensor, a softmaxArgs) error {
	if dst.Len() == 0 {
		return nil
	}
	a.dst, a.lines, a.n, a.step = k.addr(dst), uint64(l.Outer*l.Inner), uint64(l.N), uint64(l.Inner)
	a.wide = flag(l.Inner == 1 && packed(a.dst, a.x, a.y) && l.N%(packBytes/dst.DType.Size()) == 0)
	return k.launch(k.d.stream(s), versions[dst.DType], lineGrid(l), unsafe.Pointer(&a), unsafe.Sizeof(a))
}

// lineGrid returns the grid for a kernel over lines. The threads along x share a line, and a block has
// several lines along y. If at least as many lines are interleaved in memory as a warp has threads, one thread
// computes each line, so that neighbouring threads read neighbouring elements. Otherwise a warp
// computes each line, or a block if the lines are long.
func lineGrid(l operand.Lines) grid {
	x := rowThreads(l.N)
	y := 1
	switch {
	case l.Inner >= warp:
		x, y = 1, threads
	case l.N <= 1024:
		x, y = warp, threads/warp
	}
	return grid{min(ceil(l.Outer*l.Inner, y), 1<<20), 1, 1, x, y}
}
