package callstate

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/goddp/goddp/comm/failure"
	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/coordinator"
)

// State is the state of one rank's end of a group. Its methods are safe for concurrent use. All but
// Drain and AwaitAcknowledged return at once, so a backend may call them with its own locks held.
type State struct {
	control *coordinator.Group
	ctx     context.Context
	cancel  context.CancelCauseFunc

	mu        sync.Mutex
	ownReport error         // the first cause that this rank reported
	cause     error         // why the group broke; never changes once set
	isClosing bool          // Close was called: Admit returns an error
	isFinal   bool          // Finalize was called: Break has no effect
	pending   int           // calls admitted and not ended
	drained   chan struct{} // closed when pending becomes 0; nil unless Drain waits
}

// New returns the state of an open group, which outlives ctx. control is this rank's handle of the
// group at the coordinator.
func New(ctx context.Context, control *coordinator.Group) *State {
	s := &State{control: control}
	s.ctx, s.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	return s
}

// Context returns a context that ends when Stop is called. Its cause says why the group ended.
func (s *State) Context() context.Context { return s.ctx }

// Stop ends Context with the cause why. Later calls have no effect.
func (s *State) Stop(why error) { s.cancel(why) }

// Err returns nil while the group is open. Otherwise it returns the cause for which the group
// broke, or [failure.ErrClosed].
func (s *State) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err()
}

func (s *State) err() error {
	if s.cause == nil && s.isClosing {
		return failure.ErrClosed
	}
	return s.cause
}

// Admit counts calls as pending. If the group is broken or closed, Admit returns Err instead.
func (s *State) Admit(calls int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.err(); err != nil {
		return err
	}
	s.pending += calls
	return nil
}

// End counts an admitted call as ended.
func (s *State) End() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pending--
	if s.pending == 0 && s.drained != nil {
		close(s.drained)
		s.drained = nil
	}
}

// Pending returns the number of calls that were admitted and have not ended.
func (s *State) Pending() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pending
}

// Report asks the coordinator to abort the group because of cause. It returns at once; only the
// first report of a rank counts. The coordinator first queries the ranks asked (ranks of the job)
// for an earlier cause. When it has decided, the coordinator group's Failed channel is closed.
//
// A cause that matches [failure.ErrAborted] or [failure.ErrClosed] comes from the program and
// breaks only this group. Any other cause breaks all groups of the job.
func (s *State) Report(cause error, asked ...int) {
	s.mu.Lock()
	first := s.ownReport == nil && !s.isFinal
	if first {
		s.ownReport = cause
	}
	s.mu.Unlock()
	if first {
		f := backend.Describe(cause)
		f.Confined = errors.Is(cause, failure.ErrAborted) || errors.Is(cause, failure.ErrClosed)
		s.control.Fail(f, asked...)
	}
}

// Abort reports cause, or [failure.ErrAborted] if cause is nil.
func (s *State) Abort(cause error) {
	if cause == nil {
		cause = failure.ErrAborted
	}
	s.Report(cause)
}

// acknowledgeTimeout is how long AwaitAcknowledged waits for a suspended rank.
const acknowledgeTimeout = 200 * time.Millisecond

// AwaitAcknowledged waits until all ranks know that the group broke, but at most for
// acknowledgeTimeout. After that no running rank takes data of an aborted call for a result. A
// suspended rank cannot answer; it finds the notice when it resumes.
func (s *State) AwaitAcknowledged() {
	timer := time.NewTimer(acknowledgeTimeout)
	defer timer.Stop()
	select {
	case <-s.control.Settled():
	case <-timer.C:
	}
}

// DecidedCause returns the cause that the coordinator decided on, or nil. All ranks get the same
// cause, except that the reporting rank gets its own error value.
func (s *State) DecidedCause() error {
	f := s.control.Failure()
	if f == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if f.Kind == coordinator.Reported && f.Reporter == s.control.Rank() && f.Group == s.control.Name && s.ownReport != nil &&
		f.Text == backend.Describe(s.ownReport).Text { // else package comm has reported a call that did not start
		return s.ownReport
	}
	return backend.Cause(f)
}

// Break records why the group broke. It returns false, and changes nothing, if the group was broken
// before or Finalize was called.
func (s *State) Break(cause error) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cause != nil || s.isFinal {
		return false
	}
	s.cause = cause
	return true
}

// Cause returns why the group broke, or nil.
func (s *State) Cause() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cause
}

// CallError returns err as the error of this rank's call c.
func (s *State) CallError(c *backend.Call, err error) error {
	return backend.OfCall(s.control, c, err)
}

// ErrorOf returns the error of this rank's call c in a broken group: the cause itself if c caused
// the failure, otherwise a [failure.CallError] of c that wraps the cause.
func (s *State) ErrorOf(c *backend.Call) error {
	cause := s.Cause()
	var first *failure.CallError
	mine := backend.OfCall(s.control, c, cause)
	if errors.As(cause, &first) && first.Rank == mine.Rank && first.Group == mine.Group && first.Call == mine.Call {
		return cause
	}
	return mine
}

// Close makes Admit reject further calls. It returns false if it was called before.
func (s *State) Close() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	first := !s.isClosing
	s.isClosing = true
	return first
}

// Drain waits until no call is pending, or until ctx ends. The caller must have called Close. The
// error matches [failure.ErrClosed] and contains the number of pending calls.
func (s *State) Drain(ctx context.Context) error {
	s.mu.Lock()
	if s.pending == 0 {
		s.mu.Unlock()
		return nil
	}
	drained := make(chan struct{})
	s.drained = drained
	s.mu.Unlock()
	select {
	case <-drained:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w with %d calls pending: %w", failure.ErrClosed, s.Pending(), context.Cause(ctx))
	}
}

// Finalize makes later calls of Break have no effect. It returns the cause if the group has broken.
func (s *State) Finalize() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.isFinal = true
	return s.cause
}
