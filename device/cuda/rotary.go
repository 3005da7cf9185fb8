//go:build cgo && linux

package cuda

import (
	"unsafe"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

// rotateArgs has the layout of the structure Rotate in kernels/rotary.cu.
type rotateArgs struct {
	dst, x, cos, sin, n              uint64
	rows, heads, size, pairs, turned uint64
	acc                              device.Accum
	interleaved, inverse, wide       int32
}

// rotatesArgs has the layout of the structure Rotates in kernels/rotary.cu.
type rotatesArgs struct {
	parts [2]rotateArgs
	first uint64
}

func (k *kernelSet) Rotate(s device.Stream, dst device.Tensor, acc device.Accum, x device.Tensor, r kernels.Rotation) error {
	operands.Rotate(dst, x, r)
	var a rotatesArgs
	var blocks int
	a.parts[0], blocks = k.rotation(dst, acc, x, r)
	a.first = uint64(blocks)
	return k.rotates(s, blocks, a, dst)
}

func (k *kernelSet) RotateBoth(s device.Stream, dst, x [2]device.Tensor, cos, sin device.Tensor) error {
	var a rotatesArgs
	var blocks [2]int
	for i := range x {
		r := kernels.Rotation{Cos: cos, Sin: sin, Heads: x[i].Shape[2]}
		operands.Rotate(dst[i], x[i], r)
		a.parts[i], blocks[i] = k.rotation(dst[i], device.Store, x[i], r)
	}
	a.first = uint64(blocks[0])
	return k.rotates(s, blocks[0]+blocks[1], a, dst[0], dst[1])
}

// rotation returns a rotation and its number of blocks.
func (k *kernelSet) rotation(dst device.Tensor, acc device.Accum, x device.Tensor, r kernels.Rotation) (a rotateArgs, blocks int) {
	a = rotateArgs{
		dst: k.addr(dst), x: k.addr(x), cos: k.addr(r.Cos), sin: k.addr(r.Sin), n: uint64(x.Len()),
		rows: uint64(x.Shape[1]), heads: uint64(x.Shape[2]), size: uint64(x.Shape[3]), pairs: uint64(r.Cos.Shape[1]),
		turned: uint64(r.Heads), acc: acc, interleaved: flag(r.Interleaved), inverse: flag(r.Inverse),
	}
	items, pack := x.Len(), packBytes/x.DType.Size()
	if !r.Interleaved && 2*a.pairs == a.size && int(a.pairs)%pack == 0 && packed(a.dst, a.x, a.cos, a.sin) {
		a.wide, items = 1, items/(2*pack)
	}
	return a, k.flat(items).x
}

func (k *kernelSet) rotates(s device.Stream, blocks int, a rotatesArgs, dst ...device.Tensor) error {
	if blocks == 0 {
		return nil
	}
	return k.launchEarly(k.d.stream(s), k.rotate[dst[0].DType], grid{blocks, 1, 1, threads, 1}, unsafe.Pointer(&a), unsafe.Sizeof(a), nil, k.spans(dst...))
}
