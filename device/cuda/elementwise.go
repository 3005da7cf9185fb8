//go:build cgo && linux

package cuda

// #include "driver.h"
import "C"

import (
	"math"
	"unsafe"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/half"
	"github.com/goddp/goddp/device/internal/operand"
)

// mapArgs is Map in kernels/elementwise.cu.
type mapArgs struct {
	dst, x, y, g uint64
	n, cols      uint64
	acc          device.Accum
	op, wide     int32
}

// each runs a kernel over the elements of dst, given x and y; a.y may be
// left 0.
func (k *kernels) each(st device.Stream, versions *perFloat, dst device.Tensor, a mapArgs) error {
	n := dst.Len()
	if n == 0 {
		return nil
	}
	if a.y == 0 {
		a.y = a.x
	}
	a.dst, a.n = k.addr(dst), uint64(n)
	a.wide = flag(packed(a.dst, a.x, a.y))
	items := n
	if a.wide != 0 {
		items = ceil(n*dst.DType.Size(), packBytes)
	}
	return k.launch(k.d.stream(st), versions[dst.DType], k.flat(items), unsafe.Pointer(&a), unsafe.Sizeof(a))
}

func (k *kernels) Axpby(s device.Stream, dst device.Tensor, acc device.Accum, x device.Tensor) error {
	operands.Same("Axpby", dst, x)
	return k.each(s, &k.axpby, dst, mapArgs{x: k.addr(x), acc: acc})
}

func (k *kernels) Unary(s device.Stream, op device.UnaryOp, dst, x device.Tensor) error {
	operands.Same(op.String(), dst, x)
	return k.each(s, &k.unary, dst, mapArgs{x: k.addr(x), acc: device.Store, op: int32(op)})
}

func (k *kernels) UnaryGrad(s device.Stream, op device.UnaryOp, dst device.Tensor, acc device.Accum, g, x, y device.Tensor) error {
	known := operands.UnaryGrad(op, dst, g, x, y)
	return k.each(s, &k.unaryGrad, dst, mapArgs{x: k.addr(g), y: k.addr(known), acc: acc, op: int32(op)})
}

func (k *kernels) MSEGrad(s device.Stream, dst device.Tensor, acc device.Accum, g, x, y device.Tensor) error {
	operands.MSEGrad(dst, g, x, y)
	return k.each(s, &k.mseGrad, dst, mapArgs{x: k.addr(x), y: k.addr(y), g: k.addr(g), acc: acc})
}

// scale computes dst = beta·dst, which with beta 0 does not read dst.
func (k *kernels) scale(st device.Stream, dst device.Tensor, beta float64) error {
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
	return d.check("cuMemsetD8Async", C.drv_clear(d.drv.fns, d.ctx, C.uint64_t(k.addr(dst)), C.size_t(dst.Bytes()), d.stream(st).handle))
}

// sgdArgs is SGD in kernels/sgd.cu.
type sgdArgs struct {
	w, g, v, skip               uint64
	n, skips                    uint64
	lr, momentum, fresh, decay  float64
	nesterov, first, wide, _pad int32
}

func (k *kernels) SGD(st device.Stream, p device.SGDStep) error {
	operands.SGD(p)
	n := p.Param.Len()
	if n == 0 {
		return nil
	}
	a := sgdArgs{
		w: k.addr(p.Param), g: k.addr(p.Grad), n: uint64(n),
		lr: p.LR, momentum: p.Momentum, fresh: 1 - p.Dampening, decay: p.WeightDecay,
		nesterov: flag(p.Nesterov), first: flag(p.First),
	}
	if p.Momentum != 0 {
		a.v = k.addr(p.Velocity)
	}
	if !p.Skip.IsZero() {
		a.skip, a.skips = k.addr(p.Skip), uint64(p.Skip.Len())
	}
	a.wide = flag(packed(a.w, a.g, a.v))
	return k.launch(k.d.stream(st), k.sgd[p.Param.DType], k.flat(n), unsafe.Pointer(&a), unsafe.Sizeof(a))
}

// copyArgs is Copy in kernels/copy.cu.
type copyArgs struct {
	dst, src, n uint64
	value       float64
	wide        uint64
}

