//go:build cgo && linux

package cuda

import (
	"errors"
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

// Linear is one kernel, bias and activation with it, where cuBLAS has one;
// else a pass over dst follows the product. cuBLAS's kernel for float64 is not
// used: on an H200 it takes twice the time of the product.
func (k *kernels) Linear(st device.Stream, dst, x, w, bias device.Tensor, act device.Activation) error {
	m, n, inner := operands.Linear(dst, x, w, bias)
	p := product{rows: n, cols: m, inner: inner, ta: true, epilogue: epilogue(bias, act)}
	err := errUnsupported
	if inner > 0 && dst.DType != device.Float64 {
		err = k.multiply(st, p, dst, device.Store, x, w, bias)
	}
	if errors.Is(err, errUnsupported) {
		p.epilogue = epilogueNone
		if err = k.multiply(st, p, dst, device.Store, x, w, device.Tensor{}); err == nil {
			err = k.finish(st, dst, bias, act)
		}
	}
	if err != nil {
		return fmt.Errorf("Linear of %v and %v: %w", x, w, err)
	}
	return nil
}

// finish adds the bias to every row of dst and applies act.
func (k *kernels) finish(st device.Stream, dst, bias device.Tensor, act device.Activation) error {
	switch {
	case !bias.IsZero():
		a := mapArgs{x: k.addr(dst), g: k.addr(bias), cols: uint64(bias.Len()), acc: device.Store, op: flag(act == device.ActReLU)}
		return k.each(st, &k.biasAct, dst, a)
	case act == device.ActReLU:
		return k.Unary(st, device.ReLU, dst, dst)
	}
	return nil
}

// multiply computes dst = acc.Alpha·x·y + acc.Beta·dst as p says, p's types
// and alignments excepted.
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
	a := arguments{alpha: acc.Alpha, beta: acc.Beta, a: k.addr(y), b: k.addr(x), c: k.addr(dst), d: k.addr(dst), bias: k.addr(bias)}
	p.dt, p.tf32 = dst.DType, k.tf32 && dst.DType == device.Float32
	p.alignA, p.alignB, p.alignD, p.alignBias = alignment(a.a), alignment(a.b), alignment(a.d), alignment(a.bias)
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

// alignment is the largest power of two, up to device.Align, that divides an
// address; 0 for none.
func alignment(addr uint64) int {
	if addr%device.Align == 0 {
		return int(min(addr, device.Align))
	}
	return int(addr & -addr)
}
