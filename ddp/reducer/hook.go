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
// have the same hook: ddp.New compares the results of the hooks' String methods, or the types of hooks
// without this method. The reducer calls the hook from the goroutine that calls the reducer. A hook may
// keep state from pass to pass, so each model needs its own hook.
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

// Stateless is a Hook whose method Stateless reports whether the hook does the same in each pass. That means: the
// work that Reduce and the Reduction's Wait enqueue depends only on the bucket, and needs no new memory after the
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
// hook must have enqueued all work that writes the buffer.
//
// A large reduction gets a head start before the kernels that are enqueued after it: Ready records a timing event on
// the compute stream, for which the reduction must wait. If the reduction is small or the last one, or there is only
// one rank, Ready records nothing and returns nil. With nil, the reduction waits for all work that is on the compute
// stream when the hook starts the reduction.
//
// A timing event is an event that also records a time. On a GPU it holds up the kernels behind it for about
// three microseconds. The reduction waits only for the event, and meanwhile occupies the multiprocessors
// that the reduction needs. Without the delay, the reduction competes for multiprocessors with the next
// kernel, such as a matrix product with a block for every multiprocessor. On a rank where the kernel wins,
// the reduction starts only after the kernel. Until then the reductions on all other ranks spin, and occupy
// multiprocessors that kernels on those ranks need. The last reduction needs no head start, because the
// backward pass has no kernels after it.
func (b GradBucket) Ready(bytes int) device.Event {
	if bytes < largeBuffer || b.Last || b.Group.Size() == 1 {
		return nil
	}
	return b.Group.Device().Compute().Record()
}

// largeBuffer is the size in bytes from which a delay of some microseconds is negligible compared with a reduction.
const largeBuffer = 4 << 20

// Times returns the moments at which a reduction started to run and ended. It returns nil if r does not have the
// method Times of [*comm.Work].
func Times(r Reduction) (started, ended profile.Moment) {
	if r, ok := r.(interface {
		Times() (started, ended profile.Moment)
	}); ok {
		return r.Times()
	}
	return nil, nil
}

// Param describes a parameter whose gradient is in a bucket.
type Param struct {
	Name  string
	Shape device.Shape
	DType device.DType
}

func (p Param) String() string { return fmt.Sprintf("%q %v%v", p.Name, p.DType, p.Shape) }
