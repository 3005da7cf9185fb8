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

// reportTimeout bounds the dealings with the store about one pass.
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

// collect reads the reports of the ranks whose flags are raised. A report was
// published before its flag could be seen, so one that is not there was not
// made: the flag is another's, of a pass whose flags could not be cleared, or
// its rank could not publish.
func (r *reports) collect(ctx context.Context, raised []bool) error {
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	e := &MissingGradientError{}
	var silent []Missing
	for rank, up := range raised {
		if !up {
			continue
		}
		m, err := r.read(ctx, rank)
		switch {
		case err != nil:
			e.Missing = append(e.Missing, Missing{Rank: rank, Cause: fmt.Sprintf("its report is not to be had: %v", err)})
		case m == nil:
			silent = append(silent, Missing{Rank: rank, Cause: "it left no report"})
		default:
			e.Missing = append(e.Missing, *m)
		}
	}
	if len(e.Missing) == 0 {
		e.Missing = silent
	}
	return e
}

// read returns a rank's report of this pass, nil if there is none.
func (r *reports) read(ctx context.Context, rank int) (*Missing, error) {
	key := key(r.pass, rank)
	there, err := r.store.Check(ctx, key)
	if err != nil || !there {
		return nil, err
	}
	report, err := r.store.Get(ctx, key)
	if err != nil {
		return nil, err
	}
	m := &Missing{Rank: rank}
	return m, json.Unmarshal(report, m)
}
