package commhook

import (
	"context"
	"fmt"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp/reducer"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/capture"
	"github.com/goddp/goddp/profile"
)

// AllReduce averages a bucket in its own type, as a model without a hook does. It is the innermost
// hook by default.
func AllReduce() reducer.Hook { return allReduce{} }

type allReduce struct{}

func (allReduce) Reduce(b reducer.GradBucket) reducer.Reduction {
	return b.Group.With(&comm.CallOptions{Name: b.Name, After: b.After}).AllReduce(b.Flat, b.Op)
}

func (allReduce) String() string  { return "all-reduce" }
func (allReduce) Stateless() bool { return true }

// Noop does not communicate. It only divides each rank's gradients by the number of ranks, as averaging
// does. The replicas become different, so use Noop only to measure the cost of communication.
func Noop() reducer.Hook { return noop{} }

type noop struct{}

func (noop) Reduce(b reducer.GradBucket) reducer.Reduction { return completed{divide(b)} }

func (noop) String() string  { return "no reduction" }
func (noop) Stateless() bool { return true }

// completed is a Reduction that is over.
type completed struct{ err error }

func (c completed) Wait(context.Context) error { return c.err }
func (c completed) Sync(context.Context) error { return c.err }

// failed returns the error as a Reduction. It also aborts the group, because the other ranks would wait for
// this rank. While this rank captures a step, no rank waits yet, so the capture fails and the group is not aborted.
func failed(b reducer.GradBucket, err error) reducer.Reduction {
	err = fmt.Errorf("commhook: rank %d: %s: %w", b.Rank, b.Name, err)
	if capture.Of(b.Group.Device()) == nil {
		b.Group.Abort(err)
	}
	return completed{err}
}

// orAllReduce returns h, or AllReduce if h is nil.
func orAllReduce(h reducer.Hook) reducer.Hook {
	if h == nil {
		return allReduce{}
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

// hookBucket returns a bucket in the hook's own memory, flat, which an inner hook reduces by a sum instead
// of b. The reduction starts after all work that is on the compute stream now. params and grads
// describe the content of flat.
func hookBucket(b reducer.GradBucket, name string, flat device.Tensor, params []reducer.Param, grads []device.Tensor) reducer.GradBucket {
	b.Name, b.Op, b.After, b.Flat, b.Params, b.Grads = name, comm.Sum, b.Ready(flat.Bytes()), flat, params, grads
	return b
}

// Func makes a hook of a function. The function starts to reduce a bucket, in place or in other
// memory. It returns the tensor averages and the reduction done. When done is complete, averages holds the averages,
// and the hook copies them to the bucket. The tensor may have any floating-point type but must have as many
// elements as the bucket. Otherwise the hook's Wait returns an error. Every error of Wait aborts the group.
type Func func(b reducer.GradBucket) (averages device.Tensor, done reducer.Reduction)

// Reduce calls f.
func (f Func) Reduce(b reducer.GradBucket) reducer.Reduction {
	averages, done := f(b)
	return andThen(done, func() error { return put(b, averages) })
}

// put copies the elements of t to the bucket.
func put(b reducer.GradBucket, t device.Tensor) error {
	if t.Len() != b.Flat.Len() {
		return fmt.Errorf("commhook: rank %d: the hook returned %d elements for %s, which has %d", b.Rank, t.Len(), b.Name, b.Flat.Len())
	}
	if t.Buf.Addr() == b.Flat.Buf.Addr() {
		return nil
	}
	d := b.Group.Device()
	return d.Kernels().Copy(d.Compute(), b.Flat, t)
}

// andThen returns a reduction whose Wait waits for r and then calls the function then, which enqueues further work.
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
