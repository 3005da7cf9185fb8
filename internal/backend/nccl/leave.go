//go:build cgo && linux

package nccl

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/goddp/goddp/internal/awake"
	"github.com/goddp/goddp/internal/backend"
)

// progress is what a rank has done with the others: the calls that are done, those of Send and
// Recv by peer.
type progress struct {
	Collectives  int
	Sends, Recvs map[int]int
}

// departure is ranks that leave alone. done lets them go.
type departure struct {
	ranks []int
	done  func()
}

// stayGrace is how long a rank that leaves waits for the others to leave with it.
const stayGrace = 2 * time.Second

// leave leaves the group, whose calls are done, with the other ranks or, if not all of them
// leave, alone.
func (g *Group) leave(ctx context.Context) (alone bool, err error) {
	grace := stayGrace
	if g.end((*communicator).unmap, g.main.comm) != nil {
		grace = 0 // the others must not free what this rank still has
	}
	g.mu.Lock()
	own := progress{Collectives: g.main.ended, Sends: map[int]int{}, Recvs: map[int]int{}}
	for peer, l := range g.sends {
		own.Sends[peer] = l.ended
	}
	for peer, l := range g.recvs {
		own.Recvs[peer] = l.ended
	}
	g.mu.Unlock()
	value, err := json.Marshal(own)
	if err != nil {
		return false, err
	}
	together, cancel := awake.WithTimeout(ctx, grace)
	defer cancel()
	if alone, err = g.cfg.Control.Leave(together, ctx, value); err != nil {
		err = fmt.Errorf("%w without the other ranks: %w", backend.ErrClosed, err)
	}
	return alone, err
}

// leaving notes that ranks of the job leave alone, and how far they have come.
func (g *Group) leaving(ranks []int, values [][]byte, done func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	d := departure{done: done}
	for i, r := range ranks {
		var p progress
		if err := json.Unmarshal(values[i], &p); err != nil {
			g.cfg.Log.Warn("nccl: a rank that leaves", "rank", r, "error", err)
		}
		rank := slices.Index(g.cfg.Control.Members, r)
		g.gone[rank] = p
		d.ranks = append(d.ranks, rank)
	}
	g.departures = append(g.departures, d)
	g.letGo()
}

// letGo lets ranks go that leave alone, once this one has done all that they did with it: the
// end of their communicators may take data along that are on their way here, and memory that a
// call here uses. mu is held.
func (g *Group) letGo() {
	behind := func(rank int) bool {
		p := g.gone[rank]
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

// done is how many calls are.
func (l *lane) done() int {
	if l == nil {
		return 0
	}
	return l.ended
}

// deserted tells whether a call waits in vain, since a rank left that had not come as far.
func (g *Group) deserted(t *task) (rank int, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for rank, p := range g.gone {
		came := p.Collectives
		switch k := t.call.Kind; {
		case k != backend.Send && k != backend.Recv:
		case rank != t.call.Root:
			continue
		case k == backend.Send:
			came = p.Recvs[g.cfg.Rank]
		default:
			came = p.Sends[g.cfg.Rank]
		}
		if t.number > came {
			return rank, true
		}
	}
	return 0, false
}
