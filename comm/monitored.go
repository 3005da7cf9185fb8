package comm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/goddp/goddp/internal/awake"
	"github.com/goddp/goddp/internal/rootcause"
)

// BarrierError names the ranks that did not call a MonitoredBarrier in time, by their numbers
// in the job. It matches ErrTimeout.
type BarrierError struct {
	Rank    int           // the rank that returns the error
	After   time.Duration // the timeout of the barrier
	Missing []int         // the ranks that did not call MonitoredBarrier
}

func (e *BarrierError) Error() string {
	return fmt.Sprintf("rank %d: monitored barrier: waited %v for %s, which did not call it", e.Rank, e.After, rootcause.Ranks(e.Missing))
}

// Is makes errors.Is(err, ErrTimeout) hold.
func (e *BarrierError) Is(target error) bool { return target == ErrTimeout }

// MonitoredBarrier returns when all ranks of the group have called it. If some ranks have not
// called it when the timeout has passed, it returns a [*BarrierError] that names these ranks.
//
// The barrier uses the coordinator rather than the backend. A program can call MonitoredBarrier
// before a collective that hangs, to find the missing rank. A timeout does not break the group,
// and the barrier does not wait for the device. After an error, some ranks may have called
// MonitoredBarrier more often than others. Then their next calls do not match.
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
		if missing, err = pg.control.Missing(ask, key); len(missing) > 0 { // if none is missing, the last rank called just after the timeout
			return &BarrierError{Rank: pg.control.Rank(), After: timeout, Missing: missing}
		}
	}
	if err != nil {
		return fmt.Errorf("rank %d: monitored barrier: %w", pg.control.Rank(), err)
	}
	return nil
}

// errBarrier is the cause of a context that ends because the timeout of a MonitoredBarrier has
// passed. It distinguishes the timeout from the end of the caller's context.
var errBarrier = errors.New("the monitored barrier timed out")
