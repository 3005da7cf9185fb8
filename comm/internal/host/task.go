package host

import (
	"context"
	"sync"
	"time"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/backend"
)

// task is a started call. A Group's task runs nothing itself: it is done when the tasks of its
// calls are done.
type task struct {
	group  *Group
	call   *backend.Call
	plan   *plan  // nil for Send and Recv
	data   []byte // Send and Recv: the memory of the tensor
	parent *task  // the task of the Group that contains this call; nil if none does
	done   chan struct{}

	mu           sync.Mutex
	parts        int // a Group's task: number of its calls that are not done
	state        backend.State
	err          error
	began, ended time.Time
}

var _ backend.Task = (*task)(nil)

// Join blocks until the call is done, because the streams of host memory run their work inline.
func (t *task) Join(ctx context.Context, _ device.Stream) error { return t.Sync(ctx) }

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

// Waiting returns the ranks of the job that have not done their part of a running call.
func (t *task) Waiting() []int {
	var ranks []int
	switch state, _ := t.State(); {
	case state != backend.Running:
		return nil
	case t.call.Kind == backend.Send || t.call.Kind == backend.Recv:
		ranks = []int{t.call.Root}
	default:
		ranks = t.group.net.waitingFor()
	}
	for i, r := range ranks {
		ranks[i] = t.group.jobRank(r)
	}
	return ranks
}

func (t *task) Span() (began, done time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.began, t.ended
}

// begin marks the task and its Group as running.
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

// finish marks the task as done. The last task of a Group also finishes the Group's task, whose
// error is the first error of its tasks.
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

// taskQueue runs tasks one after the other, in the order of put.
type taskQueue struct {
	mu    sync.Mutex
	queue []*task
	ended bool
	wake  chan struct{} // capacity 1: put or end was called
}

func newTaskQueue() *taskQueue { return &taskQueue{wake: make(chan struct{}, 1)} }

func (q *taskQueue) put(t *task) {
	q.mu.Lock()
	q.queue = append(q.queue, t)
	q.mu.Unlock()
	q.signal()
}

// end makes loop return once the queue is empty.
func (q *taskQueue) end() {
	q.mu.Lock()
	q.ended = true
	q.mu.Unlock()
	q.signal()
}

func (q *taskQueue) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

func (q *taskQueue) loop(run func(*task)) {
	for {
		q.mu.Lock()
		var t *task
		if len(q.queue) > 0 {
			t, q.queue[0] = q.queue[0], nil
			q.queue = q.queue[1:]
		}
		ended := q.ended
		q.mu.Unlock()
		switch {
		case t != nil:
			run(t)
		case ended:
			return
		default:
			<-q.wake
		}
	}
}
