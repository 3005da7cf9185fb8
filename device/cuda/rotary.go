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

func (k *kernelSet) Rotate(s device.Stream, dst device.Tensor, acc device.Accum, x device.Tensor, r kernels.Rotation) error {
	operands.Rotate(dst, x, r)
	if x.Len() == 0 {
		return nil
	}
	a := rotateArgs{
		dst: k.addr(dst), x: k.addr(x), cos: k.addr(r.Cos), sin: k.addr(r.Sin), n: uint64(x.Len()),
		rows: uint64(x.Shape[1]), heads: uint64(x.Shape[2]), size: uint64(x.Shape[3]), pairs: uint64(r.Cos.Shape[1]),
		turned: uint64(r.Heads), acc: acc, interleaved: flag(r.Interleaved), inverse: flag(r.Inverse),
	}
	items, pack := x.Len(), packBytes/x.DType.Size()
	if !r.Interleaved && 2*a.pairs == a.size && int(a.pairs)%pack == 0 && packed(a.dst, a.x, a.cos, a.sin) {
		a.wide, items = 1, items/(2*pack)
	}
	return k.launch(k.d.stream(s), k.rotate[x.DType], k.flat(items), unsafe.Pointer(&a), unsafe.Sizeof(a))
}
