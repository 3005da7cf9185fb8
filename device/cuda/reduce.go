//go:build cgo && linux

package cuda

import (
	"fmt"
	"unsafe"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/internal/operand"
)

// maxAxes is how many axes a kernel's iteration space may have, once those
// that can be were joined.
const maxAxes = 8

// binaryArgs is Binary in kernels/broadcast.cu.
type binaryArgs struct {
	dst, x, y           uint64
	rows, cols          uint64
	xstep, ystep        int32
	op, wide            int32
	rank                uint64
	n, xstride, ystride [maxAxes]uint64
}

func (k *kernels) Binary(st device.Stream, op device.BinaryOp, dst, x, y device.Tensor) error {
	operands.Binary(op, dst, x, y)
	n := dst.Len()
	if n == 0 {
		return nil
	}
	space := operand.Space(dst.Shape, x.Shape, y.Shape)
	row, outer := space[0], space[1:]
	checkAxes(op.String(), outer)
	a := binaryArgs{
		dst: k.addr(dst), x: k.addr(x), y: k.addr(y), rows: uint64(n / row.N), cols: uint64(row.N),
		xstep: int32(row.X), ystep: int32(row.Y), op: int32(op), rank: uint64(len(outer)),
	}
	for i, ax := range outer {
		a.n[i], a.xstride[i], a.ystride[i] = uint64(ax.N), uint64(ax.X), uint64(ax.Y)
	}
	per := packBytes / dst.DType.Size()
	wide := a.dst%packBytes == 0 && (a.xstep == 0 || packed(a.x)) && (a.ystep == 0 || packed(a.y)) && (a.rows == 1 || row.N%per == 0)
	a.wide = flag(wide)
	cols := row.N
	if wide {
		cols = ceil(cols, per)
	}
	return k.launch(k.d.stream(st), k.binary[dst.DType], k.plane(int(a.rows), cols), unsafe.Pointer(&a), unsafe.Sizeof(a))
}

// plane is a grid for rows × cols threads: as many threads along a row as it
// has use for.
func (k *kernels) plane(rows, cols int) grid {
	g := grid{z: 1, threadsX: 1, threadsY: threads}
	for g.threadsX < threads && g.threadsX < cols {
		g.threadsX *= 2
		g.threadsY /= 2
	}
	most := k.d.card.sms * 64
	g.x = min(ceil(cols, g.threadsX), most)
	g.y = min(ceil(rows, g.threadsY), max(most/g.x, 1), 1<<16-1)
	return g
}

func checkAxes(op string, axes []operand.Axis) {
	if len(axes) > maxAxes {
		panic(fmt.Errorf("cuda: %s over %d axes that cannot be joined; %d are supported", op, len(axes), maxAxes))
	}
}

// axesArgs is Axes in kernels/reduce.cu.
type axesArgs struct {
	rank      uint64
	n, stride [maxAxes]uint64
}

func newAxesArgs(axes []operand.Axis) (a axesArgs) {
	checkAxes("Sum", axes)
	a.rank = uint64(len(axes))
	for i, ax := range axes {
		a.n[i], a.stride[i] = uint64(ax.N), uint64(ax.X)
	}
	return a
}

// sumArgs is Sum in kernels/reduce.cu.
type sumArgs struct {
	dst, src, part uint64
	outputs, terms uint64
	width          uint64
	chunk, chunks  uint64
	acc            device.Accum
	wide           uint64
	kept, reduced  axesArgs
}

// How sums are cut. It must depend on shapes alone, not on the GPU, since it
// decides the order of additions.
const (
	sumBlocks   = 1024 // cut no finer than into so many blocks
	runTerms    = 4096 // terms worth a block of sum_runs
	columnTerms = 64   // rows worth a block of sum_columns
	warpTerms   = 1024 // terms up to which a warp takes an output
	warp        = 32
)

