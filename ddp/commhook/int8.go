package commhook

import (
	"errors"
	"fmt"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp/reducer"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

// Int8 sends gradients as numbers of 8 bits, with a scale for each block of
// [kernels.QuantBlock]: a little more than 1 byte for each parameter. They are summed
// in Float32: what comes from a rank is off by at most 1/254 of the largest gradient
// in its block. Gradients that are not finite become NaN.
//
// Steps, with n bytes of quantised gradients on each of N ranks:
//
//	N = 2   each sends all to the other and sums what there is: an all-gather,
//	        n bytes
//	N > 2   each sends every other its part, sums its own, rounds that again and
//	        sends it to all: an all-to-all and an all-gather, 2n·(N-1)/N bytes
//
// The first way takes n·(N-1) bytes: less for none but two ranks. The second one's
// all-gather is behind the backward pass.
func Int8() reducer.Hook { return &quantized{} }

type quantized struct {
	mem      memory[*numbers]
	twoPhase twoPhase
}

func (*quantized) String() string { return fmt.Sprintf("8 bits in blocks of %d", kernels.QuantBlock) }

// numbers are a bucket as it is sent. Those of rank r are the r-th part of what is
// parted.
type numbers struct {
	b     reducer.GradBucket // as it was when they were made
	flat  device.Tensor      // Float32: the bucket's own, or made of it
	whole device.Tensor      // bytes: of all of flat, parted where it is
	mine  device.Tensor      // bytes: what this rank sends to all
	got   device.Tensor      // bytes, parted: what each rank sent to this one
	sum   device.Tensor      // Float32, of this rank's part; flat where there are no parts
}

func (q *quantized) Reduce(b reducer.GradBucket) reducer.Reduction {
	if b.Group.Size() == 1 {
		return AllReduce{}.Reduce(b)
	}
	n, err := q.mem.of(b, func() (*numbers, error) { return newNumbers(b) })
	if err != nil {
		return failed(b, err)
	}
	if err := errors.Join(divide(b), n.quantize()); err != nil {
		return failed(b, err)
	}
	first := b.Group.With(comm.CallOptions{Name: b.Name, After: b.Ready(n.whole.Bytes())})
	if b.Group.Size() == 2 {
		return andThen(first.AllGather(n.got, n.mine), n.add)
	}
	return q.twoPhase.start(first.AllToAll(n.got, n.whole), func() (reducer.Reduction, error) {
		err := n.requantize()
		return b.Group.With(comm.CallOptions{Name: b.Name}).AllGather(n.whole, n.mine), err
	}, n.dequantize)
}

func newNumbers(b reducer.GradBucket) (*numbers, error) {
	ranks, count := b.Group.Size(), kernels.QuantBlocks(b.Flat.Len())
	each := count // blocks of a part
	if ranks > 2 {
		each = (count + ranks - 1) / ranks
	}
	n := &numbers{b: b, flat: b.Flat}
	var errs []error
	array := func(dt device.DType, size int) device.Tensor {
		t, err := alloc(b, dt, size)
		errs = append(errs, err)
		return t
	}
	if b.Flat.DType != device.Float32 {
		n.flat = array(device.Float32, b.Flat.Len())
	}
	n.mine, n.got = array(device.Uint8, each*device.Align), array(device.Uint8, ranks*each*device.Align)
	n.whole, n.sum = n.mine, n.flat
	if ranks > 2 {
		n.whole, n.sum = array(device.Uint8, ranks*each*device.Align), array(device.Float32, each*kernels.QuantBlock)
	}
	return n, errors.Join(errs...)
}

// quantize rounds all of the bucket.
func (n *numbers) quantize() error {
	k, s := n.device()
	if n.b.Flat.DType != device.Float32 {
		if err := k.Copy(s, n.flat, n.b.Flat); err != nil {
			return err
		}
	}
	return k.Quantize(s, n.whole.Range(0, kernels.QuantizedLen(n.flat.Len())), n.flat)
}

// add makes the sum of what the ranks sent: in their order, so that all who add
// the same get the same.
func (n *numbers) add() error {
	k, s := n.device()
	size := n.mine.Len()
	for r := range n.b.Group.Size() {
		acc := device.Accum{Alpha: 1, Beta: 1}
		if r == 0 {
			acc = device.Store
		}
		if err := k.Dequantize(s, n.sum, acc, n.got.Range(r*size, (r+1)*size)); err != nil {
			return err
		}
	}
	if n.b.Group.Size() > 2 {
		return nil
	}
	return n.back()
}

// requantize rounds the sum of this rank's part.
func (n *numbers) requantize() error {
	k, s := n.device()
	if err := n.add(); err != nil {
		return err
	}
	return k.Quantize(s, n.mine, n.sum)
}

// dequantize makes the bucket of the parts that the ranks have summed.
func (n *numbers) dequantize() error {
	k, s := n.device()
	if err := k.Dequantize(s, n.flat, device.Store, n.whole.Range(0, kernels.QuantizedLen(n.flat.Len()))); err != nil {
		return err
	}
	return n.back()
}

// back gives the bucket the averages in its own type.
func (n *numbers) back() error {
	if n.b.Flat.DType == device.Float32 {
		return nil
	}
	k, s := n.device()
	return k.Copy(s, n.b.Flat, n.flat)
}

func (n *numbers) device() (kernels.Kernels, device.Stream) {
	d := n.b.Group.Device()
	return kernels.Of(d), d.Compute()
}
