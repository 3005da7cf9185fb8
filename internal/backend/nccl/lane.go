//go:build cgo && linux

package nccl

// #include "abi.h"
import "C"

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/backend"
)

// lane is a communicator and the stream that its calls run on, one after the
// other: the group's own, or that of Send or Recv with one peer.
type lane struct {
	group  *Group
	stream cudaStream
	pair   *pair // of Send or Recv with one peer: the communicator is made at the first call

	// mu makes the order of calls that of the stream. It is held while a call
	// is enqueued, but not while that may wait for a peer.
	mu       sync.Mutex
	comm     *communicator
	layout   layout
	awaited  device.Event  // that the stream was last told to wait for
	met      map[link]bool // connections that operations made
	inline   enqueue       // of what ops returned last, with mu held
	queue    []*task       // that wait for the one that is being enqueued in the background
	draining bool

	// Under group.mu.
	started int          // calls
	ended   int          // those that are done, or failed
	pending []*task      // those not done
	last    device.Event // behind the last call
}

// enqueue enqueues a call's operations and records an event behind them.
type enqueue = func(stream, event uintptr) error

// link is a connection that NCCL makes when an operation first needs it.
type link struct {
	kind C.int // op_send or op_recv
	peer C.int
}

// pair is the two ranks between which a lane's calls go, in one direction. The
// sender is rank 0 of their communicator.
type pair struct{ from, to int }

// newLane makes a lane without a communicator. g.mu is held.
func (g *Group) newLane() (*lane, error) {
	s, err := g.dev.NewStream(true)
	if err != nil {
		return nil, err
	}
	stream, ok := s.(cudaStream)
	if !ok {
		return nil, fmt.Errorf("the streams of %v are not CUDA's", g.dev)
	}
	l := &lane{group: g, stream: stream, met: map[link]bool{}}
	l.inline = func(stream, event uintptr) error { return l.comm.enqueue(stream, event, l.layout.ops) }
	g.lanes = append(g.lanes, l)
	return l, nil
}

// submit enqueues a call, or has that done in the background if it may wait
// for a peer, or comes behind one that does.
func (l *lane) submit(t *task) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.draining {
		if l.comm != nil && l.connected(l.ops(t.call)) {
			l.enqueue(t, l.inline)
			return
		}
		l.draining = true
		l.group.wg.Go(l.drain)
	}
	l.queue = append(l.queue, t)
}

// ops is a call's operations. They are valid until the next call of ops; mu is
// held.
func (l *lane) ops(c *backend.Call) []op {
	l.layout.ops = l.layout.ops[:0]
	l.layout.add(c)
	return l.layout.ops
}

// connected tells whether none of the operations needs a new connection.
func (l *lane) connected(ops []op) bool {
	for _, o := range ops {
		if (o.kind == C.op_send || o.kind == C.op_recv) && !l.met[link{o.kind, o.peer}] {
			return false
		}
	}
	return true
}

// drain enqueues what is queued, until nothing is or the group has ended. What
// it calls may stay in C: it is then left there.
func (l *lane) drain() {
	for {
		l.mu.Lock()
		if len(l.queue) == 0 || l.group.ctx.Err() != nil {
			l.draining = false
			l.mu.Unlock()
			return
		}
		t := l.queue[0]
		l.queue = slices.Delete(l.queue, 0, 1)
		ops := slices.Clone(l.ops(t.call))
		l.mu.Unlock()
		if !l.connect(t) {
			return // with draining set: the group is broken, and nothing is enqueued any more
		}
		ctx, stop := l.group.lingering()
		_, err := detach(ctx, func() (struct{}, error) {
			l.enqueue(t, func(stream, event uintptr) error { return l.comm.enqueue(stream, event, ops) })
			return struct{}{}, nil
		}, nil)
		stop()
		if err != nil {
			l.group.abandon()
			return
		}
		l.mu.Lock()
		for _, o := range ops {
			l.met[link{o.kind, o.peer}] = true
		}
		l.mu.Unlock()
	}
}

// connect makes the communicator at the lane's first call, or breaks the group
// and returns false.
func (l *lane) connect(first *task) bool {
	if l.comm != nil {
		return true
	}
	g := l.group
	rank := l.layout.rank
	var comm *communicator
	id, err := g.pairName(g.ctx, *l.pair)
	if err == nil {
		comm, err = g.communicator(g.ctx, id, rank, l.layout.size, nil)
	}
	if err != nil {
		g.fail(g.state.CallError(first.call, err))
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.comm = comm
	return true
}

// enqueue puts a call on the stream, or breaks the group.
func (l *lane) enqueue(t *task, how enqueue) {
	if err := l.put(t, how); err != nil {
		l.group.fail(l.group.state.CallError(t.call, err))
	}
}

// put puts a call on the stream. Its event has a time if somebody asked for one: a
// GPU takes about three microseconds between two kernels to write it down.
func (l *lane) put(t *task, how enqueue) error {
	g := l.group
	var err error
	events(t.call, func(e device.Event) bool {
		if e == l.awaited {
			return true
		}
		if err = l.stream.WaitFor(g.ctx, e); err == nil {
			l.awaited = e
		}
		return err == nil
	})
	if err != nil {
		return err
	}
	if g.ctx.Err() != nil {
		return context.Cause(g.ctx)
	}
	at := g.now() // it may be done before Enqueue returns
	end, err := l.stream.Enqueue(g.timed.Load(), how)
	if err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	t.enqueued, t.before, t.end = at, l.last, end
	l.last = end
	if g.state.Cause() != nil { // meanwhile: fail may not have seen it
		g.memory.behind(end)
	}
	return nil
}
