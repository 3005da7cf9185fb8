package timeline

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// mostGaps is how many of a rank's longest gaps a report has.
const mostGaps = 5

// Report says where the time of a job went. Times are in nanoseconds in JSON.
type Report struct {
	Mean      Times      `json:"mean"` // of all ranks
	Ranks     []Rank     `json:"ranks"`
	Clocks    []Clock    `json:"clocks"`    // of the hosts other than that of the first rank
	Straggler *Straggler `json:"straggler"` // nil if no rank made others wait
	// Kernels are the activities of all ranks by name, the longest first: kernels, copies and memsets; without a GPU, spans.
	Kernels []Kernel `json:"kernels"`
}

// Times says where the time of a step went: Total is the sum of Compute, Exposed, Copies and Idle. If the trace has steps,
// the times are means of a step, from the begin of the first to the end of the last; else they are those of the whole trace.
type Times struct {
	Total         time.Duration `json:"total_ns"`
	Compute       time.Duration `json:"compute_ns"`       // while a kernel computed
	Exposed       time.Duration `json:"exposed_ns"`       // while a kernel communicated and none computed
	Copies        time.Duration `json:"copies_ns"`        // while memory was copied or set, and no kernel ran
	Idle          time.Duration `json:"idle_ns"`          // while nothing of the above happened
	HostLate      time.Duration `json:"host_late_ns"`     // the part of Idle in which the host was late with the next activity
	Communication time.Duration `json:"communication_ns"` // while a kernel communicated
	Waiting       time.Duration `json:"waiting_ns"`       // the part of Communication before the last rank began it
}

// Rank says what one rank's GPU did.
type Rank struct {
	Rank  int `json:"rank"`
	Steps int `json:"steps"` // 0: the trace has none
	Times
	// FromSpans says that the trace has no activities of a GPU. The times are then computed from the spans:
	// a pass counts as computation from its begin to its end.
	FromSpans     bool    `json:"from_spans"`
	HiddenPercent float64 `json:"hidden_percent"` // the part of Communication that is not exposed; 100 without communication
	Gaps          []Gap   `json:"gaps"`           // the longest ones, in descending order
}

// Kernel is all activities with one name, in a step, as a mean over the ranks.
type Kernel struct {
	Name  string        `json:"name"`
	Kind  string        `json:"kind"` // compute, communication, copy or wait
	Count float64       `json:"count"`
	Took  time.Duration `json:"took_ns"`
}

// Gap is an interval in which the GPU was idle.
type Gap struct {
	At     time.Duration `json:"at_ns"` // since the begin of the first step, or of the trace if it has no steps
	Took   time.Duration `json:"took_ns"`
	Before string        `json:"before"` // the last activity before the gap
	After  string        `json:"after"`  // the first activity after the gap
	During string        `json:"during"` // the span of the program's step in which the gap lies, such as backward; or ""
	Cause  string        `json:"cause"`  // the cause of the gap; "" if the trace does not say it
}

// part returns one of the times of which Total is the sum, by its name in a report.
func (t *Times) part(name string) time.Duration {
	return map[string]time.Duration{"compute": t.Compute, "exposed": t.Exposed, "copies": t.Copies, "idle": t.Idle}[name]
}

