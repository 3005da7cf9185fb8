package buckets

import (
	"fmt"
	"slices"

	"github.com/goddp/goddp/device"
)

// Attendance says which ranks were active in the passes since Join. A rank is active in a pass unless it
// makes the pass as a shadow pass.
type Attendance struct {
	Away   []bool // by rank: the rank made the last pass as a shadow pass; nil: no rank did
	Last   int    // the lowest active rank of the latest pass in which any rank was active
	Uneven bool   // there was a pass in which some ranks were active and others were not
}

// First returns the lowest rank that was active in the last pass. It returns -1 if all ranks made the
// last pass as a shadow pass.
func (a Attendance) First() int {
	if a.Away == nil {
		return 0
	}
	return slices.Index(a.Away, false)
}

// Join starts a period in which ranks may make different numbers of passes that reduce. A rank that has
// no more passes makes shadow passes ([Reducer.Shadow]) until no rank has a pass left. All ranks must
// call Join, and later Leave. With byActive, averages are only over the ranks that did not make the pass
// as a shadow pass; Finish then waits for the outcome, which tells the number of these ranks.
//
// With UnusedFixed, the ranks exchange which gradients they have in each pass of this period. So Grad
// may wait for the outcome, as with UnusedFound. If no rank uses a parameter, its gradient stays Zeroed.
func (r *Reducer) Join(byActive bool) {
	r.attendance, r.byActive, r.joining = Attendance{}, byActive, true
}

// Leave ends the period that Join started. It discards all gradients.
func (r *Reducer) Leave() {
	r.byActive, r.joining, r.left = false, false, nil
	r.isStale = true // the status holds the flags of the last pass
	r.zeroAll()
}

// Shadow starts a shadow pass. A rank that has no more passes calls Shadow in place of Begin, while other
// ranks may still make passes. Finish ends the shadow pass. A shadow pass starts the same reductions as
// the passes of the other ranks, with zeros. It discards the gradients of this rank and receives the
// averages.
//
// If leave is true, or if the parameter cause of Finish is not nil, this rank leaves. The pass is then the
// last pass of all ranks: the gradients must not be used, and each rank gets a [*reducer.LeftError]. If all ranks
// leave in the same pass, and cause is nil on all of them, there is no error.
func (r *Reducer) Shadow(leave bool) {
	r.begin(event{kind: begin, sync: true, shadow: true}, nil)
	r.isLeaving = leave
	r.stats.Shadowed++
}

// Left returns the [*reducer.LeftError] that has ended the passes of all ranks since Join, or nil if ranks can
// still make passes. Left waits for the outcome of the last pass as Err does.
func (r *Reducer) Left() error {
	if rec := r.capturing(); rec != nil && rec.isFinished {
		return rec.Refuse("the step has two backward passes that reduce")
	}
	if r.awaitOutcome(); r.left != nil {
		return r.left
	}
	return nil
}

// Attendance returns which ranks were active in the passes since Join. It waits for the outcome of the
// last pass as Err does.
func (r *Reducer) Attendance() Attendance {
	r.awaitOutcome()
	return r.attendance
}

// attend updates the attendance after a pass. The parameter `away` says, by rank, whether the rank made
// the pass as a shadow pass; nil means that no rank did.
func (r *Reducer) attend(away []bool) {
	a := &r.attendance
	if a.Away = away; away != nil {
		r.isStale = true
	}
	if first := a.First(); first >= 0 {
		a.Last, a.Uneven = first, a.Uneven || away != nil
	}
}

// divide corrects the averages if Join was called with byActive. The reductions divided by the number
// of all ranks, but the ranks that made a shadow pass contributed zeros. After divide, the averages are
// over the other ranks.
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