func (k *kernels) Fill(st device.Stream, dst device.Tensor, v float64) error {
	operand.Fill(dst)
	if dst.Len() == 0 {
		return nil
	}
	a := copyArgs{dst: k.addr(dst), n: uint64(dst.Len()), value: v}
	a.wide = uint64(flag(packed(a.dst)))
	return k.launch(k.d.stream(st), k.fill[dst.DType], k.flat(dst.Len()), unsafe.Pointer(&a), unsafe.Sizeof(a))
}

// Copy treats what a type cannot hold as the CPU does: a float outside an
// integer type's range becomes the nearest number in it, and a NaN becomes 0;
// integers wrap.
func (k *kernels) Copy(st device.Stream, dst, src device.Tensor) error {
	operand.Copy(dst, src)
	if dst.Len() == 0 {
		return nil
	}
	d, s := k.d, k.d.stream(st)
	a := copyArgs{dst: k.addr(dst), src: k.addr(src), n: uint64(dst.Len())}
	if dst.DType == src.DType {
		if err := d.Err(); err != nil {
			return err
		}
		return d.check("cuMemcpyDtoDAsync",
			C.drv_copy(d.drv.fns, d.ctx, C.uint64_t(a.dst), C.uint64_t(a.src), C.size_t(dst.Bytes()), s.handle))
	}
	aligned := func(at uint64, dt device.DType) bool { return at%uint64(min(4*dt.Size(), packBytes)) == 0 }
	a.wide = uint64(flag(aligned(a.dst, dst.DType) && aligned(a.src, src.DType)))
	return k.launch(s, k.copy[dst.DType][src.DType], k.flat(ceil(dst.Len(), 2)), unsafe.Pointer(&a), unsafe.Sizeof(a))
}

// randomArgs is Random in kernels/random.cu.
type randomArgs struct {
	dst, n       uint64
	seed, offset uint64
	a, b, top    float64
}

func (k *kernels) Uniform(s device.Stream, dst device.Tensor, lo, hi float64, seed, offset uint64) error {
	operands.Float("Uniform", dst)
	top := max(below(dst.DType, hi), nearest(dst.DType, lo))
	return k.draw(s, &k.uniform, dst, randomArgs{seed: seed, offset: offset, a: lo, b: hi - lo, top: top})
}

func (k *kernels) Normal(s device.Stream, dst device.Tensor, mean, std float64, seed, offset uint64) error {
	operands.Float("Normal", dst)
	return k.draw(s, &k.normal, dst, randomArgs{seed: seed, offset: offset, a: mean, b: std})
}

func (k *kernels) draw(s device.Stream, versions *perFloat, dst device.Tensor, a randomArgs) error {
	if dst.Len() == 0 {
		return nil
	}
	a.dst, a.n = k.addr(dst), uint64(dst.Len())
	return k.launch(k.d.stream(s), versions[dst.DType], k.flat(ceil(dst.Len(), 2)), unsafe.Pointer(&a), unsafe.Sizeof(a))
}

// nearest is v rounded to dt.
func nearest(dt device.DType, v float64) float64 {
	switch dt {
	case device.Float32:
		return float64(float32(v))
	case device.Float16:
		return float64(half.FromF16(half.F16(float32(v))))
	case device.BFloat16:
		return float64(half.FromBF16(half.BF16(float32(v))))
	}
	return v
}

// below is the largest number of dt below v.
func below(dt device.DType, v float64) float64 {
	n := nearest(dt, v)
	if n < v {
		return n
	}
	switch dt {
	case device.Float32:
		return float64(math.Nextafter32(float32(n), float32(math.Inf(-1))))
	case device.Float16:
		return float64(half.FromF16(before(half.F16(float32(n)))))
	case device.BFloat16:
		return float64(half.FromBF16(before(half.BF16(float32(n)))))
	}
	return math.Nextafter(n, math.Inf(-1))
}

// before is the next smaller number of a 16-bit type: the bits of positive
// numbers are in order, those of negative ones in the opposite.
func before(bits uint16) uint16 {
	const sign = 1 << 15
	switch {
	case bits&^sign == 0:
		return sign | 1
	case bits&sign == 0:
		return bits - 1
	}
	return bits + 1
}
