package reducer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/awake"
	"github.com/goddp/goddp/profile"
)

// Finish ends the pass: it starts the reductions that were not, makes the
// compute stream wait for them as [comm.Work.Wait] does, or leaves that to
// [Reducer.Settle], gradient by gradient, and returns why the gradients must not
// be used, where that is known by then. It is known on a device that runs work
// inline; and where this rank lacks a gradient, or found one that is not finite,
// or cause is not nil, which is what cut the pass short: the other ranks are told.
// Else Finish does not wait, and [Reducer.Err] has the outcome: a
// [*MissingGradientError], a [*NonFiniteError], or the failure of a reduction,
// after which the group is broken. A ctx that ends aborts the group: the buckets
// are in use.
//
// With Options.CheckNonFinite it waits, before it starts the last bucket's
// reduction, for the device to get through the pass.
func (r *Reducer) Finish(ctx context.Context, cause error) error {
	reduces := r.core.phase == reducing
	mine := report{Missing: Missing{Rank: r.pg.Rank()}}
	if reduces && r.scan != nil {
		found, err := r.nonFinite(ctx)
		mine.NonFinite, r.early = found, errors.Join(r.early, err)
	}
	if reduces {
		r.early = errors.Join(r.early, r.tell())
		if len(r.change.Appear)+len(r.change.Vanish) > 0 {
			mine.Graph = &r.change
		}
	}
	// What the reducer itself could not do is as good a reason to tell the
	// others: this rank will not apply the step.
	if cause = errors.Join(cause, r.early); cause != nil {
		mine.Cause = cause.Error()
	}
	r.leaving = r.leaving || r.core.shadow && !mine.empty()
	r.asked = r.askedToStop()
	actions := r.step(event{kind: finish, failed: r.leaving || !mine.empty(), stop: r.asked != 0})
	r.scale = 1
	for _, a := range actions {
		if a.kind == lack {
			mine.Params = append(mine.Params, r.params[a.param].Name)
		}
	}
	told := reduces && (r.leaving || !mine.empty())
	if told {
		// Before the flag can be seen, so that who sees it finds the report.
		if err := r.reports.publish(ctx, mine); err != nil {
			r.early = errors.Join(r.early, err)
		}
	}
	r.perform(actions, nil)
	begun := time.Now()
	switch {
	case r.early != nil:
		// Who fails may wait, and must not get ahead of those who read its reports.
		r.err, r.joined = r.wait(ctx, r.works, Reduction.Sync), len(r.works)
	case reduces && r.apart && r.hook == nil && r.pg.ErrorMode() != comm.BlockingWait:
		at := len(r.works) - 2 // the status
		r.err = r.hold(ctx, r.works[at:at+1])
	default:
		r.err = r.join(ctx, len(r.works))
	}
	if reduces && r.err == nil {
		r.pending, r.err = r.status.show()
	}
	if r.err == nil && r.Pending() {
		known, err := r.pending.Done()
		if !known && err == nil && !told && r.early == nil && !r.byActive {
			return nil
		}
		if r.err = r.join(ctx, len(r.works)); r.err == nil {
			r.err = r.outcome(ctx)
		}
	}
	r.err = errors.Join(r.early, r.err)
	r.conclude(begun)
	return r.err
}

// Pending tells whether Err may have to wait.
func (r *Reducer) Pending() bool { return r.pending != nil }

// Err is why the gradients of the last pass must not be used; nil when they
// may be. It waits, where that is not known yet, for the reductions, which have
// deadlines, and at most the group's timeout for the compute stream to get past
// them.
func (r *Reducer) Err() error {
	r.untold = false
	if r.Pending() {
		begun := time.Now()
		r.err = r.outcome(context.Background())
		r.conclude(begun)
	}
	return r.err
}

// unasked is the outcome of the last pass where nobody has asked for it, as Err
// has it, else nil.
func (r *Reducer) unasked() error {
	if r.Pending() || r.untold {
		return r.Err()
	}
	return nil
}

