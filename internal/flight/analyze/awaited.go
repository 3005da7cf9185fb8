package analyze

import (
	"slices"

	"github.com/goddp/goddp/internal/flight"
)

// Overdue analyzes the records of a job in which a call of a rank is overdue. accounts are the records of the
// ranks that answered when the rank asked, with Waits, and its own. awaited are the ranks that the call waits
// for: those that the findings blame for a wait or, if there are none, the ranks at the ends of the chains of
// waits that begin with the rank. Ranks on the chains that did not answer come before those that wait for
// nobody. If all of them wait for others, awaited is the rank's own Waits.
func Overdue(rank int, accounts []*flight.Dump) (report *Report, awaited []int) {
	waits := map[int][]int{}
	var records []*flight.Dump
	for _, a := range accounts {
		waits[a.Rank] = a.Waits
		if !a.Taken.IsZero() {
			records = append(records, a)
		}
	}
	report = Analyze(records)
	if awaited = report.blamed(); len(awaited) == 0 {
		awaited = follow(rank, waits)
	}
	return report, awaited
}

// blamed returns the ranks that the findings blame for a wait.
func (r *Report) blamed() (ranks []int) {
	for _, f := range r.Findings {
		switch f.Kind {
		case Missing, Suspended, Dead, Left, Behind, Late, Compute:
			ranks = append(ranks, f.Ranks...)
		}
	}
	slices.Sort(ranks)
	return slices.Compact(ranks)
}

// follow returns the ranks at the ends of the chains of waits that begin with a rank.
func follow(rank int, waits map[int][]int) []int {
	var silent, idle []int
	seen := map[int]bool{rank: true}
	for next := slices.Clone(waits[rank]); len(next) > 0; next = next[1:] {
		r := next[0]
		if seen[r] {
			continue
		}
		seen[r] = true
		theirs, answered := waits[r]
		switch {
		case !answered:
			silent = append(silent, r)
		case len(theirs) == 0:
			idle = append(idle, r)
		default:
			next = append(next, theirs...)
		}
	}
	for _, ends := range [][]int{silent, idle} {
		if len(ends) > 0 {
			slices.Sort(ends)
			return ends
		}
	}
	return waits[rank]
}
