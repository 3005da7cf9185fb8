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

// Finish ends the pass. It starts the remaining reductions and makes the compute stream wait for them
// as [comm.Work.Wait] does, or leaves that to [Reducer.Settle] for each gradient. cause is the error that
// cut the pass short, or nil; if it is not nil, the other ranks get it.
//
// Finish returns why the gradients must not be used, if that is known already: on a device that runs
// work inline, and if this rank lacks a gradient, found one that is not finite, or was given a cause.
// Otherwise Finish does not wait, and [Reducer.Err] returns the outcome: a [*MissingGradientError], a
// [*NonFiniteError], or the error of a reduction, after which the group is broken. If ctx ends, Finish
// aborts the group, because the buckets are in use.
//
// With Options.CheckNonFinite Finish waits for the device to complete the pass before it starts the
// reduction of the last bucket.
func (r *Reducer) Finish(ctx context.Context, cause error) error {
	reduces := r.core.phase == reducing
	mine := report{Missing: Missing{Rank: r.pg.Rank()}}
	if reduces && r.scan != nil {
		found, err := r.nonFinite(ctx)
		mine.NonFinite, r.early = found, errors.Join(r.early, err)
	}
	if reduces {
		r.early = errors.Join(r.early, r.exchangeUse())
		if len(r.change.NewlyUsed)+len(r.change.NoLongerUsed) > 0 {
			mine.Graph = &r.change
		}
	}
	// An error of the reducer itself is a reason to tell the other ranks too: this rank will not
	// apply the step.
	if cause = errors.Join(cause, r.early); cause != nil {
		mine.Cause = cause.Error()
	}
	r.isLeaving = r.isLeaving || r.core.shadow && !mine.isEmpty()
	r.requested = r.stopToRequest()
	actions := r.step(event{kind: finish, failed: r.isLeaving || !mine.isEmpty(), stop: r.requested != 0})
	r.scale = 1
	for _, a := range actions {
		if a.kind == noteMissing {
			mine.Params = append(mine.Params, r.params[a.param].Name)
		}
	}
	reports := reduces && (r.isLeaving || !mine.isEmpty())
	if reports {
		// The report is published before the flag is visible, so a rank that sees the flag finds the report.
		if err := r.reports.publish(ctx, mine); err != nil {
			r.early = errors.Join(r.early, err)
		}
	}
	r.perform(actions, nil)
	start := time.Now()
	switch {
	case r.early != nil:
		// A rank that failed may wait here. Otherwise it could replace its report before others read it.
		r.err, r.joined = r.wait(ctx, r.works, Reduction.Sync), len(r.works)
	case reduces && r.separate && r.hook == nil && r.pg.ErrorMode() != comm.BlockingWait:
		at := len(r.works) - 2 // the reduction of the status
		r.err = r.hold(ctx, r.works[at:at+1])
	default:
		r.err = r.join(ctx, len(r.works))
	}
	if reduces && r.err == nil {
		r.pending, r.err = r.status.copyToHost()
	}
	if r.err == nil && r.Pending() {
		known, err := r.pending.Done()
		if !known && err == nil && !reports && r.early == nil && !r.byActive {
			return nil
		}
		if r.err = r.join(ctx, len(r.works)); r.err == nil {
			r.err = r.outcome(ctx)
		}
	}
	r.err = errors.Join(r.early, r.err)
	r.conclude(start)
	return r.err
}

// Pending reports whether Err may have to wait.
func (r *Reducer) Pending() bool { return r.pending != nil }

// Err returns why the gradients of the last pass must not be used, or nil if they may be used. If the
// outcome is not known yet, Err waits for the reductions, which have deadlines, and then at most the
// group's timeout for the compute stream.
func (r *Reducer) Err() error {
	r.isUnread = false
	if r.Pending() {
		start := time.Now()
		r.err = r.outcome(context.Background())
		r.conclude(start)
	}
	return r.err
}

// unreadError returns the outcome of the last pass as Err does if the program has not asked for it, and
// otherwise nil.
func (r *Reducer) unreadError() error {
	if r.Pending() || r.isUnread {
		return r.Err()
	}
	return nil
}

