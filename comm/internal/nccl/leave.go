//go:build cgo && linux

package nccl

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/goddp/goddp/comm/failure"
	"github.com/goddp/goddp/internal/awake"
	"github.com/goddp/goddp/internal/backend"
)

// progress counts the calls that a rank has done: collectives, and Sends and Recvs by peer.
type progress struct {
	Collectives  int
	Sends, Recvs map[int]int
}

// departure is a set of ranks that leave before the others. Calling done releases them.
type departure struct {
	ranks []int
	done  func()
}

// leaveGrace is how long a leaving rank waits for the others to leave too.
const leaveGrace = 2 * time.Second

// leave leaves the group. The group's calls must be done. alone reports whether some ranks did not
// leave within leaveGrace.
func (g *Group) leave(ctx context.Context) (alone bool, err error) {
	grace := leaveGrace
	if g.end((*communicator).unmap, g.main.comm) != nil {
		grace = 0 // leave alone: this rank still maps the other ranks' memory, so they must not free it
	}
	g.mu.Lock()
	mine := progress{Collectives: g.main.ended, Sends: map[int]int{}, Recvs: map[int]int{}}
	for peer, cs := range g.sends {
		mine.Sends[peer] = cs.ended
	}
	for peer, cs := range g.recvs {
		mine.Recvs[peer] = cs.ended
	}
	g.mu.Unlock()
	value, err := json.Marshal(mine)
	if err != nil {
		return false, err
	}
	graceCtx, cancel := awake.WithTimeout(ctx, grace)
	defer cancel()
	if alone, err = g.cfg.Control.Leave(graceCtx, ctx, value); err != nil {
		err = fmt.Errorf("%w without the other ranks: %w", failure.ErrClosed, err)
	}
	return alone, err
}

// onLeaving records that ranks of the job leave before the others, and how many calls they have
// done.
func (g *Group) onLeaving(ranks []int, values [][]byte, done func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	d := departure{done: done}
	for i, r := range ranks {
		var p progress
		if err := json.Unmarshal(values[i], &p); err != nil {
			g.cfg.Log.Warn("nccl: reading the progress of a leaving rank", "rank", r, "error", err)
		}
		rank := slices.Index(g.cfg.Control.Members, r)
		g.left[rank] = p
		d.ranks = append(d.ranks, rank)
	}
	g.departures = append(g.departures, d)
	g.releaseLeavers()
}

// releaseLeavers releases leaving ranks once this rank has done all calls that it shares with them.
// If a rank destroyed its communicators earlier, data in flight to this rank would be lost and
// memory that its calls use would be freed. mu must be held.
func (g *Group) releaseLeavers() {
	behind := func(rank int) bool {
		p := g.left[rank]
		return g.main.done() < p.Collectives || g.recvs[rank].done() < p.Sends[g.cfg.Rank] || g.sends[rank].done() < p.Recvs[g.cfg.Rank]
	}
	g.departures = slices.DeleteFunc(g.departures, func(d departure) bool {
		if slices.ContainsFunc(d.ranks, behind) {
			return false
		}
		d.done()
		return true
	})
}

// done returns the number of calls that ended.
func (cs *commStream) done() int {
	if cs == nil {
		return 0
	}
	return cs.ended
}

// waitsForLeaver reports whether a call can never end, because a rank left without making it.
func (g *Group) waitsForLeaver(t *task) (rank int, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for rank, p := range g.left {
		done := p.Collectives
		switch k := t.call.Kind; {
		case k != backend.Send && k != backend.Recv:
		case rank != t.call.Root:
			continue
		case k == backend.Send:
			done = p.Recvs[g.cfg.Rank]
		default:
			done = p.Sends[g.cfg.Rank]
		}
		if t.number > done {
			return rank, true
		}
	}
	return 0, false
}
