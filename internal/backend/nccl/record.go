//go:build cgo && linux

package nccl

// #include "abi.h"
import "C"

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/capture"
)

var _ backend.Recorder = (*Group)(nil)

// recorded is a call in a recorded step. All calls of a replay end with the event behind it.
type recorded struct {
	stream *commStream
	end    device.Event // of the recording
	small  bool         // the kernel for small all-reduces runs the call
	number int64        // of a small all-reduce: its number in the replay that was started last
	task   *task        // of the replay that was started last; nil once that was launched
}

// Record implements [backend.Recorder]. Whether a small all-reduce runs the call does not depend on
// whether it is recorded, because other ranks may not record it.
func (g *Group) Record(c *backend.Call, r *capture.Recording) (backend.Recorded, error) {
	if err := g.state.Err(); err != nil {
		return nil, err
	}
	cs := g.main
	cs.mu.Lock()
	defer cs.mu.Unlock()
	ops := slices.Clone(cs.buildOps(c))
	if slices.ContainsFunc(ops, func(o op) bool { return o.kind == C.op_send || o.kind == C.op_recv }) {
		return nil, fmt.Errorf("%v is sent to or received from one rank", c)
	}
	rec := &recorded{stream: cs, small: g.small.handles(ops)}
	var number device.Tensor
	if rec.small {
		number = r.Words(rec, device.Int64, 1, func(bits []int64) { bits[0] = rec.number })
		r.Require(func() bool { return g.small.args.call < math.MaxUint32 })
	}
	var err error
	events(c, func(e device.Event) bool {
		err = cs.stream.WaitFor(g.ctx, e)
		return err == nil
	})
	if err != nil {
		return nil, err
	}
	cs.awaited = nil
	rec.end, err = cs.stream.Enqueue(false, func(stream, event uintptr) error {
		if rec.small {
			return cs.comm.withHandle(func(C.uintptr_t) error { return g.small.record(stream, event, &ops[0], number) })
		}
		return cs.comm.enqueue(stream, event, ops)
	})
	if err != nil {
		return nil, err
	}
	g.keep(r)
	return rec, nil
}

// keep makes the group revoke r before it ends communicators: NCCL would wait for the graph.
func (g *Group) keep(r *capture.Recording) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.recordings[r] {
		g.recordings[r] = true
		r.AtClose(func() {
			g.mu.Lock()
			defer g.mu.Unlock()
			delete(g.recordings, r)
		})
	}
}

// revoke revokes all recordings with calls of the group.
func (g *Group) revoke(why error) {
	g.mu.Lock()
	var all []*capture.Recording
	for r := range g.recordings {
		all = append(all, r)
	}
	g.mu.Unlock()
	for _, r := range all {
		if err := r.Revoke(why); err != nil {
			g.cfg.Log.Warn("nccl: freeing a graph", "rank", g.cfg.Control.Rank(), "error", err)
		}
	}
}

// Join implements [backend.Recorded].
func (rec *recorded) Join(s device.Stream) error { return s.WaitFor(context.Background(), rec.end) }

// Start implements [backend.Recorded]. The launch must run behind the calls on the communicator's stream.
func (rec *recorded) Start(c *backend.Call) (backend.Task, error) {
	cs := rec.stream
	g := cs.group
	if g.cfg.Control.Failure() != nil { // the group is about to break, and the launch could not be undone
		<-g.ctx.Done()
		return nil, g.state.Err()
	}
	t := &task{group: g, call: c}
	if _, err := g.admitted(t); err != nil {
		return nil, err
	}
	rec.task = t
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if rec.small {
		g.small.args.call++
		rec.number = int64(g.small.args.call)
	}
	g.mu.Lock()
	last := cs.last
	g.mu.Unlock()
	if last != nil && last != cs.awaited { // what Launched made the stream wait for is on Compute already
		if err := g.dev.Compute().WaitFor(g.ctx, last); err != nil {
			g.fail(g.state.CallError(c, err))
			return nil, err
		}
	}
	g.wakeWatch()
	return t, nil
}

// Launched implements [backend.Recorded]. Later calls on the communicator's stream run behind the launch.
func (rec *recorded) Launched(end device.Event, err error) {
	t, cs := rec.task, rec.stream
	rec.task = nil
	if t == nil {
		return
	}
	g := cs.group
	at := g.now()
	if err == nil {
		cs.mu.Lock()
		if cs.awaited != end {
			err = cs.stream.WaitFor(g.ctx, end)
			cs.awaited = end
		}
		cs.mu.Unlock()
	}
	if err != nil {
		g.fail(g.state.CallError(t.call, err))
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	t.enqueuedAt, t.end = at, end
	cs.last = end
	if g.state.Cause() != nil { // the group broke meanwhile and may not know of this event
		g.memory.keepUntil(end)
	}
}
