package page

import (
	"slices"

	"github.com/goddp/goddp/internal/telemetry"
)

// Curves are the points of a number, of all ranks, at the same steps.
type Curves struct {
	Steps []int64 `json:"steps"`
	Ranks []Curve `json:"ranks"`
}

// Curve has for each step the least, the greatest and the mean value around it. A value is null if there is none.
type Curve struct {
	Rank int     `json:"rank"`
	Min  []value `json:"min"`
	Max  []value `json:"max"`
	Mean []value `json:"mean"`
}

// Curves returns the points of a value, or of the time of a part, between two steps, in at most n bins. to -1 stands for
// the last step.
func (r *Run) Curves(kind telemetry.Kind, name string, from, to int64, n int) *Curves {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []*series
	out := &Curves{Steps: []int64{}, Ranks: []Curve{}}
	last, first := int64(-1), int64(-1)
	for _, rank := range r.sortedRanks() {
		if s := r.series[key{kind, name, rank}]; s != nil && len(s.buckets) > 0 {
			all, out.Ranks = append(all, s), append(out.Ranks, Curve{Rank: rank, Min: []value{}, Max: []value{}, Mean: []value{}})
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
	for b := range n {
		if !slices.ContainsFunc(bins, func(of []bucket) bool { return of[b].points+of[b].others > 0 }) {
			continue
		}
		at := int64(0)
		for i := range all {
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
