package timeline

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// mostGaps is how many of a rank's longest gaps Analyze returns.
const mostGaps = 5

// Report is what Analyze found out. Times are in nanoseconds in JSON.
type Report struct {
	Ranks []Rank `json:"ranks"`
}

// Rank summarizes the activity of one rank's GPU, from its first to its last activity in the trace.
type Rank struct {
	Rank int `json:"rank"`
	// FromSpans says that the trace has no activities of a GPU. The times are then computed from the spans:
	// a pass counts as computation from its begin to its end.
	FromSpans     bool          `json:"from_spans"`
	Activities    int           `json:"activities"` // kernels, copies and memsets, or spans
	Total         time.Duration `json:"total_ns"`
	Compute       time.Duration `json:"compute_ns"`       // while a kernel computed
	Communication time.Duration `json:"communication_ns"` // while a kernel communicated
	Exposed       time.Duration `json:"exposed_ns"`       // while a kernel communicated and none computed
	Copies        time.Duration `json:"copies_ns"`        // while memory was copied or set
	Idle          time.Duration `json:"idle_ns"`          // while nothing of the above happened
	// HiddenPercent is the part of Communication that is not exposed; it is 100 without communication.
	// The two fields for spans hold the same quantities, computed from the events on the streams as by
	// the method Overlap of profile.Recorder.
	HiddenPercent      float64       `json:"hidden_percent"`
	SpansCommunication time.Duration `json:"spans_communication_ns"`
	SpansHiddenPercent float64       `json:"spans_hidden_percent"`
	Gaps               []Gap         `json:"gaps"` // the longest ones, in descending order
	// Kernels are the activities grouped by name, in descending order of total time.
	Kernels []Kernel `json:"kernels"`
}

// Kernel is the total time of all activities with one name.
type Kernel struct {
	Name  string        `json:"name"`
	Count int           `json:"count"`
	Took  time.Duration `json:"took_ns"`
}

// Gap is an interval in which the GPU was idle.
type Gap struct {
	At     time.Duration `json:"at_ns"` // since the rank's first activity
	Took   time.Duration `json:"took_ns"`
	Before string        `json:"before"` // the last activity before the gap
	After  string        `json:"after"`  // the first activity after the gap
	During string        `json:"during"` // the span of the program's step in which the gap lies, such as backward; or ""
	Cause  string        `json:"cause"`  // the cause of the gap; "" if the trace does not say it
}

// Analyze reads traces and returns what each rank's GPU did. A rank may be in one trace only.
func Analyze(paths ...string) (*Report, error) {
	report := &Report{}
	from := map[int]string{}
	for _, path := range paths {
		ranks, err := read(path)
		if err != nil {
			return nil, err
		}
		for _, r := range ranks {
			if first, ok := from[r.number]; ok {
				return nil, fmt.Errorf("rank %d is in two files, %s and %s: want one file per rank", r.number, first, path)
			}
			from[r.number] = path
			report.Ranks = append(report.Ranks, r.analyze())
		}
	}
	slices.SortFunc(report.Ranks, func(a, b Rank) int { return cmp.Compare(a.Rank, b.Rank) })
	return report, nil
}

// isCommunication reports whether a kernel communicates: any kernel of NCCL, even in a group of one rank, or
// goddp's own all-reduce.
func isCommunication(kernel string) bool {
	return strings.HasPrefix(kernel, "nccl") || strings.HasPrefix(kernel, "oneRankReduce") || strings.HasPrefix(kernel, "small_all_reduce")
}

func (r *rank) analyze() Rank {
	var work []event // the GPU's activities
	var compute, comm, copies []Interval
	var spanCompute, spanComm, waits []Interval
	var spans []event // the spans of computation and communication
	for _, e := range r.events {
		switch e.category {
		case "kernel":
			if isCommunication(e.name) {
				comm = append(comm, e.Interval)
			} else {
				compute = append(compute, e.Interval)
			}
			work = append(work, e)
		case "gpu_memcpy", "gpu_memset":
			copies = append(copies, e.Interval)
			work = append(work, e)
		case "compute":
			if e.isWait {
				waits = append(waits, e.Interval)
				continue
			}
			spanCompute = append(spanCompute, e.Interval)
			spans = append(spans, e)
		case "communication":
			spanComm = append(spanComm, e.Interval)
			spans = append(spans, e)
		}
	}
	spanCompute, spanComm, waits = Union(spanCompute), Union(spanComm), Union(waits)
	spanHidden := Both(spanComm, spanCompute)
	hiddenBySpans := Length(spanHidden) - Length(Both(spanHidden, waits))

	out := Rank{Rank: r.number, SpansCommunication: Length(spanComm), Gaps: []Gap{}, Kernels: byName(work)}
	out.SpansHiddenPercent = percent(hiddenBySpans, out.SpansCommunication)
	if len(work) == 0 {
		out.FromSpans = true
		work, compute, comm = spans, spanCompute, spanComm
	}
	compute, comm = Union(compute), Union(comm)
	copies = Union(copies)
	busy := Union(slices.Concat(compute, comm, copies))
	hidden := Length(Both(comm, compute))
	out.Activities = len(work)
	out.Compute, out.Communication, out.Copies = Length(compute), Length(comm), Length(copies)
	if out.FromSpans {
		hidden = hiddenBySpans
		out.Compute -= Length(Both(compute, waits))
	}
	out.Exposed = out.Communication - hidden
	out.HiddenPercent = percent(hidden, out.Communication)
	if len(busy) == 0 {
		return out
	}
	first := busy[0].Begin
	out.Total = busy[len(busy)-1].End.Sub(first)
	out.Idle = out.Total - Length(busy)
	gaps := Gaps(busy)
	slices.SortStableFunc(gaps, func(a, b Interval) int { return cmp.Compare(b.End.Sub(b.Begin), a.End.Sub(a.Begin)) })
	for _, g := range gaps[:min(len(gaps), mostGaps)] {
		out.Gaps = append(out.Gaps, r.explain(g, first, work))
	}
	return out
}

// byName returns the total time of the activities of each name.
func byName(work []event) []Kernel {
	at := map[string]int{}
	all := []Kernel{}
	for _, e := range work {
		i, ok := at[e.name]
		if !ok {
			i = len(all)
			at[e.name], all = i, append(all, Kernel{Name: e.name})
		}
		all[i].Count++
		all[i].Took += e.End.Sub(e.Begin)
	}
	slices.SortStableFunc(all, func(a, b Kernel) int { return cmp.Compare(b.Took, a.Took) })
	return all
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
