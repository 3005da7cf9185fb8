// Package rootcause decides which of a job's failures came first, and so caused the others. It serves
// the launcher (exits and lost nodes), the coordinator (reports of ranks) and the analysis of flight
// records (what each rank recorded). It never uses the text of a failure. Messages about failures list
// ranks by [Ranks].
package rootcause

import (
	"cmp"
	"slices"
	"time"
)

// Evidence is what is known about one failure.
type Evidence struct {
	Ranks    []int // the ranks that failed: one rank, or all ranks of a node
	CausedBy []int // the ranks whose failures made Ranks fail, as far as Ranks know
	Doubt    Doubt
	At       time.Time // when the failure happened, or was observed
	Seen     Seen
}

// Doubt ranks failures by how little they say about the cause.
type Doubt uint8

// From the most to the least certain: a rank's own failure, a connection that broke for whatever
// reason, and a deadline that passed.
const (
	Certain Doubt = iota
	Broken
	Overdue
)

// Seen says how the time of a failure is known.
type Seen uint8

const (
	Told    Seen = iota // the failed process reported the time
	Exited              // the launcher observed that the process exited
	Crashed             // the launcher observed that the process died without choosing to, or that the node was lost
)

// lag is how long after its effects a failure may be observed. Peers see the closed connections of a dying
// process before the kernel reports its death, and write their error files within milliseconds.
var lag = [...]time.Duration{Told: 0, Exited: 100 * time.Millisecond, Crashed: time.Second}

// Sort sorts failures, the root cause first. A failure that was caused by another failure in the list comes
// after all failures that were not. Among the latter, the more certain one comes first, then the earlier one.
// Equal failures keep their order.
func Sort[T any](failures []T, evidence func(T) Evidence) {
	type item struct {
		failure T
		Evidence
		isEffect int
	}
	items := make([]item, len(failures))
	failed := map[int]bool{}
	for i, f := range failures {
		items[i] = item{failure: f, Evidence: evidence(f)}
		for _, rank := range items[i].Ranks {
			failed[rank] = true
		}
	}
	for i, e := range items {
		if slices.ContainsFunc(e.CausedBy, func(rank int) bool { return failed[rank] && !slices.Contains(e.Ranks, rank) }) {
			items[i].isEffect = 1
		}
	}
	slices.SortStableFunc(items, func(a, b item) int {
		return cmp.Or(a.isEffect-b.isEffect, cmp.Compare(a.Doubt, b.Doubt), a.At.Add(-lag[a.Seen]).Compare(b.At.Add(-lag[b.Seen])))
	})
	for i, e := range items {
		failures[i] = e.failure
	}
}
