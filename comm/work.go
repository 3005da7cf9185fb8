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

// Work is a call in flight, or done.
type Work struct {
	call  backend.Call
	group *group
	task  backend.Task
	err   error // of a call that could not be started

	entry    flight.Entry
	created  time.Duration // on the watchdog's clock, as deadline is
	deadline time.Duration
	running  atomic.Int64 // since when, in nanoseconds after created; 0: not yet

	// The watchdog's, under its lock: the call's place among those in flight.
	older, younger *Work
	isOverdue      bool
	hasEnded       bool
}

// Wait makes what is computed from now on, on the device's compute stream,
// see the call's result. On the CPU, whose stream runs inline, and in
// BlockingWait mode, it blocks until the call is done; else, on a GPU, it does
// not block. Its error is the call's where that is known, or ctx's cause.
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

// hear notes that the program is told err, if that is a call's failure.
func (w *Work) report(err error) error {
	if err != nil && errors.As(err, new(*CallError)) {
		w.group.reported.Store(true)
	}
	return err
}

// Sync blocks until the call is done, has failed, or ctx ends: the call
// itself then goes on.
func (w *Work) Sync(ctx context.Context) error {
	if w.err != nil {
		return w.report(w.err)
	}
	return w.report(w.task.Sync(ctx))
}

// State tells where the call is, and why it failed if it has.
func (w *Work) State() (State, error) {
	if w.err != nil {
		return Failed, w.report(w.err)
	}
	s, err := w.task.State()
	return s, w.report(err)
}

// Started and Ended are moments for a trace: when the call began to run, and
// when it was done.
func (w *Work) Started() Moment { return Moment{w, false} }

// Ended is the moment at which the call was done.
func (w *Work) Ended() Moment { return Moment{w, true} }

// Moment is one end of a call's run, which may not have come yet.
type Moment struct {
	w   *Work
	end bool
}

// Time is when the moment was, on the host's clock; zero before it has come.
// On a GPU, the calls of a group are timed from when it is first asked: those
// before have the times at which somebody noticed, a few milliseconds late.
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

// observed is a Work as the backend sees it, which tells it how the call goes
// on.
type observed Work

// age is for how long the call has been there.
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

// progress is the state of a call in flight as the backend told it last: nobody
// asks a driver.
func (w *Work) progress() State {
	if w.running.Load() > 0 {
		return Running
	}
	return Queued
}
