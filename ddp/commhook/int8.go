package commhook

import (
	"errors"
	"fmt"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp/reducer"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

// Int8 sends gradients as integers of 8 bits, with a scale for each block of [kernels.QuantBlock]
// gradients: a little more than 1 byte for each parameter. It sums them in Float32. The error of
// each rank's contribution is at most 1/254 of the largest gradient in the block. Gradients that
// are not finite become NaN.
//
// The steps, with n bytes of quantized gradients on each of N ranks:
//
//	N = 2   each rank sends all gradients to the other and sums both: an all-gather,
//	        n bytes
//	N > 2   each rank sends every other rank its part, sums the parts that it gets,
//	        quantizes the sum and sends it to all: an all-to-all and an all-gather,
//	        2n·(N-1)/N bytes
//
// With N ranks the first method would send n·(N-1) bytes, which is less than the second only for two
// ranks. The all-gather of the second method runs after the backward pass.
func Int8() reducer.Hook { return &quantized{} }

type quantized struct {
	mem      memory[*numbers]
	twoPhase twoPhase
}

func (*quantized) String() string { return fmt.Sprintf("8 bits in blocks of %d", kernels.QuantBlock) }

// Stateless returns true: Int8 has no error feedback.
func (*quantized) Stateless() bool { return true }

// numbers are the buffers for one bucket. A buffer marked "divided" has one part for each rank, in
// order of the ranks.
type numbers struct {
	b     reducer.GradBucket // the bucket for which the buffers were allocated
	flat  device.Tensor      // Float32: the bucket itself or a copy
	whole device.Tensor      // flat, quantized; divided if there are more than two ranks
	mine  device.Tensor      // quantized: what this rank sends to all
	got   device.Tensor      // quantized, divided: what each rank sent to this rank
	sum   device.Tensor      // Float32: the sum of this rank's part; flat if there are at most two ranks
}

func (q *quantized) Reduce(b reducer.GradBucket) reducer.Reduction {
	if b.Group.Size() == 1 {
		return allReduce{}.Reduce(b)
	}
	n, err := q.mem.of(b, func() (*numbers, error) { return newNumbers(b) })
	if err != nil {
		return failed(b, err)
	}
	if err := errors.Join(divide(b), n.quantize()); err != nil {
		return failed(b, err)
	}
	first := b.Group.With(&comm.CallOptions{Name: b.Name, After: b.Ready(n.whole.Bytes())})
	if b.Group.Size() == 2 {
		return andThen(first.AllGather(n.got, n.mine), n.add)
	}
	return q.twoPhase.start(first.AllToAll(n.got, n.whole), func() (reducer.Reduction, error) {
		err := n.requantize()
		return b.Group.With(&comm.CallOptions{Name: b.Name}).AllGather(n.whole, n.mine), err
	}, n.dequantize)
}

func newNumbers(b reducer.GradBucket) (*numbers, error) {
	ranks, count := b.Group.Size(), kernels.QuantBlocks(b.Flat.Len())
	each := count // the number of blocks in a part
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

// quantize quantizes the whole bucket.
func (n *numbers) quantize() error {
	k, s := n.device()
	if n.b.Flat.DType != device.Float32 {
		if err := k.Copy(s, n.flat, n.b.Flat); err != nil {
			return err
		}
	}
	return k.Quantize(s, n.whole.Range(0, kernels.QuantizedLen(n.flat.Len())), n.flat)
}

// add sums the parts that the ranks sent, in order of the ranks, so that all ranks get the same bits.
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

// requantize quantizes the sum of this rank's part.
func (n *numbers) requantize() error {
	k, s := n.device()
	if err := n.add(); err != nil {
		return err
	}
	return k.Quantize(s, n.mine, n.sum)
}

// dequantize sets the bucket to the sums that all ranks have computed.
func (n *numbers) dequantize() error {
	k, s := n.device()
	if err := k.Dequantize(s, n.flat, device.Store, n.whole.Range(0, kernels.QuantizedLen(n.flat.Len()))); err != nil {
		return err
	}
	return n.back()
}

// back copies the averages to the bucket, converted to the bucket's type.
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
