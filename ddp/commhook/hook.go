package commhook

import (
	"context"
	"fmt"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp/reducer"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/profile"
)

// AllReduce averages a bucket in its own type, as a model without a hook does. It
// is what the others end with.
type AllReduce struct{}

// Reduce starts one all-reduce.
func (AllReduce) Reduce(b reducer.GradBucket) reducer.Reduction {
	return b.Group.With(comm.CallOptions{Name: b.Name, After: b.After}).AllReduce(b.Flat, b.Op)
}

func (AllReduce) String() string { return "all-reduce" }

// Noop leaves every rank its own gradients, divided by the number of ranks where
// the averages would have been. The replicas drift apart: it is for measuring what
// communication costs.
type Noop struct{}

// Reduce does nothing.
func (Noop) Reduce(b reducer.GradBucket) reducer.Reduction { return completed{divide(b)} }

func (Noop) String() string { return "no reduction" }

// over is a Reduction that is over.
type completed struct{ err error }

func (c completed) Wait(context.Context) error { return c.err }
func (c completed) Sync(context.Context) error { return c.err }

// failed is a Reduction that this rank cannot take part in. The others would wait
// for it: the group is aborted.
func failed(b reducer.GradBucket, err error) reducer.Reduction {
	err = fmt.Errorf("commhook: rank %d: %s: %w", b.Rank, b.Name, err)
	b.Group.Abort(err)
	return completed{err}
}

// or is the hook, or an all-reduce where there is none.
func orAllReduce(h reducer.Hook) reducer.Hook {
	if h == nil {
		return AllReduce{}
	}
	return h
}

// divide makes the sum over the ranks the average, where it is not already.
func divide(b reducer.GradBucket) error {
	if b.Op == comm.Sum {
		return nil
	}
	return scale(b, 1/float64(b.Group.Size()))
}

// scale multiplies a bucket by a factor.
func scale(b reducer.GradBucket, factor float64) error {
	d := b.Group.Device()
	return d.Kernels().Axpby(d.Compute(), b.Flat, device.Accum{Alpha: factor}, b.Flat)
}

// within is a bucket of memory of the hook's own, in the place of b: it holds what
// the compute stream was given so far, to be summed. Of what is within b, it has
// the names.
func hookBucket(b reducer.GradBucket, name string, flat device.Tensor, params []reducer.Param, grads []device.Tensor) reducer.GradBucket {
	b.Name, b.Op, b.After, b.Flat, b.Params, b.Grads = name, comm.Sum, b.Ready(flat.Bytes()), flat, params, grads
	return b
}

// Func is a hook as a function: it starts to reduce a bucket, in place or in other
// memory, and tells where the averages will be when that is done. Wait copies them
// to the bucket, whose elements they have to be as many as, in any floating-point
// type: otherwise it returns a [*SizeError], which breaks the group as every error
// of Wait does.
type Func func(b reducer.GradBucket) (averages device.Tensor, done reducer.Reduction)

// Reduce calls f.
func (f Func) Reduce(b reducer.GradBucket) reducer.Reduction {
	averages, done := f(b)
	return andThen(done, func() error { return put(b, averages) })
}

// SizeError says that a hook did not make as many numbers of a bucket as are in it.
type SizeError struct {
	Rank      int
	Bucket    string
	Got, Want int // elements
}

func (e *SizeError) Error() string {
	return fmt.Sprintf("commhook: rank %d: the hook made %d numbers of %s, which has %d", e.Rank, e.Got, e.Bucket, e.Want)
}

// put makes the numbers in a tensor those of the bucket.
func put(b reducer.GradBucket, t device.Tensor) error {
	if t.Len() != b.Flat.Len() {
		return &SizeError{b.Rank, b.Name, t.Len(), b.Flat.Len()}
	}
	if t.Buf.Addr() == b.Flat.Buf.Addr() {
		return nil
	}
	d := b.Group.Device()
	return d.Kernels().Copy(d.Compute(), b.Flat, t)
}

// behind is a reduction behind which there is something left to enqueue.
func andThen(r reducer.Reduction, then func() error) reducer.Reduction {
	return &reductionThen{r, then}
}

type reductionThen struct {
	reducer.Reduction
	then func() error
}

func (f *reductionThen) Wait(ctx context.Context) error {
	if err := f.Reduction.Wait(ctx); err != nil {
		return err
	}
	return f.then()
}

func (f *reductionThen) Times() (started, ended profile.Moment) { return reducer.Times(f.Reduction) }
