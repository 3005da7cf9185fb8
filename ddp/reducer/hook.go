package reducer

import (
	"context"
	"fmt"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/profile"
)

// Hook reduces buckets in place of an all-reduce. It may compress buckets, reduce them over other
// groups, or omit some; package [github.com/goddp/goddp/ddp/commhook] has several hooks. All ranks must
// have the same hook: New compares the results of the hooks' String methods, or the types of hooks
// without this method. The reducer calls the hook from the goroutine that calls the reducer. A hook may
// keep state from pass to pass, so each Reducer needs its own hook.
type Hook interface {
	// Reduce starts a reduction after which b's gradients are the averages over the ranks. Reduce must
	// not wait, because the backward pass continues meanwhile. In each pass that reduces, every rank
	// calls Reduce once per bucket, in order of index, even if gradients of that rank are missing. If
	// Reduce fails, the methods of the Reduction return the error; the hook must not leave the other
	// ranks waiting.
	Reduce(b GradBucket) Reduction
}

// Partial is a Hook that may average over only a part of the group's ranks. A hook that passes buckets
// on to another hook also is a Partial if the other hook may be one.
type Partial interface {
	Hook
	Partial() bool
}

// IsPartial reports whether h averages over only a part of the ranks: it is a Partial, and its method
// Partial returns true.
func IsPartial(h Hook) bool {
	p, ok := h.(Partial)
	return ok && p.Partial()
}

// Reduction is a started reduction of a bucket. A [*comm.Work] is a Reduction. Traces show the
// reductions for which [Times] returns times.
type Reduction interface {
	// Wait makes the compute stream wait for the averages: work that is enqueued on the stream after
	// Wait sees them. Wait also enqueues what is left to do, such as decompression. It blocks the host
	// in the same cases as comm.Work.Wait. After the pass, the reducer calls Wait at most once, bucket by
	// bucket; if the pass failed on this rank, it may omit the call. If Wait returns an error, the
	// reducer aborts the group, because the other ranks may apply the averages.
	Wait(ctx context.Context) error
	// Sync blocks until the communication has ended or failed. The reducer may call Sync any number of
	// times, before or after Wait, and also if it never calls Wait. So a Reduction must not hold
	// resources that only Wait releases.
	Sync(ctx context.Context) error
}

// GradBucket is a bucket of gradients that a Hook has to reduce.
type GradBucket struct {
	Index int
	Last  bool
	// Rebuilt says that the buckets were rebuilt after the first pass. State that a hook has kept by
	// Index since before then belongs to other buckets.
	Rebuilt bool
	Name    string             // the name of the bucket for collectives: see [comm.CallOptions]
	Rank    int                // this process's rank in the model's group, for errors; a hook may replace Group, but not Rank
	Group   *comm.ProcessGroup // the group to average over
	// Op computes the average. It is Sum if the engine has already divided the gradients by the number of
	// ranks, and Avg otherwise.
	Op comm.ReduceOp
	// After is the event after which the gradients are final. nil means that they are final after
	// everything that is enqueued on the compute stream now.
	After device.Event
	// Flat is the whole bucket. Each gradient starts at a multiple of [device.Align] bytes. The padding
	// between and after the gradients is zero, and the hook must leave it zero.
	Flat   device.Tensor
	Params []Param         // the parameters whose gradients are in the bucket; read-only
	Grads  []device.Tensor // the gradients of Params, as views of Flat
}

// Ready returns the event after which a buffer of the hook may be reduced. bytes is the size of the
// buffer. The hook must have enqueued everything that writes the buffer. For a large buffer
// the event lets the reduction start before kernels that are enqueued later: see headStart. Otherwise Ready
// returns nil. The reduction then runs after everything that is enqueued when it is called.
func (b GradBucket) Ready(bytes int) device.Event { return headStart(b.Group, bytes, b.Last) }

// Times returns when a reduction started to run and when it ended. It returns these times for a
// [*comm.Work], for a type that embeds *comm.Work, and for a type that has a method Times with the same
// results. For all other types it returns nil.
func Times(r Reduction) (started, ended profile.Moment) {
	switch r := r.(type) {
	case interface {
		Started() comm.Moment
		Ended() comm.Moment
	}:
		return r.Started(), r.Ended()
	case interface {
		Times() (started, ended profile.Moment)
	}:
		return r.Times()
	}
	return nil, nil
}

// hookName returns the name of a hook that ranks compare: the result of its String method or, if it has
// none, its type.
func hookName(h Hook) string {
	if s, ok := h.(fmt.Stringer); ok {
		return s.String()
	}
	return fmt.Sprintf("%T", h)
}

// start starts the reduction of bucket i, by the hook or by an all-reduce. The gradients are final after
// the event after.
func (r *Reducer) start(i int, after device.Event) Reduction {
	if b := &r.buckets[i]; r.hook == nil {
		return r.pg.With(comm.CallOptions{Name: b.name, After: after}).AllReduce(b.flat, r.op)
	}
	return r.hook.Reduce(r.offered(i, after))
}

// offered returns bucket i as the GradBucket that the hook gets. The gradients are final after the event
// after.
func (r *Reducer) offered(i int, after device.Event) GradBucket {
	b := &r.buckets[i]
	if b.hookParams == nil {
		for _, p := range b.params {
			b.hookParams, b.hookGrads = append(b.hookParams, r.params[p]), append(b.hookGrads, r.grads[p])
		}
	}
	return GradBucket{
		Index: i, Last: i == len(r.buckets)-1, Rebuilt: r.stats.Rebuilt != nil, Name: b.name, Rank: r.pg.Rank(), Group: r.pg, Op: r.op,
		After: after, Flat: b.flat, Params: b.hookParams, Grads: b.hookGrads,
	}
}
