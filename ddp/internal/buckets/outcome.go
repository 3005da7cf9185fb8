package buckets

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp/reducer"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/awake"
	"github.com/goddp/goddp/profile"
)

// Finish ends the pass. It starts the remaining reductions and makes the compute stream wait for them,
// as [comm.Work.Wait] does, or leaves the waiting to [Reducer.Settle] for each gradient. The parameter cause
// says why the pass failed on this rank; nil means that it did not fail. If cause is not nil, all ranks
// get an error that contains the text of cause. (A pass that only accumulates ignores cause: the engine
// notes it in [Reducer.State] of its gradients.)
//
// Finish waits for the outcome and returns it in these cases: the device has already completed the pass
// (always so on the CPU); the pass failed on this rank, for example because a gradient is missing; or Join
// was called with byActive. Otherwise Finish does not wait for the outcome. It then returns nil or the
// error of a reduction that has failed already, and [Reducer.Err] returns the outcome.
//
// The outcome is nil, a [*reducer.MissingGradientError], another error that matches [device.ErrSkipped], or the
// error of a reduction. After a failed reduction the group is aborted. If ctx ends, Finish aborts the
// group, because the reductions still use the buckets.
//
// With Options.CheckNonFinite, Finish waits until the device has checked all gradients before it starts
// the reduction of the last bucket.
func (r *Reducer) Finish(ctx context.Context, cause error) error {
	if rec := r.captured; rec != nil && rec.refused != nil {
		return rec.refused
	}
	reduces := r.core.phase == reducing
	mine := report{Pass: r.number, Missing: reducer.Missing{Rank: r.pg.Rank()}}
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
	// An error of the reducer itself also makes the pass fail: this rank does not apply the step, so the
	// other ranks must not apply it either.
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
	if r.capturing() != nil {
		reports = false // the pass does not run
	}
	if reports {
		// This rank publishes its report before its flag is reduced, so a rank that sees the flag finds the report.
		if err := r.reports.publish(ctx, mine); err != nil {
			r.early = errors.Join(r.early, err)
		}
	}
	r.perform(actions, nil)
	start := time.Now()
	switch {
	case r.early != nil:
		// If the pass failed on this rank, the host waits for the reductions. Otherwise the host could
		// get two passes ahead of the other ranks. A report of the later pass would replace the report of this
		// pass (see reports.key) before the other ranks have read it.
		r.err, r.joined = r.wait(ctx, r.works, reducer.Reduction.Sync), len(r.works)
	case reduces && r.separate && r.hook == nil && r.pg.ErrorMode() != comm.BlockingWait && !r.status.isGated():
		at := len(r.works) - 2 // the index of the reduction of the status
		r.err = r.hold(ctx, r.works[at:at+1])
	default:
		r.err = r.join(ctx, len(r.works))
	}
	if rec := r.capturing(); rec != nil {
		return r.finishCaptured(rec, reduces, !mine.isEmpty() || r.requested != 0, errors.Join(r.early, r.err))
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
// outcome is not known yet, Err waits until the reductions have ended and the compute stream has copied
// the status to the host. Each of these waits is limited by the group's timeout. If a wait exceeds the
// timeout, the group is aborted, and Err returns an error.
func (r *Reducer) Err() error {
	r.capturing()
	r.isUnread = false
	if r.Pending() {
		start := time.Now()
		r.err = r.outcome(r.pg.Context())
		r.conclude(start)
	}
	return r.err
}

// unreadError returns the result of Err if the program has not yet received the outcome of the last pass.
// Otherwise it returns nil.
func (r *Reducer) unreadError() error {
	if r.Pending() || r.isUnread {
		return r.Err()
	}
	return nil
}

// awaitOutcome waits for the outcome as Err does, but the program does not receive the outcome: if it is
// an error, unreadError still returns it afterwards.
func (r *Reducer) awaitOutcome() {
	if r.Pending() {
		r.isUnread = r.Err() != nil
	}
}

// Reject adds err to the outcome of the last finished pass, and discards the gradients: they were reduced,
// but must not be used. All ranks must call Reject for the same pass. Reject waits for the outcome as Err
// does, and returns the outcome joined with err.
func (r *Reducer) Reject(err error) error {
	if r.Err() == nil {
		r.stats.Skipped++
	}
	r.err = errors.Join(r.err, err)
	r.zeroAll()
	return r.err
}

// deviceWait limits the first wait of the method outcome. This wait is for the device to complete the
// pass. Usually the device completes the pass within this time. The waits for the single reductions, which
// follow, then return at once.
const deviceWait = time.Second

// outcome waits until the outcome of the pass is known, and returns it. If the reductions fail or do not
// end in time, outcome aborts the group.
func (r *Reducer) outcome(ctx context.Context) error {
	at := r.pending
	r.pending = nil
	reach(ctx, at, min(deviceWait, r.pg.Timeout())) // an error is ignored here: the calls of wait and reach below return it
	if a, ok := at.(*copiedStatus); !ok || !a.isCopied() || r.pg.Failed() {
		if n := len(r.works); n > 0 {
			if last, ok := r.works[n-1].(*comm.Work); ok {
				last.Done() // ask about the last one first: if it has ended, no query of the driver is needed for the earlier ones
			}
		}
		if err := r.wait(ctx, r.works, reducer.Reduction.Sync); err != nil && !r.status.isGated() {
			return err
		} // otherwise the gate knows whether the updates ran
	}
	if err := r.awaitDevice(ctx, at, "the reductions"); err != nil {
		return err
	}
	if r.status.isRefused() {
		return &reducer.RefusedError{Rank: r.pg.Rank()}
	}
	away := r.status.shadows()
	r.attend(away)
	if sig := r.status.stopRequested(); sig != 0 {
		r.agreeToStop(sig)
		r.isStale = true
	}
	if raised := r.status.raised(); raised != nil {
		err := r.reports.collect(ctx, r.number, raised, away)
		errors.As(err, &r.left)
		return err
	}
	r.learnUse()
	return r.divide()
}

// awaitDevice waits until the device has reached the event e, at which it has finished what. If this takes longer
// than the group's timeout, awaitDevice aborts the group and returns an error.
func (r *Reducer) awaitDevice(ctx context.Context, e device.Event, what string) error {
	err := reach(ctx, e, r.pg.Timeout())
	if err != nil {
		err = fmt.Errorf("reducer: rank %d: the device did not finish %s within %v: %w", r.pg.Rank(), what, r.pg.Timeout(), err)
		r.pg.Abort(err)
	}
	return err
}

// reach waits until the device has reached the event e. If this takes longer than `most`, reach returns
// an error.
func reach(ctx context.Context, e device.Event, most time.Duration) error {
	if done, err := e.Done(); done || err != nil {
		return err
	}
	ctx, cancel := awake.WithTimeoutCause(ctx, most, comm.ErrTimeout)
	defer cancel()
	return e.Sync(ctx)
}

// conclude ends a pass whose outcome is known. start is the time at which the wait for the outcome began.
func (r *Reducer) conclude(start time.Time) {
	reduced, now := len(r.works) > 0, time.Now()
	if reduced && r.trace.On() {
		r.trace.Add(profile.Span{Track: profile.Host, Name: "wait for reductions", Begin: profile.At(start), End: profile.At(now)})
	}
	r.waited += now.Sub(start)
	clear(r.works)
	r.works, r.joined = r.works[:0], 0
	if r.err != nil {
		if reduced {
			r.stats.Skipped++
		}
		r.isStale = true
		r.zeroAll() // the pass failed, so the next pass must overwrite the gradients, not add to them
	}
}

// join makes the compute stream wait for the first n reductions of the pass, unless it does so already.
func (r *Reducer) join(ctx context.Context, n int) error {
	if n <= r.joined {
		return nil
	}
	works := r.works[r.joined:n]
	r.joined = n
	if err := r.hold(ctx, works); err != nil {
		return err
	}
	if n == len(r.works) {
		if err := r.status.closeGate(); err != nil {
			return err
		}
	}
	return r.copyCaptured()
}

// hold makes the compute stream wait for reductions, and records the wait in the trace.
func (r *Reducer) hold(ctx context.Context, works []reducer.Reduction) error {
	if !r.trace.On() {
		return r.wait(ctx, works, reducer.Reduction.Wait)
	}
	compute := r.pg.Device().Compute()
	start := compute.Record()
	err := r.wait(ctx, works, reducer.Reduction.Wait)
	r.trace.Add(profile.Span{Track: profile.Compute, Name: "wait for reductions", Begin: start, End: compute.Record(), Waits: true})
	return err
}

// wait calls the method `how` of each reduction in works: Reduction.Wait or Reduction.Sync. If a call
// returns an error, wait aborts the group, because the other ranks would otherwise apply the step. After
// the abort, wait waits until no reduction of the pass uses the buckets any more, and returns the error.
func (r *Reducer) wait(ctx context.Context, works []reducer.Reduction, how func(reducer.Reduction, context.Context) error) error {
	for _, w := range works {
		err := how(w, ctx)
		if err == nil {
			continue
		}
		if r.captured != nil { // the call was not captured: nothing runs
			return err
		}
		r.pg.Abort(err) // without Abort the other ranks may not notice err: it may come from ctx or from this rank's hook
		for _, w := range r.works {
			w.Sync(r.pg.Context()) // returns soon: the group is broken
		}
		return err
	}
	return nil
}
