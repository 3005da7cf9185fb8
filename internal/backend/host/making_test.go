package host_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/backend/host"
	"github.com/goddp/goddp/internal/coordinator/coordinatortest"
)

// TestAbsent makes groups to which some ranks do not come: every other one
// learns which, whether its own time is over first or another's, and those that
// come later that they are late.
func TestAbsent(t *testing.T) {
	const size, short, long = 4, 100 * time.Millisecond, time.Minute
	for name, o := range map[string]func() *host.Options{
		"inproc": func() *host.Options { return &host.Options{InProcess: host.NewInProcess()} },
		"links":  func() *host.Options { return nil },
	} {
		for _, absent := range [][]int{{0}, {3}, {1, 2}, {0, 1, 2}} {
			t.Run(fmt.Sprint(name, absent), func(t *testing.T) {
				ranks, opts := coordinatortest.Ranks(t, size), o()
				patient := 3 // has a long time; where it is absent, all have a short one
				var wg sync.WaitGroup
				for r := range size {
					if slices.Contains(absent, r) {
						continue
					}
					timeout := short
					if r == patient && len(absent) < size-1 {
						timeout = long
					}
					wg.Go(func() {
						ctx, cancel := context.WithTimeoutCause(t.Context(), soon, errors.New("the wait does not end"))
						defer cancel()
						_, err := host.New(ctx, backend.Config{Rank: r, Size: size, Control: ranks[r], Timeout: timeout}, opts)
						var e *backend.AbsentError
						if !errors.As(err, &e) || !slices.Equal(e.Ranks, absent) || !errors.Is(err, backend.ErrTimeout) {
							t.Errorf("rank %d: %v, want a timeout that names ranks %v", r, err, absent)
						}
						if err != nil && (strings.Count(err.Error(), "not come") != 1 || !strings.Contains(err.Error(), ": timed out after 100ms: rank")) {
							t.Errorf("rank %d: %q does not say once who has not come, and for how long it was waited", r, err)
						}
					})
				}
				wg.Wait()
				late := backend.Config{Rank: absent[0], Size: size, Control: ranks[absent[0]], Timeout: time.Minute}
				if _, err := host.New(t.Context(), late, opts); err == nil || strings.Count(err.Error(), "could not join") != 1 {
					t.Errorf("rank %d, too late: %v, want the first failure", absent[0], err)
				}
			})
		}
	}
}

// TestJoinFailure has a rank that cannot join, and not for want of others, who learn
// why.
func TestJoinFailure(t *testing.T) {
	ranks := coordinatortest.Ranks(t, 3)
	for r, o := range []*host.Options{{Listen: "256.0.0.1:0"}, nil, nil} {
		_, err := host.New(t.Context(), backend.Config{Rank: r, Size: 3, Control: ranks[r], Timeout: time.Minute}, o)
		if err == nil || !strings.Contains(err.Error(), "256.0.0.1") {
			t.Errorf("rank %d: %v, want rank 0's reason", r, err)
		} else if told := ": rank 0 could not join: "; strings.Contains(err.Error(), told) != (r > 0) || strings.Count(err.Error(), "could not join") != min(r, 1) {
			t.Errorf("rank %d: %v, want once %q if it was told", r, err, told)
		}
		if e := (*backend.JoinError)(nil); errors.As(err, &e) != (r > 0) || r > 0 && e.Rank != 0 {
			t.Errorf("rank %d: %v does not tell rank 0's failure from its own", r, err)
		}
		if errors.Is(err, backend.ErrTimeout) {
			t.Errorf("rank %d: %v is a timeout", r, err)
		}
	}
}
