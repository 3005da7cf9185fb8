//go:build cgo && linux

package nccl

import (
	"encoding/json"
	"testing"

	"github.com/goddp/goddp/comm/internal/callstate"
	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/coordinator"
)

// Ranks leave that have done more calls than this rank. This rank releases them once it has done as
// many calls, and not before. A call that a leaver has not made can never end.
func TestLeaversAreReleasedOnceCallsAreDone(t *testing.T) {
	control := &coordinator.Group{Members: []int{7, 5, 3}}
	g := &Group{cfg: backend.Config{Rank: 1, Size: 3, Control: control}, state: callstate.New(t.Context(), control), memory: &memory{}, left: map[int]progress{}}
	newCommStream := func() *commStream { return &commStream{group: g} }
	g.main, g.recvs, g.sends = newCommStream(), map[int]*commStream{0: newCommStream()}, map[int]*commStream{2: newCommStream()}
	let := 0
	leaves := func(ranks []int, ps ...progress) {
		values := make([][]byte, len(ps))
		for i, p := range ps {
			values[i], _ = json.Marshal(p)
		}
		g.onLeaving(ranks, values, func() { let++ })
	}
	leaves([]int{7}, progress{Collectives: 1, Sends: map[int]int{1: 2}})
	leaves([]int{3}, progress{Collectives: 1, Recvs: map[int]int{0: 5, 1: 1}})
	start := func(cs *commStream, c *backend.Call) *task {
		if err := g.state.Admit(1); err != nil {
			t.Fatal(err)
		}
		cs.started++
		return &task{group: g, call: c, stream: cs, number: cs.started}
	}
	barrier := &backend.Call{Kind: backend.Barrier}
	recv, send := &backend.Call{Kind: backend.Recv, Root: 0}, &backend.Call{Kind: backend.Send, Root: 2}
	for i, c := range []struct {
		stream *commStream
		call   *backend.Call
		let    int
		leaver int // -1: no rank left before it made this call
	}{
		{g.main, barrier, 0, -1},
		{g.recvs[0], recv, 0, -1},
		{g.recvs[0], recv, 1, -1},
		{g.sends[2], send, 2, -1},
		{g.recvs[0], recv, 2, 0},
		{g.sends[2], send, 2, 2},
	} {
		task := start(c.stream, c.call)
		if rank, ok := g.waitsForLeaver(task); ok != (c.leaver >= 0) || ok && rank != c.leaver {
			t.Errorf("call %d: waits for a leaver: %v, rank %d; want rank %d", i, ok, rank, c.leaver)
		}
		g.mu.Lock()
		g.finish(task, nil)
		g.mu.Unlock()
		if let != c.let {
			t.Errorf("behind call %d %d ranks may leave, want %d", i, let, c.let)
		}
	}
	if _, ok := g.waitsForLeaver(start(g.main, barrier)); !ok {
		t.Error("a collective that the leavers have not called does not wait for them")
	}
}
