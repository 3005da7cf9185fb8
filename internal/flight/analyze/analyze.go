package analyze

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/goddp/goddp/internal/flight"
	"github.com/goddp/goddp/internal/rootcause"
)

// Analyze analyzes the records of a job's ranks, as [flight.ReadDir] returns them.
func Analyze(dumps []*flight.Dump) *Report {
	report := &Report{Findings: []Finding{}, Notes: []string{}}
	if len(dumps) == 0 {
		report.notef("there are no records")
		return report
	}
	j := newJob(dumps, report)
	report.WorldSize, report.Records = j.size, len(j.ranks)
	if j.usageErrors(report); len(report.Findings) > 0 {
		return report
	}
	mismatched := j.mismatches(report)
	missing := j.missing()
	switch {
	case len(report.Findings) > 0 || j.inTrouble():
		j.blame(report, j.waits(mismatched))
		if d := j.first((*rank).reason, (*rank).hasReason); d != nil {
			report.notef("the first failure that was recorded, by rank %d at %s: %s", d.Rank, clock(d.ReasonAt), d.Reason)
		}
		if len(missing) > 0 && !report.has(Missing) {
			report.notef("%s left no record", rootcause.Ranks(missing))
		}
	case len(missing) > 0 && j.waitsToBegin():
		report.add(Missing, missing, rootcause.Ranks(missing)+" left no record, and no other rank got beyond the start")
	case len(missing) > 0:
		report.notef("%s left no record", rootcause.Ranks(missing))
	}
	report.sort()
	j.prioritizeAwaited(report)
	return report
}

// prioritizeAwaited takes the first call whose deadline passed, and moves the findings about the ranks that it was
// waiting for to the front. The list of these ranks was stored at the deadline. The records may show a later state.
func (j *job) prioritizeAwaited(report *Report) {
	d := j.first((*rank).reason, func(d *rank) bool { return len(d.Awaited) > 0 })
	if d == nil || len(report.Findings) > 0 && report.Findings[0].Kind == Mismatch {
		return
	}
	about := func(f Finding) bool {
		return !slices.ContainsFunc(f.Ranks, func(r int) bool { return !slices.Contains(d.Awaited, r) })
	}
	if !slices.ContainsFunc(report.Findings, about) {
		var details []string
		for _, r := range d.Awaited {
			if other := j.ranks[r]; other != nil {
				details = append(details, lastCall(other.Dump))
			}
		}
		report.Findings = slices.DeleteFunc(report.Findings, func(f Finding) bool { // findings about what the ranks did since
			return f.Kind == Behind || f.Kind == Late || f.Kind == Failed
		})
		report.Findings = slices.Insert(report.Findings, 0, Finding{
			Kind: Awaited, Ranks: d.Awaited, Details: details,
			Summary: fmt.Sprintf("%s waited for %s when the deadline of a call passed, at %s", rootcause.Ranks([]int{d.Rank}), rootcause.Ranks(d.Awaited), clock(d.ReasonAt)),
		})
		return
	}
	slices.SortStableFunc(report.Findings, func(a, b Finding) int {
		switch {
		case about(a) == about(b):
			return 0
		case about(a):
			return -1
		}
		return 1
	})
}

// waitsToBegin reports whether no rank has made a call or closed its record.
func (j *job) waitsToBegin() bool {
	for _, d := range j.ranks {
		if len(d.Records) > 0 || !d.Closed.IsZero() {
			return false
		}
	}
	return true
}

// blame follows the waits to the ranks that cause them, and adds findings about those ranks.
func (j *job) blame(report *Report, waits []wait) {
	edges := map[int][]int{}
	for _, w := range waits {
		for _, h := range w.on {
			edges[w.rank.Rank] = append(edges[w.rank.Rank], h.rank)
		}
	}
	causes := j.causes(ends(edges))
	slices.SortStableFunc(causes, func(a, b int) int { return j.fateAt(a).Compare(j.fateAt(b)) })
	var missing []int
	for _, rank := range causes {
		if j.ranks[rank] == nil {
			missing = append(missing, rank)
			continue
		}
		j.blameEnd(report, rank, waits)
	}
	if len(missing) > 0 {
		report.add(Missing, missing, rootcause.Ranks(missing)+" left no record, and others wait for it", few(waitsFor(missing, waits))...)
	}
	for _, circle := range circles(edges) {
		j.blameCircle(report, circle, waits)
	}
	if len(report.Findings) == 0 {
		j.blameSomebody(report, waits)
	}
}

