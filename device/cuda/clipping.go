//go:build cgo && linux

package cuda

import (
	"math"
	"unsafe"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/internal/operand"
	"github.com/goddp/goddp/internal/kernels"
)

// clipArgs has the layout of the first members of the structure Clip in kernels/clipping.cu.
type clipArgs struct {
	norm, total       uint64
	p, limit, epsilon float64
	wide, kind        int32
}

// clipPart has the layout of the structure ClipPart.
type clipPart struct {
	x, n, sum uint64
	wide, _   int32
}

// foldArgs has the layout of the structure Fold.
type foldArgs struct {
	dst, src, n uint64
	kind, more  int32
}

// The kinds of powers, as in kernels/clipping.cu.
const (
	largest int32 = iota
	absolute
	square
	power
)

func powerKind(p float64) int32 {
	switch {
	case math.IsInf(p, 1):
		return largest
	case p == 1:
		return absolute
	case p == 2:
		return square
	}
	return power
}

// clipBlocks returns the number of blocks for an array of n elements. A thread has several packs, to hide
// memory latency.
func (k *kernelSet) clipBlocks(n int) int { return min(ceil(n, 48*threads), k.d.props.sms*64) }

// maxSums is the number of blocks' sums that fit in a workspace.
const maxSums = workspaceSize / 8

func (k *kernelSet) PowerSum(st device.Stream, dst device.Tensor, p float64, xs ...device.Tensor) error {
	operand.PowerSum(dst, xs)
	s := k.d.stream(st)
	work, err := s.workspace()
	if err != nil {
		return err
	}
	u := updates[clipArgs, clipPart]{k: k, s: s}
	common := clipArgs{p: p, kind: powerKind(p)}
	fold := foldArgs{dst: k.addr(dst), src: uint64(work.Addr()), kind: common.kind}
	join := func() error {
		if err := u.launch(); err != nil {
			return err
		}
		err := k.launch(s, k.foldPowers, grid{1, 1, 1, 4 * threads, 1}, unsafe.Pointer(&fold), unsafe.Sizeof(fold))
		fold.n, fold.more = 0, 1
		return err
	}
	for _, x := range xs {
		blocks := k.clipBlocks(x.Len())
		if fold.n+uint64(blocks) > maxSums {
			if err := join(); err != nil {
				return err
			}
		}
		part := clipPart{x: k.addr(x), n: uint64(x.Len()), sum: fold.src + 8*fold.n, wide: flag(packed(k.addr(x)))}
		if err := u.add(k.powerSum[x.DType], common, part, x.Len(), blocks); err != nil {
			return err
		}
		fold.n += uint64(blocks)
	}
	return join()
}

func (k *kernelSet) ScaleToNorm(st device.Stream, norm, total device.Tensor, p, limit float64, xs ...device.Tensor) error {
	operand.ScaleToNorm(norm, total, xs)
	u := updates[clipArgs, clipPart]{k: k, s: k.d.stream(st)}
	common := clipArgs{norm: k.addr(norm), total: k.addr(total), p: p, limit: limit, epsilon: kernels.NormEpsilon, wide: flag(norm.DType == device.Float64), kind: powerKind(p)}
	for _, x := range xs {
		part := clipPart{x: k.addr(x), n: uint64(x.Len()), wide: flag(packed(k.addr(x)))}
		if err := u.add(k.scaleToNorm[x.DType], common, part, x.Len(), k.clipBlocks(x.Len())); err != nil {
			return err
		}
	}
	if u.f == 0 { // no elements, but the norm must be written
		u.f, u.args.common = k.scaleToNorm[device.Float32], common
		a := &u.args
		return k.launch(u.s, u.f, grid{1, 1, 1, warp, 1}, unsafe.Pointer(a), unsafe.Sizeof(*a))
	}
	return u.launch()
}
