//go:build cgo && linux

package nccl

import (
	"context"
	"time"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/kernels"
)

// task is a started call.
type task struct {
	group  *Group
	call   *backend.Call
	stream *commStream
	number int // number of the call on its stream, from 1

	// group.mu guards the following fields, which are set when the call is enqueued. end is the event
	// after the call on its stream, and before is the event after the previous call.
	enqueuedAt         time.Duration // by the group's clock
	before, end        device.Event  // before is nil for the first call
	startedAt, endedAt time.Duration // when this rank detected the start and the end; 0 until then
	state              backend.State
	err                error
}

var _ backend.Task = (*task)(nil)

// poll updates the state from the events. The error is the device's.
//
// A call is done if its event is complete and the coordinator has sent no notice of a failure. An abort
// on another rank also completes the event, but with invalid data. The notice of that failure always
// arrives before the abort. After the group has broken, poll changes no state.
func (t *task) poll() error {
	reached, err := t.reached()
	if reached {
		t.setProgress(t.group.cfg.Control.Quiet())
	}
	return err
}

// reached reports whether the event after the call is complete. It returns false for calls that have
// ended. group.mu must not be held, because the driver may hang.
func (t *task) reached() (bool, error) {
	g := t.group
	g.mu.Lock()
	state, end := t.state, t.end
	settled := state >= backend.Done || end == nil || g.state.Cause() != nil
	g.mu.Unlock()
	if settled {
		return false, nil
	}
	if done, err := end.Done(); done || err != nil {
		return done, err
	}
	if state == backend.Queued {
		for e := range t.starts {
			if reached, err := e.Done(); !reached || err != nil {
				return false, err
			}
		}
		t.setProgress(false)
	}
	return false, nil
}

// setProgress marks the call as done, or else as running.
func (t *task) setProgress(done bool) {
	g := t.group
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case t.state >= backend.Done || g.state.Cause() != nil:
	case done:
		g.finish(t, nil)
	case t.state == backend.Queued:
		t.state, t.startedAt = backend.Running, g.now()
		if o := t.call.Observer; o != nil {
			o.Running(g.epoch.Add(t.startedAt))
		}
	}
}

func (t *task) done() bool {
	t.group.mu.Lock()
	defer t.group.mu.Unlock()
	return t.state >= backend.Done
}

// starts iterates over the events after which the call starts to run. The start of the call has no event
// of its own, because such an event would cost the stream a few microseconds.
func (t *task) starts(yield func(device.Event) bool) {
	if t.before == nil || yield(t.before) {
		events(t.call, yield)
	}
}

// events iterates over the After events of a call and of the calls in it.
func events(c *backend.Call, yield func(device.Event) bool) bool {
	if c.After != nil && !yield(c.After) {
		return false
	}
	for _, m := range c.Calls {
		if !events(m, yield) {
			return false
		}
	}
	return true
}

// State returns the call's state, and why it failed.
func (t *task) State() (backend.State, error) {
	g := t.group
	if err := t.poll(); err != nil {
		g.fail(g.state.CallError(t.call, err))
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return t.state, t.err
}

// Join makes later work on s wait for the call. It blocks until the call is enqueued.
func (t *task) Join(ctx context.Context, s device.Stream) error {
	var state backend.State
	var end device.Event
	err := kernels.Poll(ctx, func() (bool, error) {
		t.group.mu.Lock()
		defer t.group.mu.Unlock()
		state, end = t.state, t.end
		return end != nil || state >= backend.Done, nil
	})
	if err != nil {
		return err
	}
	if state < backend.Done {
		if err := s.WaitFor(end); err != nil {
			return err
		}
	}
	t.group.mu.Lock()
	defer t.group.mu.Unlock()
	return t.err
}

// Sync blocks until the call is done.
func (t *task) Sync(ctx context.Context) error {
	var why error
	err := kernels.Poll(ctx, func() (bool, error) {
		var state backend.State
		state, why = t.State()
		return state >= backend.Done, nil
	})
	if err != nil {
		return err
	}
	return why
}

// Span returns when the call began to run and when it was done. Unless the call is Timed, these are the
// times at which this rank detected it, a few milliseconds later.
func (t *task) Span() (began, done time.Time) {
	g := t.group
	t.State() // updates the state
	g.mu.Lock()
	defer g.mu.Unlock()
	if t.endedAt > 0 {
		done = g.epoch.Add(t.endedAt)
	}
	switch {
	case t.startedAt > 0:
		began = g.epoch.Add(t.startedAt)
	case t.state == backend.Done:
		began = g.epoch.Add(t.enqueuedAt)
	default:
		return began, done
	}
	exact, known := g.epoch.Add(t.enqueuedAt), false
	for e := range t.starts {
		at := e.Time() // zero for the end of a call that was not timed
		known = known || !at.IsZero()
		if at.After(exact) {
			exact = at
		}
	}
	if !known {
		exact = began
	}
	if !done.IsZero() {
		if at := t.end.Time(); !at.IsZero() {
			done = at
		}
		if exact.After(done) { // the clocks of GPU and host agree only to microseconds
			exact = done
		}
	}
	return exact, done
}

// Waiting returns the peer of a running Send or Recv. For collectives it returns nil, because NCCL does
// not report which ranks they wait for.
func (t *task) Waiting() []int {
	t.group.mu.Lock()
	defer t.group.mu.Unlock()
	if k := t.call.Kind; t.state == backend.Running && (k == backend.Send || k == backend.Recv) {
		return []int{t.group.jobRank(t.call.Root)}
	}
	return nil
}
