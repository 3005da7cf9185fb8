package comm

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/capture"
	"github.com/goddp/goddp/internal/kernels"
)

// start validates a call, assigns its sequence number and passes it to the backend. Within a Coalesce it only adds
// the call to the batch.
func (pg *ProcessGroup) start(call backend.Call) *Work {
	w := &Work{call: call, group: pg.group}
	c := &w.call
	pg.validate(c)
	c.Name, c.After, c.Timeout = pg.opts.Name, pg.opts.After, pg.opts.Timeout
	if f := pg.factor(c); f != nil {
		c.Factor = *f
	}
	if b := pg.batch; b != nil {
		b.calls = append(b.calls, c)
		w.err = errCoalesced
		return w
	}
	if c.Timeout == 0 {
		c.Timeout = pg.timeout
	}
	r := capture.Of(pg.dev)
	if r == nil {
		if err := pg.enter(pg.watchdog.ctx, c.Timeout); err != nil {
			w.err = fmt.Errorf("%v: %w", c, err)
			pg.Abort(w.err) // the other ranks' calls would meet the next call of this rank
			return w
		}
		defer pg.capturing.RUnlock()
	}
	c.Timed = pg.timed.Load() || pg.trace.On()
	if c.After == nil {
		c.After = pg.point(c.Timed)
	}
	if r != nil {
		pg.captureCall(w, r)
	} else {
		pg.submit(w)
	}
	return w
}

// enter waits until no other goroutine captures a step on the device, because the capture would include the work
// that the caller enqueues. After enter, no capture can begin until the caller calls capturing.RUnlock. Meanwhile
// the caller must neither capture a step nor wait for a goroutine that may capture one.
func (g *group) enter(ctx context.Context, timeout time.Duration) error {
	if g.capturing.TryRLock() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if err := kernels.Poll(ctx, func() (bool, error) { return g.capturing.TryRLock(), nil }); err != nil {
		return fmt.Errorf("rank %d: another goroutine captures a step, for longer than %v: %w", g.world.Rank, timeout, err)
	}
	return nil
}

// submit numbers and starts the call of w.
func (pg *ProcessGroup) submit(w *Work) {
	c := &w.call
	c.Observer = (*observed)(w)
	w.created = pg.watchdog.now()
	w.deadline = w.created + min(c.Timeout, far-w.created)
	pg.startMu.Lock()
	defer pg.startMu.Unlock()
	pg.number(c)
	w.entry = pg.record.Begin(c, pg.watchdog.epoch+int64(w.created))
	pg.watchdog.started(w)
	task, err := pg.backend.Start(c)
	if err != nil {
		pg.notStarted(w, err)
		return
	}
	w.task = task
}

// notStarted ends the call of w, which the backend did not start because of err.
func (g *group) notStarted(w *Work, err error) {
	w.err = backend.OfCall(g.control, &w.call, err)
	w.entry.Ended(time.Now(), true)
	g.watchdog.ended(w, w.err)
	if g.control.Failure() == nil && !g.closing.Load() { // the other ranks do not know of the failure yet
		g.control.Fail(backend.Describe(w.err))
	}
}

// point returns an event for the work enqueued on the compute stream so far. If timed is true, the
// event also records a time. That costs the stream some microseconds.
func (g *group) point(timed bool) device.Event {
	if timed {
		return g.dev.Compute().Record()
	}
	return g.dev.Compute().Mark()
}

// number sets a call's sequence number. The caller must hold g.startMu.
func (g *group) number(c *backend.Call) {
	switch c.Kind {
	case backend.Send:
		g.sends[c.Root]++
		c.Seq = g.sends[c.Root]
	case backend.Recv:
		g.recvs[c.Root]++
		c.Seq = g.recvs[c.Root]
	default:
		g.seq++
		c.Seq = g.seq
	}
	for _, m := range c.Calls {
		g.number(m)
	}
}

// AllReduce reduces t over all ranks, in place. All ranks get bitwise equal results.
func (pg *ProcessGroup) AllReduce(t device.Tensor, op ReduceOp) *Work {
	return pg.start(backend.Call{Kind: backend.AllReduce, Op: backend.ReduceOp(op), Dst: t, Src: t})
}

// Broadcast copies the elements of t on rank root to t on all other ranks.
func (pg *ProcessGroup) Broadcast(t device.Tensor, root int) *Work {
	c := backend.Call{Kind: backend.Broadcast, Dst: t, Root: root}
	if pg.rank == root {
		c.Src = t
	}
	return pg.start(c)
}

// Reduce reduces src over all ranks into dst of rank root, where dst may be src. The other
// ranks ignore dst.
func (pg *ProcessGroup) Reduce(dst, src device.Tensor, op ReduceOp, root int) *Work {
	return pg.start(backend.Call{Kind: backend.Reduce, Op: backend.ReduceOp(op), Dst: pg.tensorOn(root, dst), Src: src, Root: root})
}

