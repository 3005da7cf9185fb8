package metrics_test

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/comm/failure"
	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/testkit/commtest"
	"github.com/goddp/goddp/metrics"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// counted counts the collectives that the ranks start.
type counted struct {
	backend.Backend
	calls *atomic.Int64
}

func (c counted) Start(call *backend.Call) (backend.Task, error) {
	c.calls.Add(1)
	return c.Backend.Start(call)
}

// One collective reduces all metrics, and all ranks get the same bits.
func TestReduce(t *testing.T) {
	const ranks, big = 3, 1<<53 + 1 // float64 cannot represent big
	nan, inf := math.NaN(), math.Inf(1)
	each := [ranks][]metrics.Metric{
		{metrics.Mean(0.1, 0), metrics.Mean(1, 4), metrics.Mean(nan, 0), metrics.Mean(0, 0), metrics.Sum(1e16), metrics.Min(3), metrics.Max(3), metrics.Min(-inf), metrics.Max(inf), metrics.Sum(1), metrics.Count(big), metrics.Mean(nan, 1)},
		{metrics.Mean(0.1, 3), metrics.Mean(5, 1), metrics.Mean(7, 5), metrics.Mean(0, 0), metrics.Sum(1), metrics.Min(-2), metrics.Max(-2), metrics.Min(nan), metrics.Max(nan), metrics.Sum(nan), metrics.Count(1), metrics.Mean(1, 99)},
		{metrics.Mean(nan, 0), metrics.Mean(9, 3), metrics.Mean(7, 5), metrics.Mean(0, 0), metrics.Sum(-1e16), metrics.Min(1), metrics.Max(4), metrics.Min(0), metrics.Max(0), metrics.Sum(1), metrics.Count(1), metrics.Mean(1, 0)},
	}
	// (1·4 + 5·1 + 9·3)/8 is 4.5. float64 cannot represent 1e16+1, so the sum is 0 in the order of
	// ranks and 1 in other orders.
	want := []metrics.Result{
		{0.1, 3}, {4.5, 8}, {7, 10}, {nan, 0}, {0, ranks}, {-2, ranks}, {4, ranks},
		{nan, ranks}, {nan, ranks}, {nan, ranks}, {big + 2, big + 2}, {nan, 100},
	}
	var calls atomic.Int64
	opts := commtest.WrapBackend(nil, func(b backend.Backend) backend.Backend { return counted{b, &calls} })
	commtest.OnRanks(t, ranks, opts, func(pg *comm.ProcessGroup) error {
		got, err := metrics.Reduce(t.Context(), pg, each[pg.Rank()]...)
		if err != nil {
			return err
		}
		if len(got) != len(want) {
			return fmt.Errorf("%d results, want %d", len(got), len(want))
		}
		for i, w := range want {
			same := got[i].Value == w.Value || math.IsNaN(got[i].Value) && math.IsNaN(w.Value)
			if !same || got[i].Count != w.Count {
				t.Errorf("rank %d: metric %d is %+v, want %+v", pg.Rank(), i, got[i], w)
			}
		}
		if none, err := metrics.Reduce(t.Context(), pg); len(none) != 0 || err != nil {
			t.Errorf("of no metrics: %v, %v", none, err)
		}
		return nil
	})
	if n := calls.Load(); n != ranks {
		t.Errorf("%d ranks started %d collectives, want one each", ranks, n)
	}
}

// If ranks pass different metrics, all ranks get the error.
func TestMismatch(t *testing.T) {
	commtest.OnRanks(t, 3, nil, func(pg *comm.ProcessGroup) error {
		ms := []metrics.Metric{metrics.Sum(1), metrics.Mean(1, 1)}
		if pg.Rank() == 2 {
			ms[1] = metrics.Max(1)
		}
		_, err := metrics.Reduce(t.Context(), pg, ms...)
		var e *metrics.MismatchError
		if !errors.As(err, &e) || !strings.Contains(err.Error(), "metric 1 is a Max on rank 2, a Mean on rank 0") {
			return fmt.Errorf("got %v", err)
		}
		_, err = metrics.Reduce(t.Context(), pg, ms[:1]...)
		return err // the group is still usable
	})
	commtest.OnRanks(t, 2, nil, func(pg *comm.ProcessGroup) error {
		ms := []metrics.Metric{metrics.Sum(1), metrics.Sum(1)}
		_, err := metrics.Reduce(t.Context(), pg, ms[pg.Rank():]...)
		var e *failure.MismatchError
		if !errors.As(err, &e) {
			return fmt.Errorf("one rank reports more: %v", err)
		}
		return nil
	})
}

func TestNegativeCounts(t *testing.T) {
	for _, f := range []func(){func() { metrics.Mean(1, -1) }, func() { metrics.Count(-1) }} {
		func() {
			defer func() {
				if got := fmt.Sprint(recover()); !strings.Contains(got, "count -1, want 0 or more") {
					t.Errorf("the panic is %q", got)
				}
			}()
			f()
		}()
	}
}
