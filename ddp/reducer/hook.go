package reducer

import (
	"context"
	"fmt"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/profile"
)

// Hook reduces buckets in place of an all-reduce. It may compress them, reduce them over other
// groups, or omit some; package [github.com/goddp/goddp/ddp/commhook] has several. All ranks must have
// the same hook: New compares their names, which are the results of their String method, or else their
// types. The goroutine that drives the Reducer calls the hook. A hook may keep state from pass
// to pass, so each Reducer needs its own.
type Hook interface {
	// Reduce starts a reduction after which b's gradients are the averages over the ranks. It must
	// not wait, because the backward pass continues meanwhile. In each pass that reduces it is called
	// once per bucket, in order of index, on every rank, even if gradients of that rank are missing. If
	// it fails, the Reduction returns the error, and the other ranks must not be left waiting.
	Reduce(b GradBucket) Reduction
}

// Partial is a Hook that may average over only a part of the group's ranks, itself or through the hook
// that it passes buckets on to.
type Partial interface {
	Hook
	Partial() bool
}

// IsPartial reports whether h is a Partial that averages over a part of the ranks.
func IsPartial(h Hook) bool {
	p, ok := h.(Partial)
	return ok && p.Partial()
}

// Reduction is the reduction of a bucket that was started. A [*comm.Work] is one. Traces show the
// reductions for which [Times] returns times.
type Reduction interface {
	// Wait makes everything that is enqueued on the compute stream afterwards see the averages. It
	// enqueues what is left to do there, such as decompression. It blocks as comm.Work.Wait
	// does. The reducer calls it once, bucket by bucket, after the pass; if the pass failed on this rank,
	// it may not call it. An error breaks the group, because the other ranks may apply the averages.
	Wait(ctx context.Context) error
	// Sync blocks until the communication has ended or failed. It may be called any number of times,
	// before or after Wait or without it, so a Reduction must not hold resources that only Wait
	// releases.
	Sync(ctx context.Context) error
}

// GradBucket is a bucket of gradients that a Hook has to reduce.
type GradBucket struct {
	Index int
	Last  bool
	// Rebuilt says that the buckets were rebuilt after the first pass. State that a hook kept by Index
	// before that belongs to other buckets.
	Rebuilt bool
	Name    string             // the name for calls: see [comm.CallOptions]
	Rank    int                // this process's rank in the model's group, for errors; a hook may replace Group
	Group   *comm.ProcessGroup // the group to average over
	// Op computes the average: Sum if the gradients are already divided by the number of ranks, else
	// Avg.
	Op comm.ReduceOp
	// After is the event after which the gradients are final. nil means: after everything that the
	// compute stream was given so far.
	After device.Event
	// Flat is the whole bucket. The gradients start at multiples of [device.Align] bytes. The zeros
	// between and after them must remain zeros.
	Flat   device.Tensor
	Params []Param         // the parameters of the gradients; the same in every pass; read-only
	Grads  []device.Tensor // views of Flat
}

// Ready returns the event after which a hook's own buffer of the given size may be reduced. The hook
// must have enqueued everything that writes the buffer. For a large buffer the event gives the
// reduction a head start: see headStart. Otherwise it is nil, which comm treats as the present.
func (b GradBucket) Ready(bytes int) device.Event { return headStart(b.Group, bytes, b.Last) }

// Times returns when a reduction started to run and when it ended. It knows the times of a [*comm.Work],
// of a type that embeds one, and of a type that has a method Times without parameters. For all others
// it returns nil.
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

// hookName returns the name by which ranks compare their hooks.
func hookName(h Hook) string {
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

// offered returns bucket i in the form in which a hook gets it.
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
