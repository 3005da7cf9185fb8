package reducer

import (
	"fmt"
	"slices"
	"strings"

	"github.com/goddp/goddp/device"
)

// Attendance is which ranks had passes of their own to make since Join.
type Attendance struct {
	Away   []bool // by rank: it only shadowed the others in the last pass; nil: none did
	Last   int    // the lowest rank that had the latest pass that any had
	Uneven bool   // there was a pass that some had and some had not
}

// First is the lowest rank that had the last pass, -1 if none had.
func (a Attendance) First() int {
	if a.Away == nil {
		return 0
	}
	return slices.Index(a.Away, false)
}

// Join begins a time in which ranks need not have the same number of passes that
// reduce: who has none any more makes shadows ([Reducer.Shadow]) until nobody has
// one. All ranks call it, and Leave when that is over. With byActive, averages are
// over the ranks that had the pass, in place of all: Finish then waits for the
// outcome, which is what tells how many these are.
//
// Within it the ranks of a static graph tell each other in each pass which gradients
// they have, and wait for that where a gradient is asked for that this rank's pass did
// not use: as with UnusedFound, what no rank with a pass of its own uses stays zeroed.
func (r *Reducer) Join(byActive bool) {
	r.attendance, r.byActive, r.joining = Attendance{}, byActive, true
}

// Leave ends what Join began. The gradients are zeroed.
func (r *Reducer) Leave() {
	r.byActive, r.joining, r.left = false, false, nil
	r.status.stale = true // what was told
	r.freshen()
}

// Shadow begins a pass in place of Begin, on a rank that has none to make while
// others may: every reduction that they start is started here, with zeros, and
// Finish ends it. What gradients were here is forgotten; those of the other ranks
// are here behind it. With leave, or if Finish is given a cause, it is the last
// pass of all ranks: their gradients must not be used, and each of them gets a
// [*LeftError], unless all leave for no other reason than that they have no pass
// to make.
func (r *Reducer) Shadow(leave bool) {
	r.begin(event{kind: begin, sync: true, shadow: true}, nil)
	r.leaving = leave
	r.stats.Shadowed++
}

// Left is the [*LeftError] that ended the passes of all ranks since Join, nil if
// none did. It waits for the outcome of the last pass as Err does.
func (r *Reducer) Left() error {
	if r.look(); r.left != nil {
		return r.left
	}
	return nil
}

// Attendance is who has had passes since Join. It waits for the outcome of the last
// pass as Err does.
func (r *Reducer) Attendance() Attendance {
	r.look()
	return r.attendance
}

// attend takes from the outcome of a pass who shadowed it.
func (r *Reducer) attend(away []bool) {
	a := &r.attendance
	if a.Away = away; away != nil {
		r.status.stale = true
	}
	if first := a.First(); first >= 0 {
		a.Last, a.Uneven = first, a.Uneven || away != nil
	}
}

// divide makes the averages of a pass those over the ranks that had it, where that
// is asked for: the others added zeros.
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

// LeftError says that ranks have left the passes that all make together, so that
// nobody can make any more: see [Reducer.Shadow]. Every rank gets it for the pass
// in which they leave; none applies that step, and the group stays usable. It
// matches [device.ErrSkipped].
type LeftError struct {
	Left []Left // by rank
}

// Left is one rank that left.
type Left struct {
	Rank  int
	Cause string // "": it ran out of inputs
}

// add notes that a rank leaves, by its report or the error of reading that.
func (e *LeftError) add(rank int, theirs *report, err error) {
	l := Left{Rank: rank}
	switch {
	case err != nil:
		l.Cause = fmt.Sprintf("its report is not to be had: %v", err)
	case theirs == nil:
		l.Cause = "it left no report"
	default:
		l.Cause = theirs.Cause
	}
	e.Left = append(e.Left, l)
}

// over tells whether all that left had come to the end of their inputs.
func (e *LeftError) over() bool {
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

// Is makes errors.Is(err, device.ErrSkipped) hold.
func (e *LeftError) Is(target error) bool { return target == device.ErrSkipped }