// AllGather concatenates the ranks' src, of c elements each, in order of rank. Every rank
// gets the result in dst, of Size·c elements. src may be this rank's part of dst.
func (pg *ProcessGroup) AllGather(dst, src device.Tensor) *Work {
	return pg.start(backend.Call{Kind: backend.AllGather, Dst: dst, Src: src})
}

// AllGatherUneven is an AllGather to which rank r contributes counts[r] elements. counts must
// be the same on every rank. src may be this rank's part of dst.
func (pg *ProcessGroup) AllGatherUneven(dst, src device.Tensor, counts []int) *Work {
	if counts == nil {
		counts = []int{}
	}
	return pg.start(backend.Call{Kind: backend.AllGather, Dst: dst, Src: src, Counts: counts})
}

// ReduceScatter reduces src, of Size·c elements, over all ranks. Rank r gets the r-th c
// elements of the result in dst. dst may be this rank's part of src.
func (pg *ProcessGroup) ReduceScatter(dst, src device.Tensor, op ReduceOp) *Work {
	return pg.start(backend.Call{Kind: backend.ReduceScatter, Op: backend.ReduceOp(op), Dst: dst, Src: src})
}

// Gather concatenates the ranks' src, of c elements each, in dst of rank root, of Size·c
// elements. On root, src may be root's part of dst. The other ranks ignore dst.
func (pg *ProcessGroup) Gather(dst, src device.Tensor, root int) *Work {
	return pg.start(backend.Call{Kind: backend.Gather, Dst: pg.tensorOn(root, dst), Src: src, Root: root})
}

// Scatter divides src of rank root, of Size·c elements: rank r gets the r-th c elements in
// dst. On root, dst may be root's part of src. The other ranks ignore src.
func (pg *ProcessGroup) Scatter(dst, src device.Tensor, root int) *Work {
	return pg.start(backend.Call{Kind: backend.Scatter, Dst: dst, Src: pg.tensorOn(root, src), Root: root})
}

// AllToAll exchanges parts between all pairs of ranks: the r-th c elements of rank s's src
// become the s-th c elements of rank r's dst. dst and src have Size·c elements each and must
// not share memory.
func (pg *ProcessGroup) AllToAll(dst, src device.Tensor) *Work {
	return pg.start(backend.Call{Kind: backend.AllToAll, Dst: dst, Src: src})
}

// Barrier starts a barrier. Its Work is done when all ranks have called Barrier.
func (pg *ProcessGroup) Barrier() *Work {
	return pg.start(backend.Call{Kind: backend.Barrier})
}

// Send sends src to rank peer, which must call Recv for as many elements. The Work of Send is
// done when the program may change src again.
func (pg *ProcessGroup) Send(src device.Tensor, peer int) *Work {
	return pg.start(backend.Call{Kind: backend.Send, Src: src, Root: peer})
}

// Recv receives into dst the elements that rank peer sends.
func (pg *ProcessGroup) Recv(dst device.Tensor, peer int) *Work {
	return pg.start(backend.Call{Kind: backend.Recv, Dst: dst, Root: peer})
}

// Coalesce calls f with a view of the group, and starts all calls that f makes on that view as
// a single call. The calls run in any order and end together. If one of the calls writes a
// tensor, no other of them may read or write the same memory.
//
// The program waits for the Work that Coalesce returns; waiting for the Work of a single call is an error. Each
// call may have its own name and events, but no timeout. A PreMulSum without a Factor uses the Factor of the group
// that Coalesce was called on. The view must not be used after f has returned.
func (pg *ProcessGroup) Coalesce(f func(*ProcessGroup)) *Work {
	b := &batch{factor: pg.opts.Factor}
	f(&ProcessGroup{handle: pg.handle, batch: b})
	b.isClosed = true
	return pg.start(backend.Call{Kind: backend.Group, Calls: b.calls})
}

// batch collects the calls of a Coalesce.
type batch struct {
	calls    []*backend.Call
	factor   *float64 // the Factor that calls without a Factor use
	isClosed bool     // f of Coalesce has returned, so no more calls may be added
}

// factor returns the Factor of call c: the one given to With or, for a PreMulSum without one, the Factor of the
// Coalesce that contains c. It returns nil if c has no Factor.
func (pg *ProcessGroup) factor(c *backend.Call) *float64 {
	if pg.opts.Factor == nil && pg.batch != nil && c.Kind.Reduces() && c.Op == backend.PreMulSum {
		return pg.batch.factor
	}
	return pg.opts.Factor
}

// errCoalesced is the error of waiting for a single call of a Coalesce.
var errCoalesced = errors.New("comm: Wait on one call within Coalesce: wait for the Work that Coalesce returned")

// tensorOn returns t if this is the rank root, and otherwise the zero Tensor.
func (pg *ProcessGroup) tensorOn(root int, t device.Tensor) device.Tensor {
	if pg.rank == root {
		return t
	}
	return device.Tensor{}
}