func (k *kernels) Sum(st device.Stream, dst device.Tensor, acc device.Accum, src device.Tensor) error {
	operands.Sum(dst, src)
	switch {
	case dst.Len() == 0:
		return nil
	case src.Len() == 0:
		return k.scale(st, dst, acc.Beta)
	}
	r := operand.NewReduction(dst.Shape, src.Shape)
	a := sumArgs{
		dst: k.addr(dst), src: k.addr(src), outputs: uint64(dst.Len()), terms: uint64(r.N), width: uint64(r.Width),
		acc: acc, kept: newAxesArgs(r.Kept), reduced: newAxesArgs(r.Terms),
	}
	per := packBytes / src.DType.Size()
	g, f := grid{x: 1, y: 1, z: 1, threadsX: threads, threadsY: 1}, &k.sumRuns
	if r.Width == 1 {
		a.cut(runTerms, dst.Len())
		aligned := a.outputs == 1
		if !aligned {
			aligned = true
			for _, ax := range r.Kept {
				aligned = aligned && ax.X%per == 0
			}
		}
		a.wide = uint64(flag(packed(a.src) && aligned && len(r.Terms) == 1 && r.Terms[0].X == 1))
		if r.N <= warpTerms {
			g.threadsX, g.threadsY = warp, threads/warp
		}
		g.x = min(ceil(dst.Len(), g.threadsY), 1<<20)
	} else {
		a.wide = uint64(flag(packed(a.src) && r.Width%per == 0))
		if a.wide == 0 {
			per = 1
		}
		f = &k.sumColumns
		g.threadsX, g.threadsY = warp, threads/warp
		g.x = ceil(r.Width, warp*per)
		g.z = min(dst.Len()/r.Width, 1<<16-1)
		a.cut(columnTerms, g.x*g.z)
	}
	g.y = int(a.chunks)
	s := k.d.stream(st)
	if a.chunks > 1 {
		work, err := s.workspace()
		if err != nil {
			return err
		}
		a.part = uint64(work.Addr())
	}
	if err := k.launch(s, f[dst.DType], g, unsafe.Pointer(&a), unsafe.Sizeof(a)); err != nil || a.chunks == 1 {
		return err
	}
	g = grid{min(ceil(dst.Len(), threads/warp), 1<<16), 1, 1, warp, threads / warp}
	return k.launch(s, k.fold[dst.DType], g, unsafe.Pointer(&a), unsafe.Sizeof(a))
}

// cut divides the terms into chunks of worth terms or more, unless blocks of
// them are enough work as they are. A chunk is whole packs, and the chunks'
// sums fit into a workspace.
func (a *sumArgs) cut(worth, blocks int) {
	terms := int(a.terms)
	chunks := min(ceil(terms, worth), max(sumBlocks/blocks, 1), max(workspaceSize/8/int(a.outputs), 1))
	chunk := ceil(ceil(terms, chunks), packBytes) * packBytes
	a.chunk, a.chunks = uint64(chunk), uint64(ceil(terms, chunk))
}

// lossArgs is Loss in kernels/loss.cu.
type lossArgs struct {
	dst, part, parts uint64
	x, y, labels, g  uint64
	rows, cols       uint64
	acc              device.Accum
	wide             uint64
}

// lossBlocks bounds the partial sums of a loss.
const lossBlocks = 1024

// meanOf runs a kernel of so many blocks that writes partial sums, and then
// their mean over rows to dst.
func (k *kernels) meanOf(st device.Stream, versions *perFloat, blocks, threadsX int, dst device.Tensor, a lossArgs) error {
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

func (k *kernels) MSE(s device.Stream, dst, x, y device.Tensor) error {
	operands.MSE(dst, x, y)
	a := lossArgs{x: k.addr(x), y: k.addr(y), rows: uint64(x.Len()), cols: 1}
	a.setWide(x.DType, x.Len())
	return k.meanOf(s, &k.squares, min(ceil(x.Len(), 8*threads), lossBlocks), threads, dst, a)
}

// CrossEntropy takes labels that are checked nowhere: the loss of one that
// names no class is NaN.
func (k *kernels) CrossEntropy(s device.Stream, loss, probs, logits, labels device.Tensor) error {
	m, n := operands.CrossEntropy(loss, probs, logits, labels)
	a := lossArgs{x: k.addr(logits), y: k.addr(probs), labels: k.addr(labels), rows: uint64(m), cols: uint64(n)}
	a.setWide(logits.DType, n)
	if n == 0 {
		m = 0
	}
	return k.meanOf(s, &k.crossEntropy, min(m, 8*lossBlocks), rowThreads(n), loss, a)
}

func (k *kernels) CrossEntropyGrad(s device.Stream, dst device.Tensor, acc device.Accum, g, probs, labels device.Tensor) error {
	m, n := operands.CrossEntropyGrad(dst, g, probs, labels)
	if dst.Len() == 0 {
		return nil
	}
	a := lossArgs{
		dst: k.addr(dst), x: k.addr(probs), labels: k.addr(labels), g: k.addr(g),
		rows: uint64(m), cols: uint64(n), acc: acc,
	}
	return k.launch(k.d.stream(s), k.crossEntropyGrad[dst.DType], grid{min(m, 1<<20), 1, 1, rowThreads(n), 1}, unsafe.Pointer(&a), unsafe.Sizeof(a))
}

// setWide tells whether rows of n elements of x and y are moved in packs.
func (a *lossArgs) setWide(dt device.DType, n int) {
	a.wide = uint64(flag(packed(a.x, a.y) && n%(packBytes/dt.Size()) == 0))
}

// rowThreads is how many threads share a row of n elements.
func rowThreads(n int) int {
	t := warp
	for t < threads && 4*t < n {
		t *= 2
	}
	return t
}
