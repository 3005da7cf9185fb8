package comm

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/flight"
)

// Work is a call that was started. It may be pending, done or failed.
type Work struct {
	call  backend.Call
	group *group
	task  backend.Task
	err   error // why the call could not be started

	entry    flight.Entry
	created  time.Duration // by the watchdog's clock, like deadline
	deadline time.Duration
	running  atomic.Int64 // when the call started to run, in nanoseconds after created; 0 if it has not

	// The watchdog's mu guards the fields below. older and younger are the neighbors in the
	// list of calls in flight.
	older, younger *Work
	isOverdue      bool
	hasEnded       bool
}

// Wait makes the work that is enqueued on the device's compute stream from now on run after
// the call. On the CPU, whose stream runs inline, and in the mode BlockingWait, Wait blocks
// until the call is done. Otherwise, on a GPU, it does not block. It returns the call's error
// if that is known by then, or the cause of ctx.
func (w *Work) Wait(ctx context.Context) error {
	if w.err != nil {
		return w.report(w.err)
	}
	if w.group.watchdog.mode == BlockingWait {
		if err := w.task.Sync(ctx); err != nil {
			return w.report(err)
		}
	}
	return w.report(w.task.Join(ctx, w.group.dev.Compute()))
}

// report notes that a method returns err to the program, if err is the failure of a call, and
// returns err.
func (w *Work) report(err error) error {
	if err != nil && errors.As(err, new(*CallError)) {
		w.group.reported.Store(true)
	}
	return err
}

// Sync blocks until the call is done or has failed, or until ctx ends. The end of ctx does
// not end the call.
func (w *Work) Sync(ctx context.Context) error {
	if w.err != nil {
		return w.report(w.err)
	}
	return w.report(w.task.Sync(ctx))
}

// State returns the call's state and, if the call has failed, why.
func (w *Work) State() (State, error) {
	if w.err != nil {
		return Failed, w.report(w.err)
	}
	s, err := w.task.State()
	return s, w.report(err)
}

// Started returns the moment at which the call started to run, for a trace.
func (w *Work) Started() Moment { return Moment{w, false} }

// Ended returns the moment at which the call was done, for a trace.
func (w *Work) Ended() Moment { return Moment{w, true} }

// Moment is the start or the end of a call, which may still lie in the future.
type Moment struct {
	w   *Work
	end bool
}

// Time returns the host's time of the moment. It returns the zero Time if the moment has not
// come. On a GPU the first call of Time switches on the timing of the group's calls. For calls
// that were started before, it returns the time at which the host noticed, a few milliseconds
// late.
func (m Moment) Time() time.Time {
	if m.w.err != nil {
		return time.Time{}
	}
	m.w.group.timed.Store(true)
	begin, end := m.w.task.Span()
	if m.end {
		return end
	}
	return begin
}

func (w *Work) String() string {
	s, err := w.State()
	if err != nil {
		return fmt.Sprintf("%v: %v: %v", &w.call, s, err)
	}
	return fmt.Sprintf("%v: %v", &w.call, s)
}

// observed is a Work as an Observer: the backend notifies it when the call runs and ends.
type observed Work

// age returns the time from the call's creation to at.
func (o *observed) age(at time.Time) time.Duration {
	return at.Sub(o.group.watchdog.startTime) - o.created
}

func (o *observed) Running(at time.Time) {
	o.running.Store(max(1, int64(o.age(at))))
	o.entry.Running(at)
}

func (o *observed) Ended(at time.Time, err error) {
	o.entry.Ended(at, err != nil)
	if l := o.group.stragglers; l != nil && err == nil && o.call.Kind != backend.Send && o.call.Kind != backend.Recv {
		l.note(o.call.Seq, o.age(at)-time.Duration(o.running.Load()))
	}
	o.group.watchdog.ended((*Work)(o), err)
}

// progress returns the latest state of a pending call that the backend has notified. It does
// not ask the driver, which may hang.
func (w *Work) progress() State {
	if w.running.Load() > 0 {
		return Running
	}
	return Queued
}
