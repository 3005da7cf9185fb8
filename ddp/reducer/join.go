package reducer

import (
	"fmt"
	"slices"
	"strings"

	"github.com/goddp/goddp/device"
)

// Attendance says which ranks made the passes since Join themselves.
type Attendance struct {
	Away   []bool // by rank: it made only a shadow pass last time; nil: no rank did
	Last   int    // the lowest rank that made the last pass that any rank made itself
	Uneven bool   // some pass was made by some ranks and shadowed by others
}

// First returns the lowest rank that made the last pass itself, -1 if none did.
func (a Attendance) First() int {
	if a.Away == nil {
		return 0
	}
	return slices.Index(a.Away, false)
}

// Join starts a period in which ranks may make different numbers of passes that reduce. A rank that has
// no more passes makes shadow passes ([Reducer.Shadow]) until no rank has one. All ranks call Join,
// and later Leave. With byActive, averages are over the ranks that made the pass themselves instead
// of all; Finish then waits for the outcome, which tells how many these are.
//
// In this period the ranks of a static graph exchange in each pass which gradients they have, and wait
// for that if this rank's pass did not use a gradient that is asked for. As with UnusedFound, a
// gradient that no active rank uses remains zeroed.
func (r *Reducer) Join(byActive bool) {
	r.attendance, r.byActive, r.joining = Attendance{}, byActive, true
}

// Leave ends the period that Join started. It zeroes the gradients.
func (r *Reducer) Leave() {
	r.byActive, r.joining, r.left = false, false, nil
	r.status.isStale = true // it holds the flags of the last pass
	r.freshen()
}

// Shadow starts a pass in place of Begin, on a rank that has no more passes while others may. It starts
// the same reductions as they do, with zeros; Finish ends it. The gradients of this rank are discarded
// and replaced by those of the other ranks. If leave is true, or if Finish gets a cause, it is the last
// pass of all ranks: the gradients must not be used, and each rank gets a [*LeftError]. The exception
// is that all ranks leave only because they have no more passes: then there is no error.
func (r *Reducer) Shadow(leave bool) {
	r.begin(event{kind: begin, sync: true, shadow: true}, nil)
	r.isLeaving = leave
	r.stats.Shadowed++
}

// Left returns the [*LeftError] that ended the passes of all ranks since Join, or nil. It waits for the
// outcome of the last pass as Err does.
func (r *Reducer) Left() error {
	if r.awaitOutcome(); r.left != nil {
		return r.left
	}
	return nil
}

// Attendance returns which ranks made the passes since Join. It waits for the outcome of the last pass
// as Err does.
func (r *Reducer) Attendance() Attendance {
	r.awaitOutcome()
	return r.attendance
}

// attend updates the attendance after a pass. away are the ranks that shadowed the pass, nil for none.
func (r *Reducer) attend(away []bool) {
	a := &r.attendance
	if a.Away = away; away != nil {
		r.status.isStale = true
	}
	if first := a.First(); first >= 0 {
		a.Last, a.Uneven = first, a.Uneven || away != nil
	}
}

// divide changes averages over all ranks to averages over the ranks that made the pass themselves, if
// Join was called with byActive. The other ranks contributed zeros.
func (r *Reducer) divide() error {
	away := 0
	for _, is := range r.attendance.Away {
		if is {
			away++
		}
	}
	ranks := r.pg.Size()
	if !r.byActive || away == 0 || away == ranks {
		return nil
	}
	d, acc := r.pg.Device(), device.Accum{Alpha: float64(ranks) / float64(ranks-away)}
	for i := range r.buckets {
		flat := r.buckets[i].flat
		if err := d.Kernels().Axpby(d.Compute(), flat, acc, flat); err != nil {
			return fmt.Errorf("reducer: rank %d: averaging %s over %d of %d ranks: %w", r.pg.Rank(), r.buckets[i].name, ranks-away, ranks, err)
		}
	}
	return nil
}

// LeftError says that some ranks have left the passes that all ranks make together, so that no rank can
// make another: see [Reducer.Shadow]. Every rank gets it for the pass in which they leave. No rank
// applies that step, and the group remains usable. It matches [device.ErrSkipped].
type LeftError struct {
	Left []Left // by rank
	skipped
}

// Left is a rank that left.
type Left struct {
	Rank  int
	Cause string // "": it ran out of inputs
}

// add adds a rank that leaves. theirs is its report; err is the error of reading the report.
func (e *LeftError) add(rank int, theirs *report, err error) {
	l := Left{Rank: rank}
	switch {
	case err != nil:
		l.Cause = fmt.Sprintf("its report cannot be read: %v", err)
	case theirs == nil:
		l.Cause = "it left no report"
	default:
		l.Cause = theirs.Cause
	}
	e.Left = append(e.Left, l)
}

// isEnd reports whether all ranks in e left because they ran out of inputs.
func (e *LeftError) isEnd() bool {
	return !slices.ContainsFunc(e.Left, func(l Left) bool { return l.Cause != "" })
}

func (e *LeftError) Error() string {
	var b strings.Builder
	for i, l := range e.Left {
		if i > 0 {
			b.WriteString("; ")
		}
		if l.Cause == "" {
			fmt.Fprintf(&b, "rank %d ran out of inputs", l.Rank)
		} else {
			fmt.Fprintf(&b, "rank %d failed: %s", l.Rank, l.Cause)
		}
	}
	b.WriteString(": training ends on every rank")
	return b.String()
}
