package comm

import (
	"errors"
	"time"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/backend"
)

// start numbers a checked call and hands it to the backend.
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
	if c.After == nil {
		c.After = pg.point()
	}
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
		w.err = backend.OfCall(pg.control, c, err)
		w.entry.Ended(time.Now(), true)
		pg.watchdog.ended(w, w.err)
		if pg.control.Failure() == nil && !pg.closing.Load() { // the other ranks do not know
			pg.control.Fail(backend.Describe(w.err))
		}
		return w
	}
	w.task = task
	return w
}

// point is what the compute stream was given so far. Where nobody asks when
// calls began it has no time, which would cost that stream some microseconds.
func (g *group) point() device.Event {
	if g.timed.Load() {
		return g.dev.Compute().Record()
	}
	return g.dev.Compute().Mark()
}

// number gives a call its place in the order of its kind. pg.startMu is held.
func (pg *ProcessGroup) number(c *backend.Call) {
	switch c.Kind {
	case backend.Send:
		pg.sends[c.Root]++
		c.Seq = pg.sends[c.Root]
	case backend.Recv:
		pg.recvs[c.Root]++
		c.Seq = pg.recvs[c.Root]
	default:
		pg.seq++
		c.Seq = pg.seq
	}
	for _, m := range c.Calls {
		pg.number(m)
	}
}

// AllReduce combines t of all ranks, in place: every rank ends with the same
// bits.
func (pg *ProcessGroup) AllReduce(t device.Tensor, op ReduceOp) *Work {
	return pg.start(backend.Call{Kind: backend.AllReduce, Op: op, Dst: t, Src: t})
}

// Broadcast copies t of rank root to t of all ranks.
func (pg *ProcessGroup) Broadcast(t device.Tensor, root int) *Work {
	c := backend.Call{Kind: backend.Broadcast, Dst: t, Root: root}
	if pg.rank == root {
		c.Src = t
	}
	return pg.start(c)
}

// Reduce combines src of all ranks into dst of rank root. Elsewhere dst is
// ignored; on root it may be src.
func (pg *ProcessGroup) Reduce(dst, src device.Tensor, op ReduceOp, root int) *Work {
	return pg.start(backend.Call{Kind: backend.Reduce, Op: op, Dst: pg.only(root, dst), Src: src, Root: root})
}

// AllGather concatenates src [c] of all ranks, in order of rank, in dst
// [Size·c] of all ranks. src may be this rank's part of dst.
func (pg *ProcessGroup) AllGather(dst, src device.Tensor) *Work {
	return pg.start(backend.Call{Kind: backend.AllGather, Dst: dst, Src: src})
}

// AllGatherUneven is AllGather where rank r gives counts[r] elements. counts
// is the same on every rank. src may be this rank's part of dst.
func (pg *ProcessGroup) AllGatherUneven(dst, src device.Tensor, counts []int) *Work {
	if counts == nil {
		counts = []int{}
	}
	return pg.start(backend.Call{Kind: backend.AllGather, Dst: dst, Src: src, Counts: counts})
}

// ReduceScatter combines src [Size·c] of all ranks and gives rank r the r-th c
// elements in dst [c], which may be this rank's part of src.
func (pg *ProcessGroup) ReduceScatter(dst, src device.Tensor, op ReduceOp) *Work {
	return pg.start(backend.Call{Kind: backend.ReduceScatter, Op: op, Dst: dst, Src: src})
}

// Gather concatenates src [c] of all ranks in dst [Size·c] of rank root,
// where src may be root's part of dst. Elsewhere dst is ignored.
func (pg *ProcessGroup) Gather(dst, src device.Tensor, root int) *Work {
	return pg.start(backend.Call{Kind: backend.Gather, Dst: pg.only(root, dst), Src: src, Root: root})
}

// Scatter gives rank r, in dst [c], the r-th c elements of src [Size·c] of
// rank root, where dst may be root's part of src. Elsewhere src is ignored.
func (pg *ProcessGroup) Scatter(dst, src device.Tensor, root int) *Work {
	return pg.start(backend.Call{Kind: backend.Scatter, Dst: dst, Src: pg.only(root, src), Root: root})
}

// AllToAll gives rank r, at the s-th c elements of dst [Size·c], the r-th c
// elements of rank s's src [Size·c]. dst and src share no memory.
func (pg *ProcessGroup) AllToAll(dst, src device.Tensor) *Work {
	return pg.start(backend.Call{Kind: backend.AllToAll, Dst: dst, Src: src})
}

// Barrier ends when all ranks have started it.
func (pg *ProcessGroup) Barrier() *Work {
	return pg.start(backend.Call{Kind: backend.Barrier})
}

// Send sends src to rank peer, which calls Recv for as many elements. It is
// done when src may be changed again.
func (pg *ProcessGroup) Send(src device.Tensor, peer int) *Work {
	return pg.start(backend.Call{Kind: backend.Send, Src: src, Root: peer})
}

// Recv receives dst from rank peer.
func (pg *ProcessGroup) Recv(dst device.Tensor, peer int) *Work {
	return pg.start(backend.Call{Kind: backend.Recv, Dst: dst, Root: peer})
}

// Coalesce starts the calls that f makes on the view of the group it is given
// as one: their order among each other does not matter, and they end together. What
// one of them writes no other may read or write.
// What those calls return is of no use: wait for what Coalesce returns. They
// may have names and events of their own, but no timeout. A PreMulSum among
// them without a Factor of its own has the one that Coalesce was called with.
// The view is of no use after f.
func (pg *ProcessGroup) Coalesce(f func(*ProcessGroup)) *Work {
	b := &batch{factor: pg.opts.Factor}
	f(&ProcessGroup{group: pg.group, batch: b})
	b.isClosed = true
	return pg.start(backend.Call{Kind: backend.Group, Calls: b.calls})
}

// batch is the calls of a Coalesce.
type batch struct {
	calls    []*backend.Call
	factor   *float64 // of the calls that have none of their own
	isClosed bool     // what comes late must not reach a call in flight
}

// factor is the Factor that c is given: its own, or for a PreMulSum that of its
// Coalesce; nil for none.
func (pg *ProcessGroup) factor(c *backend.Call) *float64 {
	if pg.opts.Factor == nil && pg.batch != nil && c.Kind.Reduces() && c.Op == PreMulSum {
		return pg.batch.factor
	}
	return pg.opts.Factor
}

// errCoalesced is what waiting for one call of a batch returns.
var errCoalesced = errors.New("comm: a coalesced call has no end of its own: wait for the Work of Coalesce")

// only is t on rank root, and no tensor elsewhere.
func (pg *ProcessGroup) only(root int, t device.Tensor) device.Tensor {
	if pg.rank == root {
		return t
	}
	return device.Tensor{}
}