// Report says where the time went.
func (j *Job) Report() *Report {
	report := &Report{Clocks: slices.Concat([]Clock{}, j.clocks), Kernels: []Kernel{}}
	at := map[string]int{}
	var took []float64 // of the kernels
	for _, r := range j.ranks {
		out, work := r.analyze()
		report.Ranks = append(report.Ranks, out)
		part := float64(max(1, out.Steps) * len(j.ranks))
		for _, e := range work {
			i, isKnown := at[e.name]
			if !isKnown {
				i = len(report.Kernels)
				at[e.name], report.Kernels, took = i, append(report.Kernels, Kernel{Name: e.name, Kind: e.kind()}), append(took, 0)
			}
			report.Kernels[i].Count += 1 / part
			took[i] += float64(e.End.Sub(e.Begin)) / part
		}
	}
	for i := range took {
		report.Kernels[i].Took = time.Duration(math.Round(took[i]))
	}
	slices.SortStableFunc(report.Kernels, func(a, b Kernel) int { return cmp.Compare(b.Took, a.Took) })
	report.Straggler = j.findStraggler(report)
	mean := func(of func(t *Times) *time.Duration) {
		for i := range report.Ranks {
			*of(&report.Mean) += *of(&report.Ranks[i].Times)
		}
		*of(&report.Mean) /= time.Duration(len(report.Ranks))
	}
	mean(func(t *Times) *time.Duration { return &t.Total })
	mean(func(t *Times) *time.Duration { return &t.Compute })
	mean(func(t *Times) *time.Duration { return &t.Exposed })
	mean(func(t *Times) *time.Duration { return &t.Copies })
	mean(func(t *Times) *time.Duration { return &t.Idle })
	mean(func(t *Times) *time.Duration { return &t.HostLate })
	mean(func(t *Times) *time.Duration { return &t.Communication })
	mean(func(t *Times) *time.Duration { return &t.Waiting })
	return report
}

// isCommunication reports whether a kernel communicates: any kernel of NCCL, even in a group of one rank, or
// goddp's own all-reduce.
func isCommunication(kernel string) bool {
	return strings.HasPrefix(kernel, "nccl") || strings.HasPrefix(kernel, "oneRankReduce") || strings.HasPrefix(kernel, "small_all_reduce")
}

// kind returns what happens in an activity of a GPU or in a span.
func (e *event) kind() string {
	switch {
	case e.category == "kernel" && isCommunication(e.name):
		return "communication"
	case e.category == "kernel":
		return "compute"
	case e.category == "gpu_memcpy" || e.category == "gpu_memset":
		return "copy"
	case e.isWait:
		return "wait"
	}
	return e.category
}

// analyze returns what a rank did between its first and its last step, and the events that say so.
func (r *rank) analyze() (out Rank, work []event) {
	window := r.window()
	var byKind, bySpans [3][]Interval // compute, communication, copies; compute, communication, waits
	var spans []event
	for _, e := range r.events {
		within := Both([]Interval{e.Interval}, []Interval{window})
		if len(within) == 0 {
			continue
		}
		e.Interval = within[0]
		switch {
		case e.category == "compute" && e.isWait:
			bySpans[2] = append(bySpans[2], e.Interval)
			spans = append(spans, e)
		case e.category == "compute":
			bySpans[0] = append(bySpans[0], e.Interval)
			spans = append(spans, e)
		case e.category == "communication":
			bySpans[1] = append(bySpans[1], e.Interval)
			spans = append(spans, e)
		case e.kind() == "compute":
			byKind[0] = append(byKind[0], e.Interval)
			work = append(work, e)
		case e.kind() == "communication":
			byKind[1] = append(byKind[1], e.Interval)
			work = append(work, e)
		case e.kind() == "copy":
			byKind[2] = append(byKind[2], e.Interval)
			work = append(work, e)
		}
	}
	out = Rank{Rank: r.number, Steps: len(r.steps), Gaps: []Gap{}}
	compute, comm, copies := Union(byKind[0]), Union(byKind[1]), Union(byKind[2])
	if len(work) == 0 {
		out.FromSpans = true
		work = spans
		compute, comm, copies = Minus(Union(bySpans[0]), Union(bySpans[2])), Union(bySpans[1]), nil
	}
	if len(work) == 0 {
		return out, nil
	}
	kernels := Union(slices.Concat(compute, comm))
	busy := Union(slices.Concat(kernels, copies))
	each := func(ivs []Interval) time.Duration { return Length(ivs) / time.Duration(max(1, out.Steps)) }
	out.Times = Times{
		Total: each([]Interval{window}), Compute: each(compute), Exposed: each(Minus(comm, compute)), Copies: each(Minus(copies, kernels)),
		Idle: each(Minus([]Interval{window}, busy)), Communication: each(comm),
	}
	out.HiddenPercent = percent(out.Communication-out.Exposed, out.Communication)
	gaps := Gaps(busy)
	out.HostLate = each(hostLate(gaps, work))
	slices.SortStableFunc(gaps, func(a, b Interval) int { return cmp.Compare(b.End.Sub(b.Begin), a.End.Sub(a.Begin)) })
	for _, g := range gaps[:min(len(gaps), mostGaps)] {
		out.Gaps = append(out.Gaps, r.explain(g, window.Begin, work))
	}
	return out, work
}

