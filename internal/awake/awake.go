// Package awake provides timeouts that count only the time in which the process runs. So they do not
// expire if the process was suspended together with the processes that it waits for (SIGSTOP, a
// paused virtual machine).
//
// A timeout consists of 16 equal parts, each with a timer that starts when the previous one has
// fired. A suspension of any length shortens only the part during which it happens; that part ends
// at the latest when the process continues. So any wait ends after at most 16 suspensions.
package awake

import (
	"context"
	"sync"
	"time"
)

// parts is the number of parts of a timeout.
const parts = 16

// Timer calls a function when its time has passed, as time.AfterFunc does.
type Timer struct {
	mu    sync.Mutex
	timer *time.Timer
	part  time.Duration
	left  int // number of parts that have not ended; 0 after Stop, and when f is called
	f     func()
}

// AfterFunc calls f in its own goroutine once the process has run for d, unless Stop is called
// before.
func AfterFunc(d time.Duration, f func()) *Timer {
	t := &Timer{part: d / parts, left: parts, f: f}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.timer = time.AfterFunc(d-(parts-1)*t.part, t.next)
	return t
}

// next is called when a part ends. It starts the next part or calls f.
func (t *Timer) next() {
	t.mu.Lock()
	if t.left == 0 {
		t.mu.Unlock()
		return
	}
	t.left--
	expired := t.left == 0
	if !expired {
		t.timer.Reset(t.part)
	}
	t.mu.Unlock()
	if expired {
		t.f()
	}
}

// Stop keeps f from being called. It returns false if f has been, or is being, called.
func (t *Timer) Stop() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	stopped := t.left > 0
	t.left = 0
	t.timer.Stop()
	return stopped
}

// Notice calls f, typically to log that something takes long, once the process has run for d,
// unless stop is called before. If f is running, stop waits for it. Call stop once.
func Notice(d time.Duration, f func()) (stop func()) {
	returned := make(chan struct{})
	t := AfterFunc(d, func() {
		defer close(returned)
		f()
	})
	return func() {
		if !t.Stop() {
			<-returned
		}
	}
}

// WithTimeoutCause returns a context that ends when parent does, when cancel is called,
// or with a cause when the process has run for d. The context's cause then wraps cause
// and context.DeadlineExceeded. Its Err is context.Canceled. It has no Deadline, because the
// time of its end is not known before.
func WithTimeoutCause(parent context.Context, d time.Duration, cause error) (ctx context.Context, cancel context.CancelFunc) {
	ctx, end := context.WithCancelCause(parent)
	t := AfterFunc(d, func() { end(&timeoutError{cause}) })
	return ctx, func() {
		t.Stop()
		end(nil)
	}
}

// WithTimeout is like WithTimeoutCause, with context.DeadlineExceeded as the cause.
func WithTimeout(parent context.Context, d time.Duration) (ctx context.Context, cancel context.CancelFunc) {
	return WithTimeoutCause(parent, d, context.DeadlineExceeded)
}

// timeoutError is the cause of a context whose time has passed.
type timeoutError struct{ cause error }

func (e *timeoutError) Error() string   { return e.cause.Error() }
func (e *timeoutError) Unwrap() []error { return []error{e.cause, context.DeadlineExceeded} }