// awaitOutcome waits for the outcome as Err does, but the outcome still counts as not asked for.
func (r *Reducer) awaitOutcome() {
	if r.Pending() {
		r.isUnread = r.Err() != nil
	}
}

// Reject adds err to the outcome of the pass that was finished last: although the gradients were
// reduced, they must not be used. All ranks must call it for the same pass. It returns the outcome, for
// which it waits as Err does.
func (r *Reducer) Reject(err error) error {
	if r.Err() == nil {
		r.stats.Skipped++
	}
	r.err = errors.Join(r.err, err)
	r.freshen()
	return r.err
}

// deviceWait is how long outcome waits for the device before it asks the reductions for errors. The wait
// for the device has less latency.
const deviceWait = time.Second

// outcome waits until the outcome of the pass is known. If it fails, the group is broken.
func (r *Reducer) outcome(ctx context.Context) error {
	at := r.pending
	r.pending = nil
	reach(ctx, at, min(deviceWait, r.pg.Timeout())) // the calls below return the error
	if err := r.wait(ctx, r.works, Reduction.Sync); err != nil {
		return err
	}
	if err := reach(ctx, at, r.pg.Timeout()); err != nil {
		err = fmt.Errorf("reducer: rank %d: the device did not finish the reductions within %v: %w", r.pg.Rank(), r.pg.Timeout(), err)
		r.pg.Abort(err)
		return err
	}
	away := r.status.shadows()
	r.attend(away)
	r.agreeToStop()
	if raised := r.status.raised(); raised != nil {
		err := r.reports.collect(ctx, raised, away)
		errors.As(err, &r.left)
		return err
	}
	r.learnUse()
	return r.divide()
}

// reach waits until the event e is reached, but no longer than most.
func reach(ctx context.Context, e device.Event, most time.Duration) error {
	if done, err := e.Done(); done || err != nil {
		return err
	}
	ctx, cancel := awake.WithTimeoutCause(ctx, most, comm.ErrTimeout)
	defer cancel()
	return e.Sync(ctx)
}

// conclude ends a pass whose outcome is known. start is when the wait for the outcome began.
func (r *Reducer) conclude(start time.Time) {
	reduced := len(r.works) > 0
	if reduced && r.trace.On() {
		r.trace.Add(profile.Span{Track: profile.Host, Name: "wait for reductions", Begin: profile.At(start), End: profile.At(time.Now())})
	}
	clear(r.works)
	r.works, r.joined = r.works[:0], 0
	if r.err != nil {
		if reduced {
			r.stats.Skipped++
		}
		r.status.isStale = true
		r.freshen() // the next pass must not add to these gradients
	}
}

// join makes the compute stream wait for the first n reductions of the pass.
func (r *Reducer) join(ctx context.Context, n int) error {
	if n <= r.joined {
		return nil
	}
	works := r.works[r.joined:n]
	r.joined = n
	return r.hold(ctx, works)
}

// hold makes the compute stream wait for reductions, and records the wait in the trace.
func (r *Reducer) hold(ctx context.Context, works []Reduction) error {
	if !r.trace.On() {
		return r.wait(ctx, works, Reduction.Wait)
	}
	compute := r.pg.Device().Compute()
	start := compute.Record()
	err := r.wait(ctx, works, Reduction.Wait)
	r.trace.Add(profile.Span{Track: profile.Compute, Name: "wait for reductions", Begin: start, End: compute.Record(), Waits: true})
	return err
}

// wait calls how, which is Wait or Sync, for each of the reductions. If one returns an error, wait aborts
// the group, because the other ranks would apply the step, and then waits until no reduction of the
// pass uses the buckets any more.
func (r *Reducer) wait(ctx context.Context, works []Reduction, how func(Reduction, context.Context) error) error {
	for _, w := range works {
		err := how(w, ctx)
		if err == nil {
			continue
		}
		r.pg.Abort(err) // err may be of ctx, or of a hook on this rank only
		for _, w := range r.works {
			w.Sync(context.Background()) // returns soon: the group is broken
		}
		return err
	}
	return nil
}
