package reducer

import (
	"context"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
)

// Hook reduces buckets in place of an all-reduce: it may compress them, reduce
// over other groups, or leave something out. All ranks have the same. It is
// called on the goroutine that drives the Reducer.
type Hook interface {
	// Reduce starts to make b's gradients the averages over the ranks, and
	// does not wait for anything: the backward pass goes on meanwhile. It is
	// called once for each bucket in a pass that reduces, in order of index,
	// on every rank, whatever that rank's pass lacks. What it cannot do is in
	// the Reduction's error, and other ranks must not be left to wait for it.
	Reduce(b GradBucket) Reduction
}

// Reduction is a bucket's reduction in flight. A [*comm.Work] is one; one that
// embeds the last Work that it waits for is in traces with that Work's times.
type Reduction interface {
	// Wait makes what is enqueued on the compute stream from now on see the
	// averages: it enqueues there what is left to do, such as to decompress
	// them. It blocks as comm.Work.Wait does. It is called once, bucket by
	// bucket, behind the pass; not where the gradients are not to be used.
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
	Params []Param         // whose gradients they are
	Grads  []device.Tensor // views of Flat
}

// start starts the reduction of bucket i.
func (r *Reducer) start(i int, after device.Event) Reduction {
	b := &r.buckets[i]
	if r.hook == nil {
		return r.pg.With(comm.CallOptions{Name: b.name, After: after}).AllReduce(b.flat, r.op)
	}
	g := GradBucket{
		Index: i, Last: i == len(r.buckets)-1, Rebuilt: r.stats.Rebuilt != nil, Name: b.name, Group: r.pg, Op: r.op, After: after,
		Flat: b.flat,
	}
	for _, p := range b.Params {
		g.Params, g.Grads = append(g.Params, r.params[p]), append(g.Grads, r.grads[p])
	}
	return r.hook.Reduce(g)
}
