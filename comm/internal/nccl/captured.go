//go:build cgo && linux

package nccl

// #include "abi.h"
import "C"

import (
	"fmt"
	"math"
	"slices"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/capture"
)

var _ backend.Capturer = (*Group)(nil)

// captured is a call in a captured step. All calls of a replay end with the event after the replay.
type captured struct {
	end    device.Event // the end of the call, in the capture
	small  bool         // the kernel for small all-reduces runs the call
	number int64        // for a small all-reduce: the call's number in the latest replay
}

// Capture implements [backend.Capturer]. Whether a small all-reduce runs the call does not depend on
// whether it is captured, because other ranks may not capture it.
func (g *Group) Capture(c *backend.Call, r *capture.Step) (backend.Captured, error) {
	if err := g.state.Err(); err != nil {
		return nil, err
	}
	cs := g.main
	cs.mu.Lock()
	defer cs.mu.Unlock()
	ops := slices.Clone(cs.buildOps(c))
	if slices.ContainsFunc(ops, func(o op) bool { return o.kind == C.op_send || o.kind == C.op_recv }) {
		return nil, fmt.Errorf("%v uses point-to-point sends or receives, which cannot be captured", c)
	}
	rec := &captured{small: g.small.handles(ops)}
	var number device.Tensor
	if rec.small {
		number = r.Words(rec, device.Int64, 1, func(bits []int64) { bits[0] = rec.number })
		r.Require(func() bool { return g.small.args.call < math.MaxUint32 })
	}
	var err error
	events(c, func(e device.Event) bool {
		err = cs.stream.WaitFor(e)
		return err == nil
	})
	if err != nil {
		return nil, err
	}
	cs.awaited = nil
	rec.end, err = cs.stream.Enqueue(false, func(stream, event uintptr) error {
		if rec.small {
			return cs.comm.withHandle(func(C.uintptr_t) error { return g.small.capture(stream, event, &ops[0], number) })
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
func (g *Group) keep(r *capture.Step) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.captures[r] {
		g.captures[r] = true
		r.AtClose(func() {
			g.mu.Lock()
			defer g.mu.Unlock()
			delete(g.captures, r)
		})
	}
}

// revoke revokes all captures with calls of the group.
func (g *Group) revoke(why error) {
	g.mu.Lock()
	var all []*capture.Step
	for r := range g.captures {
		all = append(all, r)
	}
	g.mu.Unlock()
	for _, r := range all {
		if err := r.Revoke(why); err != nil {
			g.cfg.Log.Warn("nccl: freeing a graph", "rank", g.cfg.Control.Rank(), "error", err)
		}
	}
}

// Join implements [backend.Captured].
func (rec *captured) Join(s device.Stream) error { return s.WaitFor(rec.end) }

// StartCaptured implements [backend.Capturer]. The launch must run behind the calls on the communicator's
// stream.
func (g *Group) StartCaptured(all []backend.Captured, calls []*backend.Call) ([]backend.Task, error) {
	if g.cfg.Control.Failure() != nil { // the group is about to break, and the launch could not be undone
		<-g.ctx.Done()
		return nil, g.state.Err()
	}
	tasks, err := g.startCaptured(all, calls)
	return tasks, g.awaitBroken(err)
}

func (g *Group) startCaptured(all []backend.Captured, calls []*backend.Call) ([]backend.Task, error) {
	cs := g.main
	cs.mu.Lock()
	defer cs.mu.Unlock()
	g.mu.Lock()
	last := cs.last
	g.mu.Unlock()
	if last != nil && last != cs.awaited { // Compute already has the event that LaunchedCaptured made the stream wait for
		if err := g.dev.Compute().WaitFor(last); err != nil {
			g.fail(g.state.CallError(calls[0], err))
			return nil, err
		}
	}
	tasks, err := g.admitCaptured(calls)
	if err != nil {
		return nil, err
	}
	for _, r := range all {
		if rec := r.(*captured); rec.small {
			g.small.args.call++
			rec.number = int64(g.small.args.call)
		}
	}
	g.wakeWatch()
	return tasks, nil
}

// admitCaptured is admit for the calls of a replay.
func (g *Group) admitCaptured(calls []*backend.Call) ([]backend.Task, error) {
	made, tasks := make([]task, len(calls)), make([]backend.Task, len(calls))
	cs := g.main
	g.mu.Lock()
	err := g.state.Admit(len(calls))
	if err == nil {
		for i, c := range calls {
			t := &made[i]
			cs.started++
			t.group, t.call, t.stream, t.number = g, c, cs, cs.started
			cs.pending = append(cs.pending, t)
			tasks[i] = t
		}
		g.memory.busy.Add(int64(len(calls)))
	}
	g.mu.Unlock()
	return tasks, err
}

// LaunchedCaptured implements [backend.Capturer]. Later calls on the communicator's stream run behind the launch.
func (g *Group) LaunchedCaptured(tasks []backend.Task, end device.Event, err error) {
	cs := g.main
	at := g.now()
	if err == nil {
		cs.mu.Lock()
		err = cs.stream.WaitFor(end)
		cs.awaited = end
		cs.mu.Unlock()
	}
	if err != nil {
		g.fail(g.state.CallError(tasks[0].(*task).call, err))
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, t := range tasks {
		t := t.(*task)
		t.enqueuedAt, t.end = at, end
	}
	cs.last = end
	if g.state.Cause() != nil { // the group broke in the meantime and may not know of this event
		g.memory.keepUntil(end)
	}
}