// look makes the outcome known, as Err does, and leaves it to be asked for.
func (r *Reducer) look() {
	if r.Pending() {
		r.untold = r.Err() != nil
	}
}

// Reject adds err to the outcome of the pass that was finished last: the
// gradients must not be used although they were reduced, as every rank has found
// by itself. It returns the outcome, which it waits for as Err does.
func (r *Reducer) Reject(err error) error {
	if r.Err() == nil {
		r.stats.Skipped++
	}
	r.err = errors.Join(r.err, err)
	r.freshen()
	return r.err
}

// soon is how long a pass's outcome is waited for on the device alone, whose
// wait is the finer one, before the reductions are asked what holds it up.
const soon = time.Second

// outcome waits until the outcome of the pass is known. Where it fails to, the
// group is broken, and seen is left to the copy.
func (r *Reducer) outcome(ctx context.Context) error {
	at := r.pending
	r.pending = nil
	reach(ctx, at, min(soon, r.pg.Timeout())) // what fails there fails below
	if err := r.wait(ctx, r.works, Reduction.Sync); err != nil {
		return err
	}
	if err := reach(ctx, at, r.pg.Timeout()); err != nil {
		err = fmt.Errorf("reducer: rank %d: the device did not get past the reductions within %v: %w", r.pg.Rank(), r.pg.Timeout(), err)
		r.pg.Abort(err)
		return err
	}
	away := r.status.excused()
	r.attend(away)
	r.agreeToStop()
	if raised := r.status.raised(); raised != nil {
		err := r.reports.collect(ctx, raised, away)
		errors.As(err, &r.left)
		return err
	}
	r.learn()
	return r.divide()
}

// reach waits until e is reached, but not for long.
func reach(ctx context.Context, e device.Event, most time.Duration) error {
	if done, err := e.Done(); done || err != nil {
		return err
	}
	ctx, cancel := awake.WithTimeoutCause(ctx, most, comm.ErrTimeout)
	defer cancel()
	return e.Sync(ctx)
}

// conclude ends a pass whose outcome is known, after a wait that began then.
func (r *Reducer) conclude(begun time.Time) {
	reduced := len(r.works) > 0
	if reduced && r.trace.On() {
		r.trace.Add(profile.Span{Track: profile.Host, Name: "wait for reductions", Begin: profile.At(begun), End: profile.At(time.Now())})
	}
	clear(r.works)
	r.works, r.joined = r.works[:0], 0
	if r.err != nil {
		if reduced {
			r.stats.Skipped++
		}
		r.status.stale = true
		r.freshen() // the next pass must not add to this one's
	}
}

// join makes the compute stream wait for the first n of the pass's reductions.
func (r *Reducer) join(ctx context.Context, n int) error {
	if n <= r.joined {
		return nil
	}
	works := r.works[r.joined:n]
	r.joined = n
	return r.hold(ctx, works)
}

// hold makes the compute stream wait for reductions, which a trace shows.
func (r *Reducer) hold(ctx context.Context, works []Reduction) error {
	if !r.trace.On() {
		return r.wait(ctx, works, Reduction.Wait)
	}
	compute := r.pg.Device().Compute()
	begun := compute.Record()
	err := r.wait(ctx, works, Reduction.Wait)
	r.trace.Add(profile.Span{Track: profile.Compute, Name: "wait for reductions", Begin: begun, End: compute.Record(), Waits: true})
	return err
}

// wait waits for reductions of the pass in one of a Reduction's ways. When it
// returns an error, the group is broken, as the other ranks would apply what this
// one does not, and none of the pass uses the buckets any more.
func (r *Reducer) wait(ctx context.Context, works []Reduction, how func(Reduction, context.Context) error) error {
	for _, w := range works {
		err := how(w, ctx)
		if err == nil {
			continue
		}
		r.pg.Abort(err) // that may be ctx's, or a hook's on this rank alone
		for _, w := range r.works {
			w.Sync(context.Background()) // soon: the group is broken, all have the same cause
		}
		return err
	}
	return nil
}
