//go:build cgo && linux

package cuda

// #include "driver.h"
import "C"

import (
	"unsafe"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

// mapArgs has the layout of the structure Map in kernels/elementwise.cu.
type mapArgs struct {
	dst, x, y, g uint64
	n, cols      uint64
	acc          device.Accum
	a, b         float64
	op, wide     int32
}

// each launches a kernel over the elements of dst. a.x and a.y are the addresses of its operands;
// a.y is 0 for a kernel of one operand.
func (k *kernelSet) each(st device.Stream, versions *perFloat, dst device.Tensor, a mapArgs) error {
	g := k.over(dst, &a)
	if a.n == 0 {
		return nil
	}
	return k.launch(k.d.stream(st), versions[dst.DType], g, unsafe.Pointer(&a), unsafe.Sizeof(a))
}

// over completes a for the elements of dst, and returns the grid.
func (k *kernelSet) over(dst device.Tensor, a *mapArgs) grid {
	if a.y == 0 {
		a.y = a.x
	}
	a.dst, a.n = k.addr(dst), uint64(dst.Len())
	a.wide = flag(packed(a.dst, a.x, a.y))
	if a.wide != 0 {
		return k.flat(ceil(dst.Bytes(), packBytes))
	}
	return k.flat(dst.Len())
}

func (k *kernelSet) Axpby(s device.Stream, dst device.Tensor, acc device.Accum, x device.Tensor) error {
	operands.Same("Axpby", dst, x)
	return k.each(s, &k.axpby, dst, mapArgs{x: k.addr(x), acc: acc})
}

func (k *kernelSet) ScaleBy(s device.Stream, dst device.Tensor, acc device.Accum, factor, x device.Tensor) error {
	operands.ScaleBy(dst, factor, x)
	return k.each(s, &k.scaleBy, dst, mapArgs{x: k.addr(x), g: k.addr(factor), acc: acc})
}

func (k *kernelSet) Unary(s device.Stream, op kernels.UnaryOp, dst, x device.Tensor) error {
	operands.Same(op.String(), dst, x)
	return k.each(s, &k.unary, dst, mapArgs{x: k.addr(x), acc: device.Store, op: int32(op.Func), a: op.A, b: op.B})
}

func (k *kernelSet) UnaryGrad(s device.Stream, op kernels.UnaryOp, dst device.Tensor, acc device.Accum, g, x, y device.Tensor) error {
	known := operands.UnaryGrad(op, dst, g, x, y)
	return k.each(s, &k.unaryGrad, dst, mapArgs{x: k.addr(g), y: k.addr(known), acc: acc, op: int32(op.Func), a: op.A, b: op.B})
}

func (k *kernelSet) MSEGrad(s device.Stream, dst device.Tensor, acc device.Accum, g, x, y device.Tensor) error {
	operands.MSEGrad(dst, g, x, y)
	return k.each(s, &k.mseGrad, dst, mapArgs{x: k.addr(x), y: k.addr(y), g: k.addr(g), acc: acc})
}

// scale computes dst = beta·dst. With beta 0 it does not read dst.
func (k *kernelSet) scale(st device.Stream, dst device.Tensor, beta float64) error {
	if dst.Len() == 0 {
		return nil
	}
	if beta != 0 {
		return k.each(st, &k.axpby, dst, mapArgs{x: k.addr(dst), acc: device.Accum{Alpha: beta}})
	}
	d := k.d
	if err := d.Err(); err != nil {
		return err
	}
	s := d.stream(st)
	return s.enqueued(d.check("cuMemsetD8Async", C.drv_clear(d.drv.fns, d.ctx, C.uint64_t(k.addr(dst)), C.size_t(dst.Bytes()), s.handle)))
}

// swiGLUGradArgs has the layout of the structure SwigluGrad in kernels/elementwise.cu.
type swiGLUGradArgs struct {
	dgate, dup, g, gate, up, n uint64
	accGate, accUp             device.Accum
	wide                       int32
}

func (k *kernelSet) SwiGLU(s device.Stream, dst, gate, up device.Tensor) error {
	operands.SwiGLU(dst, gate, up)
	a := mapArgs{x: k.addr(gate), y: k.addr(up), acc: device.Store}
	g := k.over(dst, &a)
	if a.n == 0 {
		return nil
	}
	return k.launchEarly(k.d.stream(s), k.swiGLU[dst.DType], g, unsafe.Pointer(&a), unsafe.Sizeof(a), nil, k.spans(dst))
}

func (k *kernelSet) SwiGLUGrad(s device.Stream, to kernels.SwiGLUGrads, g, gate, up device.Tensor) error {
	operands.SwiGLUGrad(to, g, gate, up)
	if g.Len() == 0 {
		return nil
	}
	a := swiGLUGradArgs{
		dgate: k.optional(to.Gate), dup: k.optional(to.Up), g: k.addr(g), gate: k.addr(gate), up: k.addr(up), n: uint64(g.Len()),
		accGate: to.AccGate, accUp: to.AccUp,
	}
	items := g.Len()
	if packed(a.dgate, a.dup, a.g, a.gate, a.up) {
		a.wide, items = 1, ceil(g.Bytes(), packBytes)
	}
	return k.launch(k.d.stream(s), k.swiGLUGrad[g.DType], k.flat(items), unsafe.Pointer(&a), unsafe.Sizeof(a))
}
