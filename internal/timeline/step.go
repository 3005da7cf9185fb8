package timeline

import (
	"cmp"
	"errors"
	"slices"
	"time"
)

// capturedStep is the name of the span of a captured step.
const capturedStep = "captured step"

// findSteps returns the steps: each from its first forward pass to the end of its optimizer, or a captured step.
func findSteps(events []event) []Interval {
	var steps []Interval
	var begin time.Time // that of the step whose optimizer has not come yet; zero if there is none
	for _, e := range events {
		switch {
		case e.category != "compute":
		case e.name == capturedStep:
			steps = append(steps, e.Interval)
		case e.name == "forward" && begin.IsZero():
			begin = e.Begin
		case e.name == "optimizer" && !begin.IsZero():
			steps, begin = append(steps, Interval{begin, e.End}), time.Time{}
		case e.name == "optimizer" && len(steps) > 0: // it has several for a step
			steps[len(steps)-1].End = later(steps[len(steps)-1].End, e.End)
		}
	}
	return steps
}

// window returns the time from the first step to the last. If there are no steps, it returns that of all activities; if
// there is nothing, it is empty.
func (r *rank) window() Interval {
	if n := len(r.steps); n > 0 {
		return Interval{r.steps[0].Begin, r.steps[n-1].End}
	}
	var all []Interval
	for _, e := range r.events {
		if !isHost(e) {
			all = append(all, e.Interval)
		}
	}
	if len(all) == 0 {
		return Interval{}
	}
	all = Union(all)
	return Interval{all[0].Begin, all[len(all)-1].End}
}

// A Row is what a rank did in a step. Spans are sorted by their begin.
type Row struct {
	Rank                   int
	Compute, Communication []Span
}

// A Span is a pass, a reduction, or a kernel. Its times are since the begin of the step.
type Span struct {
	Name       string
	Begin, End time.Duration
	IsWait     bool // nothing is computed, because the stream waits for reductions
	IsKernel   bool
}

// MedianStep returns the first rank's step of median length, as all ranks spent it.
func (j *Job) MedianStep() ([]Row, error) {
	steps := slices.Clone(j.ranks[0].steps)
	if len(steps) == 0 {
		return nil, errors.New("the trace has no step: want a span \"forward\" and after it a span \"optimizer\", or a captured step")
	}
	slices.SortStableFunc(steps, func(a, b Interval) int { return cmp.Compare(a.End.Sub(a.Begin), b.End.Sub(b.Begin)) })
	step := steps[len(steps)/2]
	var rows []Row
	for _, r := range j.ranks {
		row := Row{Rank: r.number}
		isCaptured := slices.ContainsFunc(r.events, func(e event) bool { return e.name == capturedStep })
		for _, e := range r.events {
			within := Both([]Interval{e.Interval}, []Interval{step})
			if len(within) == 0 || e.name == capturedStep || isCaptured != (e.category == "kernel") {
				continue
			}
			s := Span{e.name, within[0].Begin.Sub(step.Begin), within[0].End.Sub(step.Begin), e.isWait, isCaptured}
			switch {
			case e.category == "communication" || isCaptured && isCommunication(e.name):
				row.Communication = append(row.Communication, s)
			case e.category == "compute" || isCaptured:
				row.Compute = append(row.Compute, s)
			}
		}
		rows = append(rows, row)
	}
	return rows, nil
}