// hostLate returns the gaps in which the host was late: it enqueued the next activity in the second half of the gap.
func hostLate(gaps []Interval, work []event) (found []Interval) {
	enqueued := map[int64]time.Time{} // by the activity's begin
	for _, e := range work {
		if at := e.Begin.UnixNano(); enqueued[at].IsZero() {
			enqueued[at] = e.enqueued
		}
	}
	for _, g := range gaps {
		if at := enqueued[g.End.UnixNano()]; !at.IsZero() && 2*at.Sub(g.Begin) >= g.End.Sub(g.Begin) {
			found = append(found, g)
		}
	}
	return found
}

// percent returns part as a percentage of whole. If whole is 0, it returns 100.
func percent(part, whole time.Duration) float64 {
	if whole == 0 {
		return 100
	}
	return 100 * float64(part) / float64(whole)
}

// explain names the activities around a gap, and the gap's cause. If the host enqueued the next activity before the
// second half of the gap, the activity's stream waited for something. Otherwise the host was late, and explain names
// the host call or span that took at least half of the time by which the host was late.
func (r *rank) explain(gap Interval, first time.Time, work []event) Gap {
	g := Gap{At: gap.Begin.Sub(first), Took: gap.End.Sub(gap.Begin)}
	var after event
	for _, e := range work {
		if e.End.Equal(gap.Begin) {
			g.Before = e.name
		}
		if e.Begin.Equal(gap.End) && after.name == "" {
			g.After, after = e.name, e
		}
	}
	during := longest(r.events, gap, func(e event) bool { return e.category == "compute" })
	g.During = during.name
	late := after.enqueued.Sub(gap.Begin)
	if after.enqueued.IsZero() {
		late = g.Took
	}
	host := longest(r.events, Interval{Begin: gap.Begin, End: gap.Begin.Add(late)}, isHost)
	switch {
	case late <= 0:
		g.Cause = fmt.Sprintf("the stream waited: the next activity was enqueued %v before the gap", round(-late))
	case 2*late < g.Took:
		g.Cause = fmt.Sprintf("the stream waited: the next activity was enqueued %v into the gap", round(late))
	case !after.enqueued.IsZero() && host.name != "":
		g.Cause = fmt.Sprintf("the host enqueued the next activity %v into the gap, and was in %s before", round(late), host.name)
	case !after.enqueued.IsZero():
		g.Cause = fmt.Sprintf("the host enqueued the next activity %v into the gap", round(late))
	case host.name != "":
		g.Cause = fmt.Sprintf("the host was in %s", host.name)
	}
	return g
}

// isHost reports whether an event is a call of CUDA, or a span of the host or of one of the program's own tracks.
func isHost(e event) bool {
	switch e.category {
	case "kernel", "gpu_memcpy", "gpu_memset", "compute", "communication":
		return false
	}
	return true
}

// longest returns, among the events for which isKind returns true, the event that covers most of iv. Among equals it
// returns the shortest. If no event covers half of iv, it returns an empty event.
func longest(events []event, iv Interval, isKind func(event) bool) (found event) {
	var most time.Duration
	for _, e := range events {
		if !isKind(e) {
			continue
		}
		part := Length(Both([]Interval{e.Interval}, []Interval{iv}))
		if 2*part < iv.End.Sub(iv.Begin) || part < most {
			continue
		}
		if part > most || e.End.Sub(e.Begin) < found.End.Sub(found.Begin) {
			found, most = e, part
		}
	}
	return found
}

// round rounds a time to about three digits.
func round(d time.Duration) time.Duration {
	switch {
	case d >= 10*time.Millisecond:
		return d.Round(100 * time.Microsecond)
	case d >= 100*time.Microsecond:
		return d.Round(time.Microsecond)
	}
	return d.Round(100 * time.Nanosecond)
}
