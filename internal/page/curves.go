package page

import (
	"slices"

	"github.com/goddp/goddp/internal/telemetry"
)

// Curves are the points of a number at the same steps: of each rank, or of all together, whose Rank is then -1.
type Curves struct {
	Steps []int64 `json:"steps"`
	Ranks []Curve `json:"ranks"`
}

// Curve has for each step the least, the greatest and the mean value around it. A value is null if there is none.
type Curve struct {
	Rank int    `json:"rank"`
	Min  values `json:"min"`
	Max  values `json:"max"`
	Mean values `json:"mean"`
}

// Curves returns the curve of a value, or of the time of a part, from step from to step to. A to of -1 means the last step.
// A curve has at most n points, each of as many steps as needed. With isEach every rank has a curve of its own;
// otherwise all ranks are merged into one.
func (r *Run) Curves(kind telemetry.Kind, name string, from, to int64, n int, isEach bool) *Curves {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []*series
	out := &Curves{Steps: []int64{}, Ranks: []Curve{}}
	last, first := int64(-1), int64(-1)
	for _, rank := range r.sortedRanks() {
		if s := r.series[key{kind, name, rank}]; s != nil && len(s.buckets) > 0 {
			all, out.Ranks = append(all, s), append(out.Ranks, Curve{Rank: rank})
			last = max(last, s.buckets[len(s.buckets)-1].last)
			if begin := s.buckets[0].first; first < 0 || begin < first {
				first = begin
			}
		}
	}
	if to < 0 || to > last {
		to = last
	}
	if from = max(from, first); len(all) == 0 || to < from {
		return out
	}
	n = int(min(int64(n), to-from+1))
	bins := make([][]bucket, len(all))
	for i, s := range all {
		bins[i] = s.bins(from, to, n)
	}
	if !isEach {
		bins, out.Ranks = [][]bucket{together(bins)}, []Curve{{Rank: -1}}
	}
	for b := range n {
		if !slices.ContainsFunc(bins, func(of []bucket) bool { return of[b].points+of[b].others > 0 }) {
			continue
		}
		at := int64(0)
		for i := range bins {
			bin, c := bins[i][b], &out.Ranks[i]
			at = max(at, bin.last)
			if bin.points == 0 {
				bin.min, bin.max, bin.mean = nan, nan, nan
			}
			c.Min, c.Max, c.Mean = append(c.Min, value(bin.min)), append(c.Max, value(bin.max)), append(c.Mean, value(bin.mean))
		}
		out.Steps = append(out.Steps, at)
	}
	return out
}

// together sums up the bins of several ranks.
func together(ranks [][]bucket) []bucket {
	all := ranks[0]
	for _, bins := range ranks[1:] {
		for i, b := range bins {
			last := max(all[i].last, b.last)
			all[i].add(b)
			all[i].last = last
		}
	}
	return all
}