// ends returns the ends of the chains of waits: ranks that other ranks wait for and that wait for no rank.
func ends(edges map[int][]int) []int {
	ends := map[int]bool{}
	for _, on := range edges {
		for _, rank := range on {
			if len(edges[rank]) == 0 {
				ends[rank] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(ends))
}

// causes returns the given ranks, except those whose processes recorded a failure of another rank
// before they ended. If this excludes all ranks, causes returns all.
func (j *job) causes(ranks []int) []int {
	isEffect := func(r int) bool {
		d := j.ranks[r]
		return d != nil && d.failed && d.Ending != "" && d.Ending != flight.Suspended
	}
	if causes := slices.DeleteFunc(slices.Clone(ranks), isEffect); len(causes) > 0 {
		return causes
	}
	return ranks
}

// fateAt returns when a rank's process ended, or the zero time if that is not known.
func (j *job) fateAt(rank int) time.Time {
	if d := j.ranks[rank]; d != nil {
		return d.FateAt
	}
	return time.Time{}
}

// circles returns the sets of ranks that wait for each other and from which no end of a chain can
// be reached. Each set is in the order of waiting.
func circles(edges map[int][]int) (circles [][]int) {
	reaches := map[int]bool{}
	for range edges { // a path is no longer than the number of edges
		for from, on := range edges {
			for _, to := range on {
				if reaches[to] || len(edges[to]) == 0 {
					reaches[from] = true
				}
			}
		}
	}
	seen := map[int]bool{}
	for _, start := range slices.Sorted(maps.Keys(edges)) {
		var path []int
		rank := start
		for !seen[rank] && !reaches[rank] && len(edges[rank]) > 0 {
			seen[rank] = true
			path = append(path, rank)
			rank = slices.Min(edges[rank])
		}
		if i := slices.Index(path, rank); i >= 0 {
			circles = append(circles, path[i:])
		}
	}
	return circles
}

// blameEnd adds a finding about a rank at the end of a chain of waits.
func (j *job) blameEnd(report *Report, rank int, waits []wait) {
	worst := holdsNothing
	for _, w := range waits {
		worst = max(worst, w.onRank(rank))
	}
	ranks := []int{rank}
	d := j.ranks[rank]
	details := append([]string{lastCall(d.Dump)}, few(waitsFor(ranks, waits))...)
	ownCall := slices.IndexFunc(waits, func(w wait) bool { return w.rank == d })
	switch {
	case d.Ending == flight.Suspended:
		report.add(endings[d.Ending], ranks, fmt.Sprintf("the process of rank %d (pid %d on %s) is suspended", rank, d.PID, d.Host), details...)
	case d.Ending != "" && (d.gone || !d.isEffect()): // otherwise the process ended because of another rank's failure
		report.add(endings[d.Ending], ranks, fate(d.Dump), details...)
	case !d.Closed.IsZero():
		report.add(Left, ranks, fmt.Sprintf("rank %d closed its groups at %s, while others still called", rank, clock(d.Closed)), details...)
	case worst == late:
		report.add(Late, ranks, fmt.Sprintf("rank %d called late: the calls of the others had timed out, or were about to", rank), details...)
	case worst == blocked:
		report.add(Compute, ranks, fmt.Sprintf("the call of rank %d is queued behind its own compute", rank), details...)
	case ownCall >= 0:
		report.add(Behind, ranks, fmt.Sprintf("rank %d is behind: it is still in %v", rank, waits[ownCall].call), details...)
	default:
		report.add(Behind, ranks, fmt.Sprintf("rank %d is behind: it is busy, or stuck, outside communication", rank), details...)
	}
}

// waitsFor describes the waits for any of the ranks.
func waitsFor(ranks []int, waits []wait) (lines []string) {
	for _, w := range waits {
		if slices.ContainsFunc(ranks, func(r int) bool { return w.onRank(r) != holdsNothing }) {
			lines = append(lines, w.String())
		}
	}
	return lines
}

// fate describes how a process ended.
func fate(d *flight.Dump) string {
	s := fmt.Sprintf("rank %d (pid %d on %s) %s", d.Rank, d.PID, d.Host, d.Fate)
	if !d.FateAt.IsZero() {
		s += " at " + clock(d.FateAt)
	}
	return s
}

// few shortens a long list.
func few(lines []string) []string {
	const most = 4
	if len(lines) <= most {
		return lines
	}
	return append(slices.Clone(lines[:most]), fmt.Sprintf("... and %d more", len(lines)-most))
}

// blameCircle adds a finding about ranks that wait for each other.
func (j *job) blameCircle(report *Report, circle []int, waits []wait) {
	var details []string
	groups := map[string]bool{}
	for i, rank := range circle {
		next := circle[(i+1)%len(circle)]
		for _, w := range waits {
			if w.rank.Rank == rank && w.onRank(next) != holdsNothing {
				groups[w.call.Group] = true
				details = append(details, fmt.Sprintf("%v; for rank %d", w, next))
				break
			}
		}
	}
	ranks := slices.Sorted(slices.Values(circle))
	summary := rootcause.Ranks(ranks) + " wait for each other"
	if len(groups) > 1 {
		summary += ": they use the groups " + strings.Join(slices.Sorted(maps.Keys(groups)), ", ") + " in different orders"
	}
	report.add(Circle, ranks, summary, details...)
}

// blameSomebody adds a finding if the job is in trouble and the waits do not lead to any rank.
func (j *job) blameSomebody(report *Report, waits []wait) {
	dead := j.first((*rank).end, func(d *rank) bool { return d.gone && d.Ending != "" && d.Ending != flight.Succeeded })
	if hurt := j.first((*rank).reason, func(d *rank) bool { return d.failed }); dead == nil && hurt != nil {
		// A process exited while a peer was still in its last call.
		dead = j.first((*rank).end, func(d *rank) bool { return d.gone && d.Ending == flight.Succeeded })
	}
	first := j.first((*rank).reason, (*rank).hasReason)
	unknown := slices.IndexFunc(waits, func(w wait) bool { return w.unknown > 0 })
	switch {
	case dead != nil:
		report.add(endings[dead.Ending], []int{dead.Rank}, fate(dead.Dump), lastCall(dead.Dump))
	case unknown >= 0:
		w := waits[unknown]
		others := j.ranksOutside(w.call.Group)
		report.add(Missing, others, fmt.Sprintf("group %s lacks %d of its members, among %s", w.call.Group, w.unknown, rootcause.Ranks(others)), w.String())
	case first != nil:
		report.add(Failed, []int{first.Rank}, fmt.Sprintf("rank %d was the first to record a failure, at %s", first.Rank, clock(first.ReasonAt)),
			lastCall(first.Dump))
	case len(waits) > 0:
		j.blameTransport(report, waits)
	}
}

// blameTransport adds a finding about a call that all ranks have started and that does not end.
func (j *job) blameTransport(report *Report, waits []wait) {
	var ranks []int
	var lines []string
	kind, summary := Compute, "are in calls that are queued behind compute, on all of them"
	for _, w := range waits {
		ranks = append(ranks, w.rank.Rank)
		lines = append(lines, w.String())
		if !w.call.Running.IsZero() {
			kind, summary = Transport, "made the same calls, which do not end: look at the network, or the devices"
		}
	}
	slices.Sort(ranks)
	ranks = slices.Compact(ranks)
	report.add(kind, ranks, rootcause.Ranks(ranks)+" "+summary, few(lines)...)
}
