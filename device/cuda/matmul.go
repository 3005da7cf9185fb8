//go:build cgo && linux

package cuda

import (
	"fmt"

	"github.com/goddp/goddp/device"
)

func (k *kernels) MatMul(st device.Stream, dst device.Tensor, acc device.Accum, x device.Tensor, tx bool, y device.Tensor, ty bool) error {
	m, n, inner := operands.MatMul(dst, x, tx, y, ty)
	p := product{rows: n, cols: m, inner: inner, ta: ty, tb: tx, epilogue: epilogueNone}
	if err := k.multiply(st, p, dst, acc, x, y, device.Tensor{}); err != nil {
		return fmt.Errorf("MatMul of %v and %v: %w", x, y, err)
	}
	return nil
}

// multiply computes dst = acc.Alpha·x·y + acc.Beta·dst as p says, p's types
// and alignments excepted. bias is the epilogue's operand, if it has one.
func (k *kernels) multiply(st device.Stream, p product, dst device.Tensor, acc device.Accum, x, y, bias device.Tensor) error {
	switch {
	case k.d.Err() != nil:
		return k.d.Err()
	case dst.Len() == 0:
		return nil
	case p.inner == 0:
		return k.scale(st, dst, acc.Beta)
	}
	s := k.d.stream(st)
	a := k.complete(&p, dst, acc, x, y, bias)
	plan, fresh, err := k.blas.plan(p, a.bias)
	if err != nil {
		return err
	}
	if fresh && k.tune {
		if err := k.blas.tune(s, plan, a, dst.Bytes()); err != nil {
			return err
		}
	}
	return k.blas.run(s, plan, plan.best, a)
}

// complete adds to p what depends on the operands, which it returns.
func (k *kernels) complete(p *product, dst device.Tensor, acc device.Accum, x, y, bias device.Tensor) arguments {
	a := arguments{alpha: acc.Alpha, beta: acc.Beta, a: k.addr(y), b: k.addr(x), c: k.addr(dst), d: k.addr(dst), bias: k.addr(bias)}
	p.dt, p.tf32 = dst.DType, k.tf32 && dst.DType == device.Float32
	p.alignA, p.alignB, p.alignD, p.alignBias = alignment(a.a), alignment(a.b), alignment(a.d), alignment(a.bias)
	return a
}

// alignment is the largest power of two, up to device.Align, that divides an
// address; 0 for none.
func alignment(addr uint64) int {
	if addr%device.Align == 0 {
		return int(min(addr, device.Align))
	}
	return int(addr & -addr)
}
