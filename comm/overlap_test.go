package comm_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/internal/commtest"
)

// rejection makes a call. It returns the error with which the call panics if the call is
// rejected, else nil.
func rejection(call func()) (usage *comm.UsageError) {
	defer func() { usage, _ = recover().(*comm.UsageError) }()
	call()
	return nil
}

// If a call in a subgroup is rejected, all groups break. The errors of all ranks name the rank
// that made the call, by its number in the job.
func TestRejectedCallInASubgroupBreaksAllGroups(t *testing.T) {
	commtest.OnRanks(t, 4, &comm.Options{Timeout: time.Hour}, func(pg *comm.ProcessGroup) error {
		ctx := context.Background()
		defer pg.MonitoredBarrier(ctx) // no rank leaves before all ranks know of the failure
		sub, err := pg.Split(ctx, pg.Rank()/2, 0)
		if err != nil {
			return err
		}
		if err := pg.MonitoredBarrier(ctx); err != nil { // when it returns, all ranks have called Split
			return err
		}
		x := vec(1, 2)
		if pg.Rank() == 3 {
			if usage := rejection(func() { sub.AllToAll(x, x) }); usage == nil || usage.Rank != 3 {
				return fmt.Errorf("refused with %v, want rank 3 of the job", usage)
			}
		}
		for _, g := range []*comm.ProcessGroup{pg, sub} {
			for err = nil; err == nil; { // repeat until this rank knows of the failure
				err = g.Barrier().Sync(ctx)
			}
			var usage *comm.UsageError
			if !strings.Contains(err.Error(), ": AllToAll: dst [0x") || !errors.As(err, &usage) || usage.Rank != 3 {
				return fmt.Errorf("group of %d: got %v", g.Size(), err)
			}
		}
		return nil
	})
}
