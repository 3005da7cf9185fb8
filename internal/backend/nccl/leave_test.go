//go:build cgo && linux

package nccl

import (
	"encoding/json"
	"testing"

	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/backend/callstate"
	"github.com/goddp/goddp/internal/coordinator"
)

// TestLeaving has ranks leave that have done more than this one, which lets them go when it
// has come as far, and not before. What it calls then is in vain if they have not called it.
func TestLeaving(t *testing.T) {
	control := &coordinator.Group{Members: []int{7, 5, 3}}
	g := &Group{cfg: backend.Config{Rank: 1, Size: 3, Control: control}, state: callstate.New(control), memory: &memory{}, gone: map[int]progress{}}
	newLane := func() *lane { return &lane{group: g} }
	g.main, g.recvs, g.sends = newLane(), map[int]*lane{0: newLane()}, map[int]*lane{2: newLane()}
	let := 0
	leaves := func(ranks []int, ps ...progress) {
		values := make([][]byte, len(ps))
		for i, p := range ps {
			values[i], _ = json.Marshal(p)
		}
		g.leaving(ranks, values, func() { let++ })
	}
	leaves([]int{7}, progress{Collectives: 1, Sends: map[int]int{1: 2}})
	leaves([]int{3}, progress{Collectives: 1, Recvs: map[int]int{0: 5, 1: 1}})
	start := func(l *lane, c *backend.Call) *task {
		if err := g.state.Admit(); err != nil {
			t.Fatal(err)
		}
		l.started++
		return &task{group: g, call: c, lane: l, number: l.started}
	}
	barrier := &backend.Call{Kind: backend.Barrier}
	recv, send := &backend.Call{Kind: backend.Recv, Root: 0}, &backend.Call{Kind: backend.Send, Root: 2}
	for i, c := range []struct {
		lane     *lane
		call     *backend.Call
		let      int
		deserted int // -1: not
	}{
		{g.main, barrier, 0, -1},
		{g.recvs[0], recv, 0, -1},
		{g.recvs[0], recv, 1, -1},
		{g.sends[2], send, 2, -1},
		{g.recvs[0], recv, 2, 0},
		{g.sends[2], send, 2, 2},
	} {
		task := start(c.lane, c.call)
		if rank, ok := g.deserted(task); ok != (c.deserted >= 0) || ok && rank != c.deserted {
			t.Errorf("call %d: in vain is %v, because of rank %d; want rank %d", i, ok, rank, c.deserted)
		}
		g.mu.Lock()
		g.finish(task, nil)
		g.mu.Unlock()
		if let != c.let {
			t.Errorf("behind call %d %d ranks may leave, want %d", i, let, c.let)
		}
	}
	if _, ok := g.deserted(start(g.main, barrier)); !ok {
		t.Error("a collective that those that left have not called is not in vain")
	}
}
