//go:build cgo && linux

package nccl

import (
	"context"
	"time"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/backend"
)

// task is a call that was started.
type task struct {
	group  *Group
	call   *backend.Call
	lane   *lane
	number int // of the call on its lane, from 1

	// Under group.mu. What follows is not there before the call is enqueued: end
	// is behind it on its lane's stream, before behind the call before.
	enqueued    time.Duration // times are on the group's clock
	before, end device.Event  // before may be nil
	ran, ended  time.Duration // as noticed, for events without a time; 0 before that
	state       backend.State
	err         error
}

var _ backend.Task = (*task)(nil)

// look brings the state up to date with the events. The error is the device's.
//
// A call is done when its event is reached and the coordinator is quiet after that: an
// abort on another rank reaches the event too, and what NCCL then hands on is no data,
// here or as another call's operand there, but this rank has been told before.
// Once the group has a cause no state changes by itself.
func (t *task) look() error {
	reached, err := t.reached()
	if reached {
		t.settle(t.group.cfg.Control.Quiet())
	}
	return err
}

// reached tells whether the event behind the call is reached, of one that may be
// done by that. group.mu is not held while the driver is asked, which may hang.
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
		t.settle(false)
	}
	return false, nil
}

// settle notes that the call is done, or at least runs.
func (t *task) settle(done bool) {
	g := t.group
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case t.state >= backend.Done || g.state.Cause() != nil:
	case done:
		g.finish(t, nil)
	case t.state == backend.Queued:
		t.state, t.ran = backend.Running, g.now()
		if o := t.call.Observer; o != nil {
			o.Running(g.begun.Add(t.ran))
		}
	}
}

func (t *task) done() bool {
	t.group.mu.Lock()
	defer t.group.mu.Unlock()
	return t.state >= backend.Done
}

// starts iterates over the events at which the call begins to run, the last of
// them to be reached. An event of its own would cost the stream a few
// microseconds.
func (t *task) starts(yield func(device.Event) bool) {
	if t.before == nil || yield(t.before) {
		events(t.call, yield)
	}
}

// events iterates over what a call comes after.
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

// State tells where the call is.
func (t *task) State() (backend.State, error) {
	g := t.group
	if err := t.look(); err != nil {
		g.fail(g.state.CallError(t.call, err))
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return t.state, t.err
}

// Join makes later work on s run after the call. It blocks while the call
// waits to be enqueued.
func (t *task) Join(ctx context.Context, s device.Stream) error {
	var state backend.State
	var end device.Event
	err := device.Poll(ctx, func() (bool, error) {
		t.group.mu.Lock()
		defer t.group.mu.Unlock()
		state, end = t.state, t.end
		return end != nil || state >= backend.Done, nil
	})
	if err != nil {
		return err
	}
	if state < backend.Done {
		if err := s.WaitFor(ctx, end); err != nil {
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
	err := device.Poll(ctx, func() (bool, error) {
		var state backend.State
		state, why = t.State()
		return state >= backend.Done, nil
	})
	if err != nil {
		return err
	}
	return why
}

// Span is when the call began to run and when it was done. The first Span
// makes the group time its calls from then on; earlier ones have the times at
// which somebody noticed, a few milliseconds late.
func (t *task) Span() (began, done time.Time) {
	g := t.group
	g.timed.Store(true)
	t.State() // notices what happened
	g.mu.Lock()
	defer g.mu.Unlock()
	if t.ended > 0 {
		done = g.begun.Add(t.ended)
	}
	switch {
	case t.ran > 0:
		began = g.begun.Add(t.ran)
	case t.state == backend.Done:
		began = g.begun.Add(t.enqueued)
	default:
		return began, done
	}
	exact := g.begun.Add(t.enqueued)
	for e := range t.starts {
		at := e.Time()
		if at.IsZero() {
			exact = began
			break
		}
		if at.After(exact) {
			exact = at
		}
	}
	if !done.IsZero() {
		if at := t.end.Time(); !at.IsZero() {
			done = at
		}
		if exact.After(done) { // the GPU's clock and the host's agree to within microseconds
			exact = done
		}
	}
	return exact, done
}

// Waiting is the peer of a running Send or Recv: NCCL does not tell whom a
// collective waits for.
func (t *task) Waiting() []int {
	t.group.mu.Lock()
	defer t.group.mu.Unlock()
	if k := t.call.Kind; t.state == backend.Running && (k == backend.Send || k == backend.Recv) {
		return []int{t.group.inJob(t.call.Root)}
	}
	return nil
}
