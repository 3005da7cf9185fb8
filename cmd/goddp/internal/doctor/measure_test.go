package doctor_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/goddp/goddp/cmd/goddp/internal/doctor"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/internal/testkit"
	"github.com/goddp/goddp/internal/testkit/commtest"
)

func TestMain(m *testing.M) { testkit.Main(m, nil) }

// A clock that is 30 s ahead is found.
func TestClockOffset(t *testing.T) {
	commtest.OnGoroutines(t, 3, nil, func(pg *comm.ProcessGroup) error {
		f := doctor.Facts{Rank: pg.Rank()}
		wrong := time.Duration(0)
		if pg.Rank() == 2 {
			wrong = 30 * time.Second
		}
		err := doctor.MeasureClocks(t.Context(), pg, &f, func() time.Time { return time.Now().Add(wrong) })
		if off := (f.ClockOffset - wrong).Abs(); off > f.ClockError || f.ClockError > 10*time.Second {
			t.Errorf("rank %d: offset %v ± %v, want %v", pg.Rank(), f.ClockOffset, f.ClockError, wrong)
		}
		return err
	})
}

// Each rank measures the pair that it is the first of.
func TestMeasurePairs(t *testing.T) {
	commtest.OnGoroutines(t, 3, nil, func(pg *comm.ProcessGroup) error {
		f := doctor.Facts{Rank: pg.Rank(), Node: pg.Rank()}
		first, err := doctor.FirstRanks(t.Context(), pg, &f)
		if err != nil {
			return err
		}
		err = doctor.MeasurePairs(t.Context(), pg, &f, first, 1<<16)
		if next := (pg.Rank() + 1) % 3; len(f.Pairs) != 1 || f.Pairs[0].A != pg.Rank() || f.Pairs[0].B != next || f.Pairs[0].BytesPerSecond <= 0 {
			t.Errorf("rank %d measured %v", pg.Rank(), f.Pairs)
		}
		return err
	})
}

// The end of the context ends a measurement.
func TestMeasureEnds(t *testing.T) {
	groups, err := comm.Local(2, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := doctor.MeasureClocks(ctx, groups[0], &doctor.Facts{}, time.Now); err == nil {
		t.Error("measured without the other rank")
	}
	for _, pg := range groups {
		pg.Abort(errors.New("the test ends"))
	}
	for _, pg := range groups {
		pg.Close()
	}
}
