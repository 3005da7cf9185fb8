package commhook

import (
	"context"
	"fmt"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp/reducer"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/profile"
)

// AllReduce averages a bucket in its own type, as a model without a hook does. It is the innermost
// hook by default.
type AllReduce struct{}

// Reduce starts one all-reduce.
func (AllReduce) Reduce(b reducer.GradBucket) reducer.Reduction {
	return b.Group.With(comm.CallOptions{Name: b.Name, After: b.After}).AllReduce(b.Flat, b.Op)
}

func (AllReduce) String() string { return "all-reduce" }

// Noop does not communicate. It divides each rank's gradients by the number of ranks, as averaging
// would, and leaves them on their rank. The replicas become different: use it only to measure the
// cost of communication.
type Noop struct{}

// Reduce divides the gradients and does not communicate.
func (Noop) Reduce(b reducer.GradBucket) reducer.Reduction { return completed{divide(b)} }

func (Noop) String() string { return "no reduction" }

// completed is a Reduction that is over.
type completed struct{ err error }

func (c completed) Wait(context.Context) error { return c.err }
func (c completed) Sync(context.Context) error { return c.err }

// failed aborts the group and returns the error as a Reduction. The other ranks would wait for this
// rank otherwise.
func failed(b reducer.GradBucket, err error) reducer.Reduction {
	err = fmt.Errorf("commhook: rank %d: %s: %w", b.Rank, b.Name, err)
	b.Group.Abort(err)
	return completed{err}
}

// orAllReduce returns h, or AllReduce if h is nil.
func orAllReduce(h reducer.Hook) reducer.Hook {
	if h == nil {
		return AllReduce{}
	}
	return h
}

// divide divides a bucket by the number of ranks, unless the gradients already are divided.
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

// hookBucket returns a bucket of the hook's memory that an inner hook reduces instead of b, by a
// sum. It holds the result of everything that the compute stream was given so far. params and grads
// describe its content.
func hookBucket(b reducer.GradBucket, name string, flat device.Tensor, params []reducer.Param, grads []device.Tensor) reducer.GradBucket {
	b.Name, b.Op, b.After, b.Flat, b.Params, b.Grads = name, comm.Sum, b.Ready(flat.Bytes()), flat, params, grads
	return b
}

// Func makes a hook of a function. The function starts to reduce a bucket, in place or in other
// memory. It returns the tensor that has the averages when the reduction is done. Wait copies them
// to the bucket. The tensor may have any floating-point type but must have as many elements as the
// bucket. Otherwise Wait returns a [*SizeError], which aborts the group, as every error of Wait
// does.
type Func func(b reducer.GradBucket) (averages device.Tensor, done reducer.Reduction)

// Reduce calls f.
func (f Func) Reduce(b reducer.GradBucket) reducer.Reduction {
	averages, done := f(b)
	return andThen(done, func() error { return put(b, averages) })
}

// SizeError says that a hook returned another number of elements than the bucket has.
type SizeError struct {
	Rank      int
	Bucket    string
	Got, Want int // numbers of elements
}

func (e *SizeError) Error() string {
	return fmt.Sprintf("commhook: rank %d: the hook made %d numbers of %s, which has %d", e.Rank, e.Got, e.Bucket, e.Want)
}

// put copies the elements of t to the bucket.
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

// andThen returns a reduction whose Wait also calls then, which enqueues further work.
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
