package analyze

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/flight"
)

// wait is a call of a rank that is not done, or that failed, and the ranks that it waits for.
type wait struct {
	rank *rank
	call flight.Record
	on   []hold
	// unknown is the number of members of the group whose numbers in the job are not known,
	// because they left no record of the group.
	unknown int
}

// hold is a rank that a call waits for, and why.
type hold struct {
	rank int // the rank's number in the job
	how  how
}

type how int

const (
	holdsNothing how = iota
	behind           // the rank has not started the call
	gone             // the rank's process has ended or is suspended
	late             // the rank started the call when the waiting call had failed, or had waited for half of its time
	blocked          // the rank's call is queued and does not run yet
)

// onRank returns why the call waits for a rank.
func (w wait) onRank(rank int) how {
	for _, h := range w.on {
		if h.rank == rank {
			return h.how
		}
	}
	return holdsNothing
}

func (w wait) String() string {
	waits := "waits"
	if !w.call.InFlight() {
		waits = "waited"
	}
	return fmt.Sprintf("rank %d %s in %s, %s", w.rank.Rank, waits, call(w.rank.Dump, w.call), progress(w.rank.Dump, w.call))
}

// waits returns the waits of all ranks. In a group whose ranks made different calls, it ignores the
// numbers from the first difference on.
func (j *job) waits(mismatched map[*group]uint64) (waits []wait) {
	for _, g := range j.groups {
		for _, n := range slices.Sorted(maps.Keys(g.members)) {
			m := g.members[n]
			if m.rank.gone {
				continue
			}
			r, ok := m.unfinished()
			if bad := mismatched[g]; ok && j.isStuck(m.rank, r) && (bad == 0 || r.Call.Seq < bad) {
				waits = append(waits, j.waitFor(g, m, r))
			}
			for _, key := range sortedPairs(m) {
				if r := m.pairs[key]; !finished(r) && j.isStuck(m.rank, r) {
					waits = append(waits, j.waitForPeer(g, m, r))
				}
			}
		}
	}
	return waits
}

// finished reports whether a call is done.
func finished(r flight.Record) bool { return r.State.State == backend.Done }

// unfinished returns the first collective that is not done.
func (m *member) unfinished() (flight.Record, bool) {
	for _, seq := range slices.Sorted(maps.Keys(m.calls)) {
		if r := m.calls[seq]; !finished(r) {
			return r, true
		}
	}
	return flight.Record{}, false
}

// waitFor returns the wait of a collective.
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
			if how := peer.holds(r, w.until()); how != holdsNothing {
				w.on = append(w.on, hold{global, how})
			}
		}
	}
	return w
}

// until returns when the call ended or, if it is in flight, when the record was taken.
func (w wait) until() time.Time {
	if w.call.InFlight() {
		return w.rank.Taken
	}
	return w.call.Ended
}

// holds returns why another member's collective r waits for this member.
func (m *member) holds(r flight.Record, until time.Time) how {
	if m.Enqueued < r.Call.Seq {
		return behind
	}
	mine, known := m.calls[r.Call.Seq]
	if !known {
		return holdsNothing // the ring has overwritten the call, so it was done long ago
	}
	return compare(mine, r, until, m.rank)
}

// compare returns why the call r of another rank, which waited until the given time, waits for this
// rank. mine is this rank's own call.
func compare(mine, r flight.Record, until time.Time, of *rank) how {
	switch {
	case finished(mine):
		return holdsNothing
	case of.gone:
		return gone
	case r.State.State == backend.Failed && mine.Queued.After(r.Ended):
		return late
	case mine.Running.IsZero() && !r.Running.IsZero() && mine.Queued.Sub(r.Queued) > until.Sub(r.Queued)/2:
		return late // the rank started the call late; it was not blocked all that time
	case mine.Running.IsZero() && !r.Running.IsZero():
		return blocked
	}
	return holdsNothing
}

// waitForPeer returns the wait of a Send or a Recv.
func (j *job) waitForPeer(g *group, m *member, r flight.Record) wait {
	w := wait{rank: m.rank, call: r}
	counterpart, how := backend.Send, behind
	if r.Call.Kind == backend.Send {
		counterpart = backend.Recv
	}
	peer := g.members[r.Call.Root]
	if peer != nil {
		if mine, called := peer.pairs[pairKey{counterpart, m.Rank, r.Call.Seq}]; called {
			how = compare(mine, r, w.until(), peer.rank)
		}
	}
	switch global := j.global(g, r.Call.Root); {
	case global < 0:
		w.unknown++
	case how != holdsNothing:
		w.on = append(w.on, hold{global, how})
	}
	return w
}
