package backend

import (
	"context"
	"errors"
	"fmt"

	"github.com/goddp/goddp/comm/failure"
	"github.com/goddp/goddp/internal/coordinator"
)

// GiveUp tells the coordinator that this rank stops making a group because of err, and returns why
// the group was not made. All ranks return the same reason: the error of the rank that gave up
// first. If a group in use broke meanwhile, GiveUp returns its cause.
func GiveUp(control *coordinator.Group, err error) error {
	late := errors.Is(err, failure.ErrTimeout) || errors.Is(err, context.DeadlineExceeded)
	isOwnFailure := !late && !errors.As(err, new(*coordinator.Failure))
	var f *coordinator.Failure
	if !errors.As(control.GiveUp(err, late), &f) {
		return err
	}
	if len(f.Detail) > 0 {
		return Cause(f)
	}
	byOther := f.Reporter != control.Rank() || f.Kind != coordinator.Reported
	why := err
	if byOther {
		why = &reportedError{f}
	}
	if f.Late && len(f.Absent) > 0 {
		why = &failure.AbsentError{Ranks: f.Absent, Err: why}
	}
	switch {
	case !byOther:
		return why
	case f.Kind == coordinator.Reported:
		why = &failure.JoinError{Rank: f.Reporter, Err: why}
	case f.Kind == coordinator.Lost:
		why = &failure.PeerLostError{Peer: f.Ranks[0], Err: why}
	case f.Kind == coordinator.Exited:
		why = &failure.JoinError{Rank: f.Ranks[0], Err: fmt.Errorf("its process ended before it joined: %w", why)}
	}
	if isOwnFailure { // also report what failed on this rank
		return fmt.Errorf("%w; on this rank: %w", why, err)
	}
	return why
}

// reportedError is a failure that another rank or the coordinator reported.
type reportedError struct{ failure *coordinator.Failure }

func (e *reportedError) Error() string {
	if e.failure.Kind == coordinator.Duplicate {
		return e.failure.Error()
	}
	return e.failure.Text
}

// Is makes errors.Is(err, failure.ErrTimeout) hold if the reporting rank timed out.
func (e *reportedError) Is(target error) bool { return e.failure.Late && target == failure.ErrTimeout }
