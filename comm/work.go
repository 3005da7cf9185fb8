package comm

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/goddp/goddp/comm/failure"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/capture"
	"github.com/goddp/goddp/internal/flight"
	"github.com/goddp/goddp/profile"
)

// Work is a call that was started. It may be pending, done or failed.
type Work struct {
	call  backend.Call
	group *group
	task  backend.Task
	err   error // why the call could not be started

	captured *capturedCall // nil unless the call is part of a captured step

	entry    flight.Entry
	created  time.Duration // when the call was created, by the watchdog's clock; deadline is by the same clock
	deadline time.Duration
	running  atomic.Int64 // when the call started to run, in nanoseconds after created; 0 before it runs

	// The watchdog's mu guards older, younger, isOverdue and hasEnded. older and younger are
	// the neighbors in the list of calls in flight.
	older, younger *Work
	isOverdue      bool
	hasEnded       bool
}

// Wait makes the device's compute stream wait for the call: work that the program enqueues on the
// stream after Wait has returned runs when the call is done. On the CPU, and in the mode BlockingWait,
// Wait also blocks until the call is done or has failed. On a GPU in the other modes, Wait does not
// block until the end of the call. Wait returns the call's error if the call has failed by the time
// that Wait returns. If ctx ends while Wait blocks, Wait returns the cause of ctx.
func (w *Work) Wait(ctx context.Context) error {
	if w.err != nil {
		return w.report(w.err)
	}
	if w.captured != nil {
		return w.captured.wait(ctx, w)
	}
	if w.group.watchdog.mode == BlockingWait {
		if err := w.task.Sync(ctx); err != nil {
			return w.report(err)
		}
	}
	return w.report(w.task.Join(ctx, &joinStream{w.group.dev.Compute(), w.group, ctx}))
}

// joinStream is the compute stream, as Wait makes it wait for calls.
type joinStream struct {
	device.Stream
	*group
	ctx context.Context // bounds the wait for another goroutine's capture
}

// WaitFor makes the stream wait for e, but not while another goroutine captures a step.
func (s *joinStream) WaitFor(e device.Event) error {
	if _, enqueues := s.backend.(backend.Capturer); enqueues && capture.Of(s.dev) == nil { // a backend that is not a Capturer waits on the host, and enqueues nothing
		if err := s.enter(s.ctx, s.timeout); err != nil {
			return err
		}
		defer s.capturing.RUnlock()
	}
	return s.Stream.WaitFor(e)
}

// report returns err. If err is the failure of a call, report also notes that the program has
// received a failure.
func (w *Work) report(err error) error {
	if err != nil && errors.As(err, new(*failure.CallError)) {
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
	if w.captured != nil {
		return w.captured.sync(ctx, w)
	}
	return w.report(w.task.Sync(ctx))
}

// Done reports, without blocking, whether the call has ended, and returns its error if it has failed.
func (w *Work) Done() (bool, error) {
	s, err := w.state()
	return s >= backend.Done, w.report(err)
}

func (w *Work) state() (backend.State, error) {
	if w.err != nil {
		return backend.Failed, w.err
	}
	if c := w.captured; c != nil {
		if c.replay == nil {
			return backend.Queued, nil
		}
		return c.replay.state()
	}
	return w.task.State()
}

// Times returns the moments at which the call starts to run and ends, for a trace. The time of a moment is the
// zero Time before it has come. On a GPU the times are exact for a call that was started while the device's trace
// was recording ([profile.Recorder.Start]), or after a time of a call of the group was first asked for. For any
// other call they are when the host noticed the moment, a few milliseconds later.
func (w *Work) Times() (started, ended profile.Moment) { return moment{w, false}, moment{w, true} }

// moment is the time at which a call starts to run or ends. It may lie in the future.
type moment struct {
	w   *Work
	end bool
}

func (m moment) Time() time.Time {
	if m.w.err != nil {
		return time.Time{}
	}
	if c := m.w.captured; c != nil {
		if c.replay == nil {
			return time.Time{}
		}
		return moment{c.replay, m.end}.Time()
	}
	m.w.group.timed.Store(true)
	begin, end := m.w.task.Span()
	if m.end {
		return end
	}
	return begin
}

func (w *Work) String() string {
	if c := w.captured; c != nil && c.replay != nil {
		return c.replay.String()
	}
	s, err := w.state()
	if w.report(err) != nil {
		return fmt.Sprintf("%v: %v: %v", &w.call, s, err)
	}
	return fmt.Sprintf("%v: %v", &w.call, s)
}

// observed implements backend.Observer on a Work: the backend notifies it when the call starts to run
// and when it ends.
type observed Work

// age returns the time between the call's creation and the time `at`.
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

// isRunning reports whether the backend has notified this Work that the call runs. It does not ask the
// driver, because the driver may hang.
func (w *Work) isRunning() bool { return w.running.Load() > 0 }
