package reducer

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/store"
)

// reports is how ranks tell each other, through the store, what they lacked:
// the flags in the buckets say who, the reports say what.
type reports struct {
	rank  int
	store store.Store // this reducer's own
	pass  uint64      // number of the pass among those that reduce
	mine  []uint64    // passes of this rank's reports that are still there
}

// reportTimeout bounds the look-up of a report, which was published before
// its flag was raised.
const reportTimeout = 10 * time.Second

func newReports(ctx context.Context, pg *comm.ProcessGroup) (reports, error) {
	// The ranks make their reducers in the same order: each rank's n-th.
	n, err := pg.Store().Add(ctx, fmt.Sprintf("reducers/%d", pg.Rank()), 1)
	if err != nil {
		return reports{}, fmt.Errorf("reducer: rank %d: %w", pg.Rank(), err)
	}
	return reports{rank: pg.Rank(), store: store.Prefix(pg.Store(), fmt.Sprintf("reducer/%d", n))}, nil
}

func key(pass uint64, rank int) string { return fmt.Sprintf("missing/%d/%d", pass, rank) }

// publish says what this rank lacks in this pass. Reports of two passes ago go:
// all ranks have taken part in the pass between, so they have read them.
func (r *reports) publish(ctx context.Context, params []string, cause error) error {
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	for ; len(r.mine) > 0 && r.mine[0]+2 <= r.pass; r.mine = r.mine[1:] {
		if _, err := r.store.Delete(ctx, key(r.mine[0], r.rank)); err != nil {
			return err
		}
	}
	m := Missing{Rank: r.rank, Params: params}
	if cause != nil {
		m.Cause = cause.Error()
	}
	report, err := json.Marshal(m)
	if err != nil {
		return err
	}
	r.mine = append(r.mine, r.pass)
	return r.store.Set(ctx, key(r.pass, r.rank), report)
}

// collect reads the reports of the ranks that raised their flags.
func (r *reports) collect(ctx context.Context, ranks []bool) error {
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	e := &MissingGradientError{}
	for rank, raised := range ranks {
		if !raised {
			continue
		}
		m := Missing{Rank: rank}
		report, err := r.store.Get(ctx, key(r.pass, rank))
		if err == nil {
			err = json.Unmarshal(report, &m)
		}
		if err != nil {
			m.Cause = fmt.Sprintf("its report is not to be had: %v", err)
		}
		e.Missing = append(e.Missing, m)
	}
	return e
}
