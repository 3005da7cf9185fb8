package timeline

import (
	"slices"
	"time"
)

// Clock says how the clock of a host was put right.
type Clock struct {
	Host string `json:"host"`
	// Ahead is by how much the clock was ahead of that of the first rank's host. Collectives is the number of collectives
	// that say so; if it is 0, Ahead is not known.
	Ahead       time.Duration `json:"ahead_ns"`
	Collectives int           `json:"collectives"`
}

// align puts all ranks on the clock of the first rank's host. Ranks of one host have the same clock. The clock of
// another host is ahead by the median of the time by which collectives end later on it than on the first rank: no rank
// can have the result of a reduction before all have contributed, so all have it at nearly the same time. The host's first
// rank that has collectives with the first rank says so.
func (j *Job) align() {
	byHost := map[string]Clock{}
	var hosts []string
	first := j.ranks[0]
	reference := first.collectives()
	for _, r := range j.ranks {
		if r.host == first.host {
			continue
		}
		if byHost[r.host].Collectives > 0 {
			continue
		}
		if _, isKnown := byHost[r.host]; !isKnown {
			hosts = append(hosts, r.host)
		}
		var later []time.Duration
		matched([]map[string][]Interval{reference, r.collectives()}, func(calls []Interval) {
			later = append(later, calls[1].End.Sub(calls[0].End))
		})
		byHost[r.host] = Clock{r.host, median(later), len(later)}
	}
	for _, host := range hosts {
		j.clocks = append(j.clocks, byHost[host])
	}
	for _, r := range j.ranks {
		r.shift = -byHost[r.host].Ahead
		for i := range r.events {
			e := &r.events[i]
			e.Begin, e.End = e.Begin.Add(r.shift), e.End.Add(r.shift)
			if !e.enqueued.IsZero() {
				e.enqueued = e.enqueued.Add(r.shift)
			}
		}
	}
}

// collectives returns the rank's collectives of each name, in their order: spans, or kernels if there are none.
func (r *rank) collectives() map[string][]Interval {
	spans, kernels := map[string][]Interval{}, map[string][]Interval{}
	for _, e := range r.events {
		switch {
		case e.category == "communication":
			spans[e.name] = append(spans[e.name], e.Interval)
		case e.category == "kernel" && isCommunication(e.name):
			kernels[e.name] = append(kernels[e.name], e.Interval)
		}
	}
	if len(spans) > 0 {
		return spans
	}
	return kernels
}

// matched calls f with each collective that all ranks have: the nth of a name on one rank is the nth of that name on the
// others. It leaves out a name that one rank has more often than another.
func matched(ranks []map[string][]Interval, f func(calls []Interval)) {
	for name, all := range ranks[0] {
		if slices.ContainsFunc(ranks, func(calls map[string][]Interval) bool { return len(calls[name]) != len(all) }) {
			continue
		}
		for i := range all {
			calls := make([]Interval, len(ranks))
			for k := range ranks {
				calls[k] = ranks[k][name][i]
			}
			f(calls)
		}
	}
}

// Straggler is the rank that the others waited for. A rank begins a collective as soon as its part of the data is ready, so
// the rank that begins last makes the others wait.
type Straggler struct {
	Rank        int           `json:"rank"`
	Last        int           `json:"last"`        // the number of collectives that the rank began last
	Collectives int           `json:"collectives"` // the number of all
	Waited      time.Duration `json:"waited_ns"`   // how long another rank waited for it in a step
	// Part is the part of a step that takes longest on the rank, compared with the median of the other ranks: "compute",
	// "copies" or "idle"; "" if none takes longer by half of what the others waited. Took and Others are its time on the rank and that median.
	Part   string        `json:"part"`
	Took   time.Duration `json:"took_ns"`
	Others time.Duration `json:"others_ns"`
}

// findStraggler sets how long each rank waited in collectives for the last one, and returns the rank that made the others
// wait the most. It returns nil if they waited less than a hundredth of a step for it, or less than 1.5 times as long as for a
// rank on average: then the ranks wait for each other in turn.
func (j *Job) findStraggler(report *Report) *Straggler {
	if len(j.ranks) < 2 {
		return nil
	}
	var calls []map[string][]Interval
	var windows []Interval
	for _, r := range j.ranks {
		calls, windows = append(calls, r.collectives()), append(windows, r.window())
	}
	lates := make([]Straggler, len(j.ranks))
	collectives := 0
	matched(calls, func(calls []Interval) {
		for i, w := range windows {
			if calls[i].Begin.Before(w.Begin) || calls[i].End.After(w.End) {
				return // for example one that compares the parameters after the last step
			}
		}
		last := 0
		for i, c := range calls {
			if c.Begin.After(calls[last].Begin) {
				last = i
			}
		}
		collectives++
		lates[last].Last++
		for i, c := range calls {
			waited := max(0, earlier(c.End, calls[last].Begin).Sub(c.Begin)) / time.Duration(max(1, report.Ranks[i].Steps))
			report.Ranks[i].Waiting += waited
			lates[last].Waited += waited / time.Duration(len(calls)-1)
		}
	})
	worst := 0
	var all time.Duration
	for i := range lates {
		all += lates[i].Waited
		if lates[i].Waited > lates[worst].Waited {
			worst = i
		}
	}
	found := lates[worst]
	if found.Waited == 0 || 100*found.Waited < report.Ranks[worst].Total || 2*found.Waited*time.Duration(len(lates)) < 3*all {
		return nil
	}
	found.Rank, found.Collectives = j.ranks[worst].number, collectives
	for _, part := range []string{"compute", "copies", "idle"} {
		var others []time.Duration
		for i, r := range report.Ranks {
			if i != worst {
				others = append(others, r.part(part))
			}
		}
		took, usual := report.Ranks[worst].part(part), median(others)
		if longer := took - usual; 2*longer >= found.Waited && longer > found.Took-found.Others {
			found.Part, found.Took, found.Others = part, took, usual
		}
	}
	return &found
}

// median returns the middle of some times, or 0 if there are none.
func median(times []time.Duration) time.Duration {
	if len(times) == 0 {
		return 0
	}
	slices.Sort(times)
	return (times[(len(times)-1)/2] + times[len(times)/2]) / 2
}
