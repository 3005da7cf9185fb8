//go:build cgo && linux

package cuda

import (
	"errors"
	"fmt"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

// LinearUnary fuses GELUTanh of the 16-bit types into the product. Other functions run as a separate
// kernel.
func (k *kernelSet) LinearUnary(st device.Stream, op kernels.UnaryOp, hidden, pre, x, w1, bias device.Tensor) error {
	operands.LinearUnary(op, hidden, pre, x, w1, bias)
	err := errUnsupported
	if inner := x.Shape[1]; k.inEpilogue(op, pre) && inner > 0 {
		p := product{rows: w1.Shape[0], cols: x.Shape[0], inner: inner, ta: true, epilogue: epilogueGELUTanh, batch: 1}
		if !bias.IsZero() {
			p.epilogue |= epilogueBias
		}
		err = k.multiply(st, p, hidden, device.Store, x, w1, besides{bias, pre})
	}
	if errors.Is(err, errUnsupported) {
		if pre.IsZero() {
			pre = hidden
		}
		if err = k.Linear(st, pre, x, w1, bias, kernels.NoActivation); err == nil {
			err = k.Unary(st, op, hidden, pre)
		}
	}
	if err != nil {
		return fmt.Errorf("LinearUnary of %v and %v: %w", x, w1, err)
	}
	return nil
}

// inEpilogue reports whether op or its derivative can be fused into a product, which also writes or reads
// pre. float32 is excluded, because cuBLAS has errors of 4e-4 there. Rows must be multiples of 16 bytes.
func (k *kernelSet) inEpilogue(op kernels.UnaryOp, pre device.Tensor) bool {
	return op == kernels.GELUTanh && !pre.IsZero() && pre.DType.Size() == 2 && pre.Shape[1]%8 == 0 && packed(k.addr(pre))
}

// LinearUnaryGrad fuses the derivative of GELUTanh into the product for the 16-bit types. cuBLAS can also
// fuse the sum for db, but that takes three times as long as the product.
func (k *kernelSet) LinearUnaryGrad(st device.Stream, op kernels.UnaryOp, dpre, db, g, w2, pre device.Tensor) error {
	m, n, h := operands.LinearUnaryGrad(op, dpre, db, g, w2, pre)
	err := errUnsupported
	if k.inEpilogue(op, pre) && n > 0 {
		p := product{rows: h, cols: m, inner: n, epilogue: epilogueGELUTanhGrad, batch: 1}
		err = k.multiply(st, p, dpre, device.Store, g, w2, besides{aux: pre})
	}
	if errors.Is(err, errUnsupported) {
		if err = k.MatMul(st, dpre, device.Store, g, false, w2, false); err == nil {
			err = k.UnaryGrad(st, op, dpre, device.Store, dpre, pre, device.Tensor{})
		}
	}
	if err == nil && !db.IsZero() {
		err = k.Sum(st, db, device.Store, dpre)
	}
	if err != nil {
		return fmt.Errorf("LinearUnaryGrad of %v and %v: %w", g, w2, err)
	}
	return nil
}

// feedForward identifies the products of a backward pass through two Linears, apart from alignments.
type feedForward struct {
	op         kernels.UnaryOp
	dt         device.DType
	m, k, h, n int
	bias       bool
}

// PrepareFeedForwardGrad computes the gradients once per shape, into scratch memory, to load the kernels: see
// PrepareLinearGrad. The values do not matter: y serves as the incoming gradient, and pre as hidden and as the
// gradient of pre.
func (k *kernelSet) PrepareFeedForwardGrad(st device.Stream, op kernels.UnaryOp, y, pre, x, w1, bias, w2 device.Tensor) error {
	operands.LinearUnary(op, pre, device.Tensor{}, x, w1, bias)
	m, n, h := operands.Linear(y, pre, w2, device.Tensor{})
	return k.prepare(st, feedForward{op, y.DType, m, x.Shape[1], h, n, !bias.IsZero()}, func(s *gpuStream) error {
		dx, dw1, dw2, dpre, db := x, w1, w2, pre, bias
		scratch, err := k.scratch(&dx, &dw1, &dw2, &dpre, &db)
		if err != nil {
			return nil
		}
		defer k.d.Free(scratch)
		err = errors.Join(
			k.LinearUnaryGrad(s, op, dpre, db, y, w2, pre),
			k.MatMul(s, dw2, device.Store, y, true, pre, false),
			k.MatMul(s, dw1, device.Store, pre, true, x, false),
			k.MatMul(s, dx, device.Store, pre, false, w1, false),
		)
		if err != nil {
			return fmt.Errorf("preparing the gradients of a FeedForward of %v, %v and %v: %w", x, w1, w2, err)
		}
		return nil
	})
}
