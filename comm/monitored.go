package comm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/goddp/goddp/internal/awake"
)

// BarrierError says which ranks did not come to a MonitoredBarrier in time. Ranks are the
// job's. It matches ErrTimeout.
type BarrierError struct {
	Rank    int // whose error it is
	After   time.Duration
	Missing []int
}

func (e *BarrierError) Error() string {
	return fmt.Sprintf("rank %d: monitored barrier: ranks %v have not come within %v", e.Rank, e.Missing, e.After)
}

// Is makes errors.Is(err, ErrTimeout) hold.
func (e *BarrierError) Is(target error) bool { return target == ErrTimeout }

// MonitoredBarrier returns when all ranks of the group have called it, or with
// a [*BarrierError] that names those that have not by the group's timeout. It
// does not go through the backend: it can be called before a
// collective that hangs to find out why, breaks nothing, and says nothing of
// what the device is doing. After an error ranks may be out of step in it.
func (pg *ProcessGroup) MonitoredBarrier(ctx context.Context) error {
	timeout := cmp.Or(pg.opts.Timeout, pg.timeout)
	key := fmt.Sprintf("barrier/%d", pg.control.Count("barrier"))
	waitCtx, cancel := awake.WithTimeoutCause(ctx, timeout, errBarrier)
	defer cancel()
	_, err := pg.control.Gather(waitCtx, key, nil)
	if errors.Is(err, errBarrier) {
		ask, cancel := context.WithTimeout(context.WithoutCancel(ctx), announceTime)
		defer cancel()
		var missing []int
		if missing, err = pg.control.Missing(ask, key); len(missing) > 0 { // else they came in the last moment
			return &BarrierError{Rank: pg.control.Rank(), After: timeout, Missing: missing}
		}
	}
	if err != nil {
		return fmt.Errorf("rank %d: monitored barrier: %w", pg.control.Rank(), err)
	}
	return nil
}

// errBarrier tells the barrier's deadline from its caller's.
var errBarrier = errors.New("the barrier's time is over")
