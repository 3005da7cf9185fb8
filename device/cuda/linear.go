//go:build cgo && linux

package cuda

import (
	"errors"
	"fmt"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

// Linear fuses the bias into the product if cuBLAS has such a kernel. Otherwise a separate kernel adds it.
// Linear does not use cuBLAS's fused float64 kernel, which takes twice the time of the product on an H200,
// nor its ReLU, because some of its 16-bit kernels turn NaN into 0 (cuBLASLt 13.1 on an H200).
func (k *kernelSet) Linear(st device.Stream, dst, x, w, bias device.Tensor, act kernels.Activation) error {
	m, n, inner := operands.Linear(dst, x, w, bias)
	if m == 1 && act == kernels.NoActivation {
		if done, err := k.linearsOfOneRow(st, x, []kernels.Projection{{Dst: dst, W: w, Bias: bias}}); done || err != nil {
			return err
		}
	}
	p := product{rows: n, cols: m, inner: inner, ta: true, epilogue: epilogue(bias), batch: 1}
	err := errUnsupported
	if inner > 0 && dst.DType != device.Float64 && act == kernels.NoActivation {
		err = k.multiply(st, p, dst, device.Store, x, w, besides{bias: bias})
	}
	if errors.Is(err, errUnsupported) {
		p.epilogue = epilogueNone
		if err = k.multiply(st, p, dst, device.Store, x, w, besides{}); err == nil {
			err = k.finish(st, dst, bias, act)
		}
	}
	if err != nil {
		return fmt.Errorf("Linear of %v and %v: %w", x, w, err)
	}
	return nil
}

// finish adds the bias to every row of dst and applies act.
func (k *kernelSet) finish(st device.Stream, dst, bias device.Tensor, act kernels.Activation) error {
	switch {
	case !bias.IsZero():
		a := mapArgs{x: k.addr(dst), g: k.addr(bias), cols: uint64(bias.Len()), acc: device.Store, op: flag(act == kernels.ActReLU)}
		return k.each(st, &k.biasAct, dst, a)
	case act == kernels.ActReLU:
		return k.Unary(st, kernels.ReLU, dst, dst)
	}
	return nil
}

func (k *kernelSet) LinearGrad(st device.Stream, dw device.Tensor, accW device.Accum, db device.Tensor, accB device.Accum, g, x device.Tensor) error {
	operands.LinearGrad(dw, db, g, x)
	err := k.MatMul(st, dw, accW, g, true, x, false)
	if err == nil {
		err = k.Sum(st, db, accB, g)
	}
	if err != nil {
		return fmt.Errorf("LinearGrad of %v and %v: %w", g, x, err)
	}
	return nil
}

// scratch replaces the memory of tensors by parts of one new buffer with undefined content.
func (k *kernelSet) scratch(ts ...*device.Tensor) (device.Buffer, error) {
	size := 0
	for _, t := range ts {
		size += ceil(t.Bytes(), device.Align) * device.Align
	}
	buf, err := k.d.Alloc(size)
	if err != nil {
		return buf, err
	}
	at := 0
	for _, t := range ts {
		t.Buf = buf.Slice(at, t.Bytes())
		at += ceil(t.Bytes(), device.Align) * device.Align
	}
	return buf, nil
}

// freeScratch frees memory that kernels on s use. Memory is reused in the order of the compute stream,
// which therefore waits for s.
func (k *kernelSet) freeScratch(s *gpuStream, scratch device.Buffer) {
	if s != k.d.compute && k.d.compute.WaitFor(s.Mark()) != nil {
		return // the device is lost
	}
	k.d.Free(scratch)
}

// layer identifies the products of a Linear and of its gradients, apart from alignments. In
// training all operands are aligned.
type layer struct {
	dt      device.DType
	m, n, k int
}

// PrepareLinearGrad computes the gradients of x and w once per layer, into scratch memory, using y as the incoming
// gradient. cuBLAS loads a kernel at its first call. Loading can wait for all work in flight while it
// holds the context's lock, and then not even a collective could be aborted. If memory is short, or during
// a graph capture, PrepareLinearGrad does nothing, and the first backward pass loads the kernels.
func (k *kernelSet) PrepareLinearGrad(st device.Stream, y, x, w, bias device.Tensor) error {
	m, n, inner := operands.Linear(y, x, w, bias)
	return k.prepare(st, layer{y.DType, m, n, inner}, func(s *gpuStream) error {
		dx, dw := x, w
		scratch, err := k.scratch(&dx, &dw)
		if err != nil {
			return nil
		}
		defer k.d.Free(scratch)
		err = k.MatMul(s, dx, device.Store, y, false, w, false)
		if err == nil {
			err = k.MatMul(s, dw, device.Store, y, true, x, false)
		}
		if err != nil {
			return fmt.Errorf("preparing the gradients of a Linear of %v and %v: %w", x, w, err)
		}
		return nil
	})
}

// prepare calls compute on the compute stream once per key, which identifies products. It does nothing
// during a graph capture, or on another stream, where scratch memory could not be freed in stream order.
func (k *kernelSet) prepare(st device.Stream, key any, compute func(s *gpuStream) error) error {
	s := k.d.stream(st)
	if k.prepared[key] || s != k.d.compute {
		return nil
	}
	captured, err := s.capturing()
	if err != nil || captured {
		return err
	}
	k.prepared[key] = true
	return compute(s)
}
