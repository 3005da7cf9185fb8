package callstate

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/coordinator"
)

// Ledger is one rank's. Its methods are safe for concurrent use, and none but
// Drain blocks: they may be called with a backend's own locks held.
type Ledger struct {
	control *coordinator.Group
	ctx     context.Context
	cancel  context.CancelCauseFunc

	mu       sync.Mutex
	reported error         // what this rank reported; the first stays
	cause    error         // why the group broke; the first stays
	closing  bool          // no call is admitted any more
	settled  bool          // the group does not break any more
	pending  int           // calls admitted that have not ended
	idle     chan struct{} // Drain waits for it; closed when pending is 0
}

// New is the ledger of this rank's end of an open group.
func New(control *coordinator.Group) *Ledger {
	l := &Ledger{control: control}
	l.ctx, l.cancel = context.WithCancelCause(context.Background())
	return l
}

// Context ends with Stop; its cause says why the group ended.
func (l *Ledger) Context() context.Context { return l.ctx }

// Stop ends Context, once.
func (l *Ledger) Stop(why error) { l.cancel(why) }

// Err is why no call is admitted: the cause for which the group broke, or
// [backend.ErrClosed]; nil while it is open.
func (l *Ledger) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err()
}

func (l *Ledger) err() error {
	if l.cause == nil && l.closing {
		return backend.ErrClosed
	}
	return l.cause
}

// Admit counts a call as pending, or returns Err.
func (l *Ledger) Admit() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.err(); err != nil {
		return err
	}
	l.pending++
	return nil
}

// End counts an admitted call as ended.
func (l *Ledger) End() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pending--
	if l.pending == 0 && l.idle != nil {
		close(l.idle)
		l.idle = nil
	}
}

// Pending is the number of calls that were admitted and have not ended.
func (l *Ledger) Pending() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.pending
}

// Report has the group break because of cause, once the ranks of the job that are asked have said
// whether they met something before. It returns at once: the coordinator decides what broke the
// group, and the group's Failed tells when it has.
//
// A cause that matches [backend.ErrAborted] or [backend.ErrClosed] is the program's wish, and
// breaks this group alone.
func (l *Ledger) Report(cause error, asked ...int) {
	l.mu.Lock()
	first := l.reported == nil && !l.settled
	if first {
		l.reported = cause
	}
	l.mu.Unlock()
	if first {
		f := backend.Describe(cause)
		f.Confined = errors.Is(cause, backend.ErrAborted) || errors.Is(cause, backend.ErrClosed)
		l.control.Fail(f, asked...)
	}
}

// Abort is Report of the program's cause, [backend.ErrAborted] if that is nil.
func (l *Ledger) Abort(cause error) {
	if cause == nil {
		cause = backend.ErrAborted
	}
	l.Report(cause)
}

// settleTime is how long AwaitSettled waits for a rank that does not run.
const settleTime = 200 * time.Millisecond

// AwaitSettled waits until all ranks know that the group broke, so that none takes what this
// one does from then on for the result of a call. A rank that is suspended, and so does not say
// that it knows, is not waited for: it has been told when it goes on.
func (l *Ledger) AwaitSettled() {
	timer := time.NewTimer(settleTime)
	defer timer.Stop()
	select {
	case <-l.control.Settled():
	case <-timer.C:
	}
}

// Decided is what the coordinator decided that broke the group: nil until then. All ranks have
// the same, but that the rank that reported it has its own error.
func (l *Ledger) Decided() error {
	f := l.control.Failure()
	if f == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if f.Kind == coordinator.Reported && f.Reporter == l.control.Rank() && f.Group == l.control.Name && l.reported != nil {
		return l.reported
	}
	return backend.Cause(f)
}

// Break notes why the group broke. It returns false if it was broken before,
// or does not break any more.
func (l *Ledger) Break(cause error) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cause != nil || l.settled {
		return false
	}
	l.cause = cause
	return true
}

// Cause is why the group broke, if it did.
func (l *Ledger) Cause() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cause
}

// Failure is err as the error of a call of this rank's.
func (l *Ledger) Failure(c *backend.Call, err error) error {
	return backend.OfCall(l.control, c, err)
}

// Concerning is the error that a call of this rank's ends with in a broken
// group: the cause itself where it is this call's failure, else that the cause
// was its end.
func (l *Ledger) Concerning(c *backend.Call) error {
	cause := l.Cause()
	var first *backend.CallError
	own := backend.OfCall(l.control, c, cause)
	if errors.As(cause, &first) && first.Rank == own.Rank && first.Group == own.Group && first.Call == own.Call {
		return cause
	}
	return own
}

// Close has no further call admitted. It returns false if it was called
// before.
func (l *Ledger) Close() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	first := !l.closing
	l.closing = true
	return first
}

// Drain waits, while ctx lasts, until no call is pending; Close comes before.
// The error matches [backend.ErrClosed] and says how many are.
func (l *Ledger) Drain(ctx context.Context) error {
	l.mu.Lock()
	if l.pending == 0 {
		l.mu.Unlock()
		return nil
	}
	idle := make(chan struct{})
	l.idle = idle
	l.mu.Unlock()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w with %d calls pending: %w", backend.ErrClosed, l.Pending(), context.Cause(ctx))
	}
}

// Settle ends the time in which the group may break, and returns the cause if
// it has.
func (l *Ledger) Settle() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.settled = true
	return l.cause
}
