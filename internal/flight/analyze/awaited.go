package analyze

import "slices"

// Awaited returns the ranks that an overdue call of a rank waits for: those that the findings blame for a wait
// or, if there are none, the ranks at the ends of the chains of waits that begin with the rank. waits[r] holds
// the ranks that the calls of rank r wait for, as far as its backend knows; it is missing if rank r did not
// answer. If any ranks on the chains did not answer, Awaited returns these. If all of them wait for others, it
// returns waits[rank].
func (r *Report) Awaited(rank int, waits map[int][]int) (ranks []int) {
	for _, f := range r.Findings {
		switch f.Kind {
		case Missing, Suspended, Dead, Left, Behind, Late, Compute:
			ranks = append(ranks, f.Ranks...)
		}
	}
	if len(ranks) > 0 {
		slices.Sort(ranks)
		return slices.Compact(ranks)
	}
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
