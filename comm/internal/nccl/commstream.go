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

// commStream is a communicator and the stream on which its calls run, one after the other. The
// group has one for collectives, and one for each peer and direction of Send and Recv.
type commStream struct {
	group  *Group
	stream cudaStream
	pair   *pair // the ranks with which the first Send or Recv creates the communicator; nil for collectives

	// mu is held while a call is enqueued, so that calls are in order on the stream. It is not held while
	// enqueueing may wait for a peer.
	mu       sync.Mutex
	comm     *communicator
	builder  opBuilder
	awaited  device.Event      // the event that the stream waited for last
	conns    map[peerConn]bool // connections that NCCL has established
	inline   enqueue           // enqueues the operations that buildOps returned last; mu must be held
	queue    []*task           // calls queued behind a call that is being enqueued in the background
	draining bool

	// group.mu guards these.
	started int          // number of calls started
	ended   int          // number of calls done or failed
	pending []*task      // calls that are not done
	last    device.Event // recorded after the latest call
}

// enqueue enqueues a call's operations and records an event after them.
type enqueue = func(stream, event uintptr) error

// peerConn is a connection that NCCL establishes when an operation first needs it.
type peerConn struct {
	kind C.int // op_send or op_recv
	peer C.int
}

// pair is the sender and the receiver of a commStream for Send or Recv. The sender is rank 0 of
// their communicator.
type pair struct{ from, to int }

// newCommStream returns a commStream without a communicator. g.mu must be held.
func (g *Group) newCommStream() (*commStream, error) {
	s, err := g.dev.NewStream(true)
	if err != nil {
		return nil, err
	}
	stream, ok := s.(cudaStream)
	if !ok {
		return nil, fmt.Errorf("the streams of %v are not CUDA streams", g.dev)
	}
	cs := &commStream{group: g, stream: stream, conns: map[peerConn]bool{}}
	cs.inline = func(stream, event uintptr) error { return cs.comm.enqueue(stream, event, cs.builder.ops) }
	g.streams = append(g.streams, cs)
	return cs, nil
}

// submit enqueues a call. If that may wait for a peer, or an earlier call is being enqueued in the
// background, submit leaves it to the background goroutine.
func (cs *commStream) submit(t *task) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if !cs.draining {
		if cs.comm != nil && cs.hasConns(cs.buildOps(t.call)) {
			cs.enqueue(t, cs.inline)
			return
		}
		cs.draining = true
		cs.group.wg.Go(cs.drain)
	}
	cs.queue = append(cs.queue, t)
}

// buildOps returns a call's operations. They are valid until the next call of buildOps. mu must be held.
func (cs *commStream) buildOps(c *backend.Call) []op {
	cs.builder.ops = cs.builder.ops[:0]
	cs.builder.add(c)
	return cs.builder.ops
}

// hasConns reports whether NCCL has established all connections that the operations need.
func (cs *commStream) hasConns(ops []op) bool {
	for _, o := range ops {
		if (o.kind == C.op_send || o.kind == C.op_recv) && !cs.conns[peerConn{o.kind, o.peer}] {
			return false
		}
	}
	return true
}

// drain enqueues the queued calls, until the queue is empty or the group has ended. It abandons its thread
// if NCCL does not return.
func (cs *commStream) drain() {
	for {
		cs.mu.Lock()
		if len(cs.queue) == 0 || cs.group.ctx.Err() != nil {
			cs.draining = false
			cs.mu.Unlock()
			return
		}
		t := cs.queue[0]
		cs.queue = slices.Delete(cs.queue, 0, 1)
		ops := slices.Clone(cs.buildOps(t.call))
		cs.mu.Unlock()
		if !cs.connect(t) {
			return // draining stays set: the group is broken and no more calls are enqueued
		}
		ctx, stop := cs.group.contextWithGrace()
		_, err := detach(ctx, func() (struct{}, error) {
			cs.enqueue(t, func(stream, event uintptr) error { return cs.comm.enqueue(stream, event, ops) })
			return struct{}{}, nil
		}, nil)
		stop()
		if err != nil {
			cs.group.markStuck()
			return
		}
		cs.mu.Lock()
		for _, o := range ops {
			cs.conns[peerConn{o.kind, o.peer}] = true
		}
		cs.mu.Unlock()
	}
}

// connect creates the communicator at the first call. If that fails, it breaks the group and returns
// false.
func (cs *commStream) connect(first *task) bool {
	if cs.comm != nil {
		return true
	}
	g := cs.group
	rank := cs.builder.rank
	var comm *communicator
	id, err := g.pairName(g.ctx, *cs.pair)
	if err == nil {
		comm, err = g.newCommunicator(g.ctx, id, rank, cs.builder.size, nil)
	}
	if err != nil {
		g.fail(g.state.CallError(first.call, err))
		return false
	}
	cs.mu.Lock()
	defer cs.mu.Unlock()
	cs.comm = comm
	return true
}

// enqueue enqueues a call on the stream. If that fails, it breaks the group.
func (cs *commStream) enqueue(t *task, how enqueue) {
	if err := cs.put(t, how); err != nil {
		cs.group.fail(cs.group.state.CallError(t.call, err))
	}
}

// put enqueues a call on the stream. Its event is timed only if the call is Timed, because a timed event
// costs a GPU about three microseconds between two kernels.
func (cs *commStream) put(t *task, how enqueue) error {
	g := cs.group
	var err error
	events(t.call, func(e device.Event) bool {
		if e == cs.awaited {
			return true
		}
		if err = cs.stream.WaitFor(e); err == nil {
			cs.awaited = e
		}
		return err == nil
	})
	if err != nil {
		return err
	}
	if g.ctx.Err() != nil {
		return context.Cause(g.ctx)
	}
	at := g.now() // before Enqueue, because the call may be done when Enqueue returns
	end, err := cs.stream.Enqueue(t.call.Timed, how)
	if err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	t.enqueuedAt, t.before, t.end = at, cs.last, end
	cs.last = end
	if g.state.Cause() != nil { // the group broke in the meantime and may not know of this event
		g.memory.keepUntil(end)
	}
	return nil
}
