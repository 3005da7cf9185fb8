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
	// calls Reduce once per bucket, in order of index, even if gradients of that rank are missing.
	// If Reduce fails, Reduce should abort b.Group at once, because other ranks may already wait for
	// this rank. The methods Wait and Sync of the Reduction then return the error.
	Reduce(b GradBucket) Reduction
}

// Partial is a Hook whose method Partial reports whether the hook averages over only a part of the group's
// ranks. A hook that passes buckets on to another hook should have this method too, and return IsPartial of
// the other hook.
type Partial interface {
	Hook
	Partial() bool
}

// IsPartial reports whether h averages over only a part of the ranks. It returns h.Partial(), or false if
// h has no such method.
func IsPartial(h Hook) bool {
	p, ok := h.(Partial)
	return ok && p.Partial()
}

// Stateless is a Hook whose method Stateless reports whether the hook does the same in each pass: what
// Reduce and the Reduction's Wait enqueue then depends on the bucket alone, and needs no new memory after the
// second pass. Only such a hook can be part of a captured step. A hook that passes buckets on to another hook
// should have this method too, and return IsStateless of the other hook.
type Stateless interface {
	Hook
	Stateless() bool
}

// IsStateless reports whether h does the same in each pass. It returns h.Stateless(), or false if h has no
// such method.
func IsStateless(h Hook) bool {
	s, ok := h.(Stateless)
	return ok && s.Stateless()
}

// Reduction is a started reduction of a bucket. A [*comm.Work] is a Reduction. Traces show the
// reductions for which [Times] returns times.
type Reduction interface {
	// Wait makes the compute stream wait for the averages. Work that is enqueued on the stream after
	// the call of Wait reads the averages. If the reduction needs more work on the device after the
	// communication, such as decompression, Wait enqueues this work. On the CPU, and in the mode
	// comm.BlockingWait, Wait also blocks the host until the communication has ended.
	//
	// After the pass, the reducer calls Wait at most once for each bucket, in order of index. If the pass
	// failed on this rank, the reducer may omit the calls. If Wait returns an error, the reducer aborts
	// the group, because the other ranks may apply the averages.
	Wait(ctx context.Context) error
	// Sync blocks until the communication has ended or failed. The reducer may call Sync any number of
	// times, before or after Wait, and the reducer may call Sync without ever calling Wait. So a
	// Reduction must not hold resources that only Wait releases.
	Sync(ctx context.Context) error
}

// GradBucket is a bucket of gradients that a Hook has to reduce.
type GradBucket struct {
	Index int
	Last  bool
	// Rebuilt says that the reducer has replaced the buckets, which it does at most once. From then on
	// Rebuilt is true in every pass. A bucket with the same Index may have held other parameters before,
	// so a hook must discard the state that it kept by Index before Rebuilt was true.
	Rebuilt bool
	Name    string // the name of the bucket for collectives: see [comm.CallOptions]
	// Rank is this process's rank in the reducer's group, for error texts. A hook that passes the bucket on
	// to another hook may set another Group, but must not change Rank.
	Rank  int
	Group *comm.ProcessGroup // the group to average over
	// Op computes the average. It is Sum if the engine has already divided the gradients by the number of
	// ranks, and Avg otherwise.
	Op comm.ReduceOp
	// After is the event after which the gradients are final. nil means that they are final after all
	// work that is enqueued on the compute stream at the time of the call of Reduce.
	After device.Event
	// Flat is the whole bucket. Each gradient starts at a multiple of [device.Align] bytes. The padding
	// between and after the gradients is zero, and the hook must leave it zero.
	Flat   device.Tensor
	Params []Param         // the parameters whose gradients are in the bucket; read-only
	Grads  []device.Tensor // the gradients of Params, as views of Flat
}

// Ready returns the event after which a buffer of the hook may be reduced: the value for
// [comm.CallOptions].After. The parameter bytes is the size of the buffer. Before the call of Ready, the
// hook must have enqueued all work that writes the buffer. For a large buffer the event lets the reduction
// start before kernels that are enqueued later: see headStart. Otherwise Ready returns nil. With nil, the
// reduction waits for all work that is on the compute stream when the hook starts the reduction.
func (b GradBucket) Ready(bytes int) device.Event { return headStart(b.Group, bytes, b.Last) }

// Times returns when a reduction started to run and when it ended. It returns these times for a
// [*comm.Work] and for a type that embeds *comm.Work. If the type of r has a method Times() (started,
// ended profile.Moment), the function Times returns the results of this method. For all other types it
// returns nil.
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

// hookName returns the name by which the ranks compare their hooks: the result of the hook's String method
// or, if the hook has no such method, the hook's type.
func hookName(h Hook) string {
	if s, ok := h.(fmt.Stringer); ok {
		return s.String()
	}
	return fmt.Sprintf("%T", h)
}

// start starts the reduction of bucket i, by the hook or by an all-reduce. The parameter `after` is the
// event after which the gradients are final, as in GradBucket.After.
func (r *Reducer) start(i int, after device.Event) Reduction {
	if b := &r.buckets[i]; r.hook == nil {
		return r.pg.With(comm.CallOptions{Name: b.name, After: after}).AllReduce(b.flat, r.op)
	}
	return r.hook.Reduce(r.offered(i, after))
}

// offered returns bucket i as the GradBucket that the hook gets. The parameter `after` becomes
// GradBucket.After.
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
