package host

import (
	"context"
	"sync"
	"time"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/backend"
)

// task is a call that was started. A Group's task runs nothing itself: it is
// done when those of its calls are.
type task struct {
	group  *Group
	call   *backend.Call
	plan   *plan  // of a collective
	data   []byte // of a Send or Recv
	parent *task  // the Group's, of a call within one
	done   chan struct{}

	mu           sync.Mutex
	parts        int // of a Group: calls that are not done
	state        backend.State
	err          error
	began, ended time.Time
}

var _ backend.Task = (*task)(nil)

func (t *task) Join(ctx context.Context, s device.Stream) error {
	if err := s.WaitFor(ctx, event{t}); err != nil {
		return err
	}
	_, err := t.State()
	return err
}

func (t *task) Sync(ctx context.Context) error {
	select {
	case <-t.done:
		return t.err
	default:
	}
	select {
	case <-t.done:
		return t.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (t *task) State() (backend.State, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.state, t.err
}

// Waiting is the ranks of the job that have not shown their part of a running call yet.
func (t *task) Waiting() []int {
	var ranks []int
	switch state, _ := t.State(); {
	case state != backend.Running:
		return nil
	case t.call.Kind == backend.Send || t.call.Kind == backend.Recv:
		ranks = []int{t.call.Root}
	default:
		ranks = t.group.net.missing()
	}
	for i, r := range ranks {
		ranks[i] = t.group.inJob(r)
	}
	return ranks
}

func (t *task) Span() (began, done time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.began, t.ended
}

// begin marks the task, and its Group's, as running.
func (t *task) begin() {
	for ; t != nil; t = t.parent {
		t.mu.Lock()
		first := t.state == backend.Queued
		if first {
			t.state, t.began = backend.Running, time.Now()
		}
		t.mu.Unlock()
		if o := t.call.Observer; first && o != nil {
			o.Running(t.began)
		}
	}
}

// finish ends the task, and its Group's with its last part; the first error
// of the parts is the Group's.
func (t *task) finish(err error) {
	t.mu.Lock()
	if t.err == nil {
		t.err = err
	}
	if t.parts > 0 {
		t.parts--
	}
	if t.parts > 0 {
		t.mu.Unlock()
		return
	}
	t.state, t.ended = backend.Done, time.Now()
	if t.err != nil {
		t.state = backend.Failed
	}
	err = t.err
	t.mu.Unlock()
	if o := t.call.Observer; o != nil {
		o.Ended(t.ended, err)
	}
	close(t.done)
	if t.parent != nil {
		t.parent.finish(err)
		return
	}
	t.group.state.End()
}

// event is the end of a task.
type event struct{ t *task }

func (e event) Done() (bool, error) {
	state, err := e.t.State()
	return state >= backend.Done, err
}

func (e event) Sync(ctx context.Context) error { return e.t.Sync(ctx) }

func (e event) Time() time.Time {
	_, done := e.t.Span()
	return done
}

// lane runs tasks one after the other, in the order in which they were put in.
type lane struct {
	mu    sync.Mutex
	queue []*task
	ended bool
	wake  chan struct{} // of one: something changed
}

func newLane() *lane { return &lane{wake: make(chan struct{}, 1)} }

func (l *lane) put(t *task) {
	l.mu.Lock()
	l.queue = append(l.queue, t)
	l.mu.Unlock()
	l.signal()
}

// end makes loop return once the queue is empty.
func (l *lane) end() {
	l.mu.Lock()
	l.ended = true
	l.mu.Unlock()
	l.signal()
}

func (l *lane) signal() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

func (l *lane) loop(run func(*task)) {
	for {
		l.mu.Lock()
		var t *task
		if len(l.queue) > 0 {
			t, l.queue[0] = l.queue[0], nil
			l.queue = l.queue[1:]
		}
		ended := l.ended
		l.mu.Unlock()
		switch {
		case t != nil:
			run(t)
		case ended:
			return
		default:
			<-l.wake
		}
	}
}
