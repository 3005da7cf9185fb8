package comm

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/goddp/goddp/internal/awake"
)

// BarrierError says which ranks did not come to a MonitoredBarrier in time. It
// matches ErrTimeout.
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
// goes through the store, not the backend: it can be called before a
// collective that hangs to find out why, breaks nothing, and says nothing of
// what the device is doing. After an error ranks may be out of step in it.
func (pg *ProcessGroup) MonitoredBarrier(ctx context.Context) error {
	timeout := pg.opts.Timeout
	if timeout == 0 {
		timeout = pg.timeout
	}
	pg.startMu.Lock()
	pg.barriers++
	n := pg.barriers
	pg.startMu.Unlock()
	key := func(n, rank int) string { return fmt.Sprintf("barrier/%d/%d", n, rank) }
	keys := make([]string, pg.size)
	for r := range keys {
		keys[r] = key(n, r)
	}
	ctx, cancel := awake.WithTimeoutCause(ctx, timeout, errBarrier)
	defer cancel()
	if n > 2 {
		// Who comes to this one saw all come to the last one, so that nobody is
		// still looking at the one before.
		if _, err := pg.store.Delete(ctx, key(n-2, pg.rank)); err != nil {
			return pg.barrierError(ctx, err)
		}
	}
	if err := pg.store.Set(ctx, keys[pg.rank], nil); err != nil {
		return pg.barrierError(ctx, err)
	}
	err := pg.store.Wait(ctx, keys...)
	if err == nil || !errors.Is(context.Cause(ctx), errBarrier) {
		return pg.barrierError(ctx, err)
	}
	late := &BarrierError{Rank: pg.rank, After: timeout}
	ask, cancel := context.WithTimeout(context.WithoutCancel(ctx), announceTime)
	defer cancel()
	for r, k := range keys {
		came, err := pg.store.Check(ask, k)
		if err != nil {
			return pg.barrierError(ask, err)
		}
		if !came {
			late.Missing = append(late.Missing, r)
		}
	}
	if len(late.Missing) == 0 { // in the last moment
		return nil
	}
	return late
}

// errBarrier tells the barrier's deadline from its caller's.
var errBarrier = errors.New("the barrier's time is over")

func (pg *ProcessGroup) barrierError(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return fmt.Errorf("rank %d: monitored barrier: %w", pg.rank, err)
}
