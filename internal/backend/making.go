package backend

import (
	"context"
	"errors"
	"fmt"

	"github.com/goddp/goddp/internal/coordinator"
)

// GiveUp tells the other ranks that this one does not go on making a group, because of err,
// and returns why the group was not made. All ranks name the same: where this rank was not
// the first to give up, it is what the first one met. Where a group in use broke meanwhile,
// it is why.
func GiveUp(control *coordinator.Group, err error) error {
	late := errors.Is(err, ErrTimeout) || errors.Is(err, context.DeadlineExceeded)
	own := !late && !errors.As(err, new(*coordinator.Failure))
	var f *coordinator.Failure
	if !errors.As(control.GiveUp(err, late), &f) {
		return err
	}
	if len(f.Detail) > 0 {
		return Cause(f)
	}
	told := f.Reporter != control.Rank() || f.Kind != coordinator.Reported
	why := err
	if told {
		why = &toldError{f}
	}
	if f.Late && len(f.Absent) > 0 {
		why = &AbsentError{Ranks: f.Absent, Err: why}
	}
	switch {
	case !told:
		return why
	case f.Kind == coordinator.Reported:
		why = &JoinError{Rank: f.Reporter, Err: why}
	case f.Kind == coordinator.Lost:
		why = &PeerLostError{Peer: f.Ranks[0], Err: why}
	case f.Kind == coordinator.Exited:
		why = &JoinError{Rank: f.Ranks[0], Err: fmt.Errorf("its process ended before: %w", why)}
	}
	if own { // what is wrong here is worth knowing, too
		return fmt.Errorf("%w; here: %w", why, err)
	}
	return why
}

// toldError is what another rank met, or the coordinator.
type toldError struct{ failure *coordinator.Failure }

func (e *toldError) Error() string {
	if e.failure.Kind == coordinator.Duplicate {
		return e.failure.Error()
	}
	return e.failure.Text
}

// Is makes errors.Is(err, ErrTimeout) hold where that rank's time was over.
func (e *toldError) Is(target error) bool { return e.failure.Late && target == ErrTimeout }
