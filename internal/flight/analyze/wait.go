package analyze

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/flight"
)

// wait is a call that a rank is in the middle of, or that failed, and those
// that keep it from ending.
type wait struct {
	rank *rank
	call flight.Record
	on   []hold
	// unknown counts members of the group that nobody can name: they have not
	// made it.
	unknown int
}

// hold is a rank that keeps a call from ending, and how.
type hold struct {
	rank int // in the job
	how  how
}

type how int

const (
	holdsNot how = iota
	behind       // it has not called it
	vanished     // its process is gone, or suspended
	late         // it called when the other's call had waited for most of its time, or had failed
	blocked      // its call has not had its turn
)

// onRank is how a rank keeps the call from ending.
func (w wait) onRank(rank int) how {
	for _, h := range w.on {
		if h.rank == rank {
			return h.how
		}
	}
	return holdsNot
}

func (w wait) String() string {
	waits := "waits"
	if !w.call.InFlight() {
		waits = "waited"
	}
	return fmt.Sprintf("rank %d %s in %s, %s", w.rank.Rank, waits, call(w.rank.Dump, w.call), progress(w.rank.Dump, w.call))
}

// waits finds what every rank waits for. In a group whose ranks called
// different things, the numbers from there on say nothing.
func (j *job) waits(mismatched map[*group]uint64) (waits []wait) {
	for _, g := range j.groups {
		for _, n := range slices.Sorted(maps.Keys(g.members)) {
			m := g.members[n]
			if m.rank.gone {
				continue
			}
			r, ok := m.unfinished()
			if bad := mismatched[g]; ok && j.lasting(m.rank, r) && (bad == 0 || r.Call.Seq < bad) {
				waits = append(waits, j.waitFor(g, m, r))
			}
			for _, key := range sortedPairs(m) {
				if r := m.pairs[key]; !finished(r) && j.lasting(m.rank, r) {
					waits = append(waits, j.waitForPeer(g, m, r))
				}
			}
		}
	}
	return waits
}

// finished tells whether a call ended well.
func finished(r flight.Record) bool { return r.State.State == backend.Done }

// unfinished is the first collective that has not ended well.
func (m *member) unfinished() (flight.Record, bool) {
	for _, seq := range slices.Sorted(maps.Keys(m.calls)) {
		if r := m.calls[seq]; !finished(r) {
			return r, true
		}
	}
	return flight.Record{}, false
}

// waitFor is a collective's.
func (j *job) waitFor(g *group, m *member, r flight.Record) wait {
	w := wait{rank: m.rank, call: r}
	for n := range g.size {
		peer := g.members[n]
		switch global := j.global(g, n); {
		case peer == m:
		case global < 0:
			w.unknown++
		case peer == nil:
			w.on = append(w.on, hold{global, behind})
		default:
			if how := peer.holds(r, w.until()); how != holdsNot {
				w.on = append(w.on, hold{global, how})
			}
		}
	}
	return w
}

// until is when the wait was over, or the record taken.
func (w wait) until() time.Time {
	if w.call.InFlight() {
		return w.rank.Taken
	}
	return w.call.Ended
}

// holds is how a member keeps another's collective from ending.
func (m *member) holds(r flight.Record, until time.Time) how {
	if m.Enqueued < r.Call.Seq {
		return behind
	}
	own, known := m.calls[r.Call.Seq]
	if !known {
		return holdsNot // what the ring has lost was done long ago
	}
	return compare(own, r, until, m.rank)
}

// compare is how a rank, with a call of its own that has not ended well, keeps
// another's r, which waited until then, from ending.
func compare(own, r flight.Record, until time.Time, of *rank) how {
	switch {
	case finished(own):
		return holdsNot
	case of.gone:
		return vanished
	case r.State.State == backend.Failed && own.Queued.After(r.Ended):
		return late
	case own.Running.IsZero() && !r.Running.IsZero() && own.Queued.Sub(r.Queued) > until.Sub(r.Queued)/2:
		return late // rather than blocked all that time
	case own.Running.IsZero() && !r.Running.IsZero():
		return blocked
	}
	return holdsNot
}

// waitForPeer is a Send's or a Recv's.
func (j *job) waitForPeer(g *group, m *member, r flight.Record) wait {
	w := wait{rank: m.rank, call: r}
	counterpart, how := backend.Send, behind
	if r.Call.Kind == backend.Send {
		counterpart = backend.Recv
	}
	peer := g.members[r.Call.Root]
	if peer != nil {
		if own, called := peer.pairs[pairKey{counterpart, m.Rank, r.Call.Seq}]; called {
			how = compare(own, r, w.until(), peer.rank)
		}
	}
	switch global := j.global(g, r.Call.Root); {
	case global < 0:
		w.unknown++
	case how != holdsNot:
		w.on = append(w.on, hold{global, how})
	}
	return w
}
