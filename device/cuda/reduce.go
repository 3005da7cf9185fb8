//go:build cgo && linux

package cuda

import (
	"math"
	"unsafe"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/internal/operand"
)

// axesArgs has the layout of the structure Axes in kernels/reduce.cu.
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

// sumArgs has the layout of the structure Sum in kernels/reduce.cu.
type sumArgs struct {
	dst, src, part uint64
	outputs, terms uint64
	width          uint64
	chunk, chunks  uint64
	acc            device.Accum
	wide           uint64
	kept, reduced  axesArgs
}

// These constants decide how a sum is divided into chunks. They do not depend on the GPU, because
// the chunks determine the order of additions.
const (
	sumBlocks   = 1024 // maximum number of blocks to fill with chunks
	runTerms    = 4096 // the minimum number of terms in a chunk of sum_runs
	columnTerms = 64   // the minimum number of rows in a chunk of sum_columns
	warpTerms   = 1024 // up to this number of terms, one warp computes an output, even if there are few outputs
	warp        = 32
)

func (k *kernelSet) Sum(st device.Stream, dst device.Tensor, acc device.Accum, src device.Tensor) error {
	operands.Sum(dst, src)
	switch {
	case dst.Len() == 0:
		return nil
	case src.Len() == 0 && acc.Alpha*0 != 0: // the mean of no elements
		return k.Fill(st, dst, math.NaN())
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
		if r.N <= warpTerms || dst.Len() >= 8*sumBlocks {
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

// cut divides the terms into chunks, unless the given number of blocks fills the GPU without chunks. The parameter
// worth is the minimum number of terms in a chunk. A chunk is a whole number of packs, and the sums of all chunks fit
// into a workspace.
func (a *sumArgs) cut(worth, blocks int) {
	terms := int(a.terms)
	chunks := min(ceil(terms, worth), max(sumBlocks/blocks, 1), max(workspaceSize/8/int(a.outputs), 1))
	chunk := ceil(ceil(terms, chunks), packBytes) * packBytes
	a.chunk, a.chunks = uint64(chunk), uint64(ceil(terms, chunk))
}
