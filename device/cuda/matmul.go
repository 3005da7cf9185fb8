//go:build cgo && linux

package cuda

import (
	"fmt"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/internal/operand"
)

func (k *kernelSet) MatMul(st device.Stream, dst device.Tensor, acc device.Accum, x device.Tensor, tx bool, y device.Tensor, ty bool) error {
	f := operands.MatMul(dst, x, tx, y, ty)
	p := product{rows: f.N, cols: f.M, inner: f.K, ta: ty, tb: tx, epilogue: epilogueNone, batch: 1}
	// One call of cuBLAS multiplies all matrices along one axis of the batch.
	if run := f.Batch[0]; run.N > 1 {
		p.batch, p.strideA, p.strideB, p.strideD = run.N, run.Y*f.K*f.N, run.X*f.M*f.K, f.M*f.N
	}
	size := p.batch * f.M * f.N
	if size == dst.Len() {
		if err := k.multiply(st, p, dst, acc, x, y, besides{}); err != nil {
			return fmt.Errorf("MatMul of %v and %v: %w", x, y, err)
		}
		return nil
	}
	for at := 0; at < dst.Len(); at += size {
		atX, atY := operand.Offset(f.Batch, at/(f.M*f.N))
		fromX, fromY := x.Flat().Range(atX*f.M*f.K, x.Len()), y.Flat().Range(atY*f.K*f.N, y.Len())
		if err := k.multiply(st, p, dst.Flat().Range(at, at+size), acc, fromX, fromY, besides{}); err != nil {
			return fmt.Errorf("MatMul of %v and %v: %w", x, y, err)
		}
	}
	return nil
}

// besides holds the operands of an epilogue; each may be absent.
type besides struct{ bias, aux device.Tensor }

// multiply computes dst = acc.Alpha·x·y + acc.Beta·dst. p describes the product; its types and alignments need not be
// set. e holds the operands of p's epilogue.
func (k *kernelSet) multiply(st device.Stream, p product, dst device.Tensor, acc device.Accum, x, y device.Tensor, e besides) error {
	switch {
	case k.d.Err() != nil:
		return k.d.Err()
	case dst.Len() == 0:
		return nil
	case p.inner == 0:
		return k.scale(st, dst, acc.Beta)
	}
	s := k.d.stream(st)
	a := k.complete(&p, dst, acc, x, y, e)
	plan, err := k.blas.plan(p, a.bias, a.aux)
	if err == nil && !plan.settled {
		err = k.settle(s, plan, dst, e.aux, a)
	}
	if err != nil {
		return err
	}
	return k.blas.run(s, plan, a)
}

// complete sets the parts of p that depend on the operands, and returns the operands' addresses.
func (k *kernelSet) complete(p *product, dst device.Tensor, acc device.Accum, x, y device.Tensor, e besides) arguments {
	a := arguments{alpha: acc.Alpha, beta: acc.Beta, a: k.addr(y), b: k.addr(x), c: k.addr(dst), d: k.addr(dst), bias: k.addr(e.bias), aux: k.addr(e.aux)}
	p.dt, p.tf32 = dst.DType, k.tf32 && dst.DType == device.Float32
	// All matrices of a batch have this alignment. A stride of 0 has the largest alignment.
	size := uint64(dst.DType.Size())
	p.alignA = min(alignment(a.a), alignment(uint64(p.strideA)*size))
	p.alignB = min(alignment(a.b), alignment(uint64(p.strideB)*size))
	p.alignD = min(alignment(a.d), alignment(uint64(p.strideD)*size))
	p.alignBias, p.alignAux = alignment(a.bias), alignment(a.aux)
	return a
}

// alignment returns the largest power of two, up to device.Align, that divides an address or a
// distance.
func alignment(addr uint64) int {
	if addr%device.Align == 0 {
		return device.Align
	}
	return int(addr & -addr)
}
