package analyze

import (
	"slices"

	"github.com/goddp/goddp/internal/flight"
)

// Overdue analyzes the records of a job in which a call of the given rank is overdue. accounts are this rank's
// record and the records of the ranks that answered when it asked, all with Waits. awaited are the ranks that the
// call waits for: the ranks that the findings blame for a wait. If the findings blame none, awaited are the ranks
// at the ends of the chains of waits that begin with the given rank. Ranks on the chains that did not answer come
// before ranks that wait for nobody. If all ranks on the chains wait for others, awaited is the rank's own Waits.
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
