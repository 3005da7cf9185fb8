package reducer

import (
	"context"
	"fmt"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/profile"
)

// Hook reduces buckets in place of an all-reduce: it may compress them, reduce
// over other groups, or leave something out; package
// [github.com/goddp/goddp/ddp/commhook] has some. All ranks have the same: New
// compares what they are called, by a String method if they have one, else by
// their types. A Hook is called on the goroutine that drives the Reducer, and may
// keep what it needs for the next pass: it is one Reducer's alone.
type Hook interface {
	// Reduce starts to make b's gradients the averages over the ranks, and
	// does not wait for anything: the backward pass goes on meanwhile. It is
	// called once for each bucket in a pass that reduces, in order of index,
	// on every rank, whatever that rank's pass lacks. What it cannot do is in
	// the Reduction's error, and other ranks must not be left to wait for it.
	Reduce(b GradBucket) Reduction
}

// Partial is a Hook that may average over fewer ranks than the group has, by itself or
// by the one that it passes buckets on to.
type Partial interface {
	Hook
	Partial() bool
}

// IsPartial tells whether h is one that does.
func IsPartial(h Hook) bool {
	p, ok := h.(Partial)
	return ok && p.Partial()
}

// Reduction is a bucket's reduction in flight. A [*comm.Work] is one. Traces have
// those whose [Times] are to be had.
type Reduction interface {
	// Wait makes what is enqueued on the compute stream from now on see the
	// averages: it enqueues there what is left to do, such as to decompress
	// them. It blocks as comm.Work.Wait does. It is called once, bucket by
	// bucket, behind the pass, or not at all where that failed on this rank. An
	// error breaks the group: the other ranks may use what they have.
	Wait(ctx context.Context) error
	// Sync blocks until the communication is over, or has failed. It may be
	// called any number of times, before and after Wait, or without it: a
	// Reduction holds on to nothing that only Wait would give back.
	Sync(ctx context.Context) error
}

// GradBucket is a bucket that is to be reduced.
type GradBucket struct {
	Index int
	Last  bool
	// Rebuilt tells that buckets are not those of the first passes any more:
	// what a hook kept by index is of others.
	Rebuilt bool
	Name    string             // for calls: see [comm.CallOptions]
	Rank    int                // this process's in the model's group, for errors: a hook may pass the bucket on with another Group
	Group   *comm.ProcessGroup // over which to average
	// Op is what averages: Sum where the gradients are divided by the number of
	// ranks already, else Avg.
	Op comm.ReduceOp
	// After is when the gradients are final: behind what the compute stream was
	// given so far, or nil, which means the same to comm.
	After device.Event
	// Flat is the whole bucket: the gradients, each on [device.Align] bytes,
	// and zeros between and behind them, which have to stay zeros.
	Flat   device.Tensor
	Params []Param         // whose gradients they are; the same in every pass, and not to be changed
	Grads  []device.Tensor // views of Flat
}

// Ready is when memory is ready that a hook has enqueued something for, to be reduced
// in the bucket's place: what After is for the bucket itself, with the head start that
// large reductions have, which are reduced beside the backward pass.
func (b GradBucket) Ready(bytes int) device.Event { return headStart(b.Group, bytes, b.Last) }

// Times are when a reduction began to run and when it was done: those of a
// [*comm.Work], or of what embeds one, or what a method of this name, without a
// parameter, returns. They are nil where nothing tells.
func Times(r Reduction) (begun, ended profile.Moment) {
	switch r := r.(type) {
	case interface {
		Started() comm.Moment
		Ended() comm.Moment
	}:
		return r.Started(), r.Ended()
	case interface {
		Times() (begun, ended profile.Moment)
	}:
		return r.Times()
	}
	return nil, nil
}

// called is what a hook is compared by.
func called(h Hook) string {
	if s, ok := h.(fmt.Stringer); ok {
		return s.String()
	}
	return fmt.Sprintf("%T", h)
}

// start starts the reduction of bucket i.
func (r *Reducer) start(i int, after device.Event) Reduction {
	if b := &r.buckets[i]; r.hook == nil {
		return r.pg.With(comm.CallOptions{Name: b.name, After: after}).AllReduce(b.flat, r.op)
	}
	return r.hook.Reduce(r.offered(i, after))
}

// offered is bucket i as a hook gets it.
func (r *Reducer) offered(i int, after device.Event) GradBucket {
	b := &r.buckets[i]
	if b.params == nil {
		for _, p := range b.Params {
			b.params, b.grads = append(b.params, r.params[p]), append(b.grads, r.grads[p])
		}
	}
	return GradBucket{
		Index: i, Last: i == len(r.buckets)-1, Rebuilt: r.stats.Rebuilt != nil, Name: b.name, Rank: r.pg.Rank(), Group: r.pg, Op: r.op,
		After: after, Flat: b.flat, Params: b.params, Grads: b.grads,
	}
}
