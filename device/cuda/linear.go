//go:build cgo && linux

package cuda

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

// Linear fuses the bias into the product if cuBLAS has such a kernel. Otherwise a separate kernel adds it.
// Linear does not use cuBLAS's fused float64 kernel, which takes twice the time of the product on an H200,
// nor its ReLU, because some of its 16-bit kernels turn NaN into 0 (cuBLASLt 13.1 on an H200).
func (k *kernelSet) Linear(st device.Stream, dst, x, w, bias device.Tensor, act kernels.Activation) error {
	m, n, inner := operands.Linear(dst, x, w, bias)
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

// LinearGrad uses one fused kernel if that was measured to be faster, and otherwise a product and a sum.
func (k *kernelSet) LinearGrad(st device.Stream, dw device.Tensor, accW device.Accum, db device.Tensor, accB device.Accum, g, x device.Tensor) error {
	operands.LinearGrad(dw, db, g, x)
	a := linearGrad{dw, accW, db, accB, g, x}
	fuse, err := k.fuses(st, a)
	switch {
	case err != nil:
	case fuse:
		err = k.gradsFused(st, a)
	default:
		err = k.gradsApart(st, a)
	}
	if err != nil {
		return fmt.Errorf("LinearGrad of %v and %v: %w", g, x, err)
	}
	return nil
}

// linearGrad holds the operands of a LinearGrad.
type linearGrad struct {
	dw   device.Tensor
	accW device.Accum
	db   device.Tensor
	accB device.Accum
	g, x device.Tensor
}

// product returns the product for dw with an epilogue that computes db. It sums over the rows of g, which
// is the product's inner dimension: g is cuBLAS's B, stored transposed.
func (a linearGrad) product() product {
	return product{rows: a.x.Shape[1], cols: a.g.Shape[1], inner: a.g.Shape[0], tb: true, epilogue: epilogueBiasGrad, batch: 1}
}

func (k *kernelSet) gradsApart(st device.Stream, a linearGrad) error {
	if err := k.MatMul(st, a.dw, a.accW, a.g, true, a.x, false); err != nil {
		return err
	}
	return k.Sum(st, a.db, a.accB, a.g)
}

// gradsFused computes both gradients in one kernel. It needs accB.Beta 0, because cuBLAS overwrites db.
// cuBLAS does not scale the sums, so gradsFused scales db afterwards.
func (k *kernelSet) gradsFused(st device.Stream, a linearGrad) error {
	err := k.multiply(st, a.product(), a.dw, a.accW, a.g, a.x, besides{bias: a.db})
	if err != nil || a.accB.Alpha == 1 {
		return err
	}
	return k.scale(st, a.db, a.accB.Alpha)
}

// fuses reports whether to compute a with gradsFused. It times both alternatives once per product, because
// cuBLAS's fused kernel may be much slower than its best product. Versions of cuBLAS before 12.3.4 have no
// fused kernel for a single row.
func (k *kernelSet) fuses(st device.Stream, a linearGrad) (bool, error) {
	p := a.product()
	if k.races == nil || a.accB.Beta != 0 || p.inner < 2 || a.dw.Len() == 0 {
		return false, nil
	}
	k.complete(&p, a.dw, a.accW, a.g, a.x, besides{bias: a.db})
	if p.alignD != device.Align || p.alignBias != device.Align { // the race uses scratch memory, which is always aligned
		return false, nil
	}
	if fuse, known := k.fused[p]; known {
		return fuse, nil
	}
	what := fmt.Sprintf("%+v or a product and a sum", p)
	if way, known := k.races.made[what]; known {
		k.fused[p] = way == "1"
		return k.fused[p], nil
	}
	s := k.d.stream(st)
	captured, err := s.capturing()
	if err != nil || captured {
		return false, err
	}
	scratch, err := k.scratch(&a.dw, &a.db)
	if err != nil {
		return false, nil
	}
	defer k.d.Free(scratch)
	ways := [...]func(device.Stream, linearGrad) error{k.gradsApart, k.gradsFused}
	for _, way := range ways { // loads and tunes the kernels before the race
		if way(st, a) != nil {
			k.fused[p] = false
			return false, k.d.Err()
		}
	}
	best, decided, err := k.d.race(s, len(ways), func(i int) error { return ways[i](st, a) })
	if err != nil {
		return false, err
	}
	k.fused[p] = best == 1
	if decided {
		k.races.put(what, strconv.Itoa(best))
	}
	return k.fused[p], nil
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
	bias    bool
}

// PrepareLinearGrad computes the gradients once per layer, into scratch memory, using y as the incoming
// gradient. cuBLAS loads a kernel at its first call. Loading can wait for all work in flight while it
// holds the context's lock, and then not even a collective could be aborted. If memory is short, or during
// a graph capture, PrepareLinearGrad does nothing, and the first backward pass loads the kernels.
func (k *kernelSet) PrepareLinearGrad(st device.Stream, y, x, w, bias device.Tensor) error {
	m, n, inner := operands.Linear(y, x, w, bias)
	return k.prepare(st, layer{y.DType, m, n, inner, !bias.IsZero()}, func(s *gpuStream) error {
		dx, dw, db := x, w, bias
		scratch, err := k.scratch(&dx, &dw, &db)
		if err != nil {
			return nil
		}
		defer k.d.Free(scratch)
		err = k.MatMul(s, dx, device.Store, y, false, w, false)
		switch {
		case err != nil:
		case !bias.IsZero():
			err = k.LinearGrad(s, dw, device.Store, db, device.Store, y, x)
		default:
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
