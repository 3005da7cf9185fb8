package backend

import (
	"context"
	"errors"
	"fmt"

	"github.com/goddp/goddp/internal/coordinator"
)

// GiveUp tells the other ranks that this one does not go on making a group, because of err,
// and returns why the group was not made. All ranks name the same: where this rank was not
// the first to give up, it is what the first one met.
func GiveUp(control *coordinator.Group, err error) error {
	if errors.As(err, new(*BrokenError)) && !errors.Is(err, ErrClosed) {
		return err // the others hear of that where it happened
	}
	var f *coordinator.Failure
	if !errors.As(control.GiveUp(err), &f) {
		return err
	}
	mine := f.Reporter == control.Rank() && f.Kind == coordinator.Reported
	why := errors.New(f.Text)
	if mine {
		why = err
	}
	if late := errors.Is(err, ErrTimeout) || errors.Is(err, context.DeadlineExceeded); len(f.Absent) > 0 && (late || !mine) {
		why = &AbsentError{Ranks: f.Absent, Err: why}
	}
	switch {
	case mine:
		return why
	case f.Kind == coordinator.Reported:
		return &JoinError{Rank: f.Reporter, Err: why}
	case f.Kind == coordinator.Lost:
		return &PeerLostError{Peer: f.Ranks[0], Err: why}
	case f.Kind == coordinator.Exited:
		return &JoinError{Rank: f.Ranks[0], Err: fmt.Errorf("its process ended before: %w", why)}
	}
	return f
}
