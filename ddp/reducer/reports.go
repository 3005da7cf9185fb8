package reducer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/internal/awake"
	"github.com/goddp/goddp/store"
)

// reports is how ranks tell each other, through the store, what went wrong: the
// flags say who, the reports say what.
type reports struct {
	rank  int
	ranks int
	store store.Store // this reducer's own
	pass  uint64      // number of the pass among those that reduce
	mine  []uint64    // passes of this rank's reports that are still there
}

// report is what a rank says about a pass.
type report struct {
	Missing
	NonFinite *NonFinite   `json:",omitempty"`
	Graph     *GraphChange `json:",omitempty"`
}

// empty tells whether there is nothing to say.
func (r *report) empty() bool { return !r.lacks() && r.NonFinite == nil && r.Graph == nil }

// lacks tells whether the rank's pass was incomplete.
func (r *report) lacks() bool { return len(r.Params) > 0 || r.Cause != "" }

// reportTimeout bounds the dealings with the store about one pass.
const reportTimeout = 10 * time.Second

func newReports(ctx context.Context, pg *comm.ProcessGroup) (reports, error) {
	// The ranks make their reducers in the same order: each rank's n-th.
	n, err := pg.Store().Add(ctx, fmt.Sprintf("reducers/%d", pg.Rank()), 1)
	if err != nil {
		return reports{}, fmt.Errorf("reducer: rank %d: %w", pg.Rank(), err)
	}
	return reports{rank: pg.Rank(), ranks: pg.Size(), store: store.Prefix(pg.Store(), fmt.Sprintf("reducer/%d", n))}, nil
}

func key(pass uint64, rank int) string { return fmt.Sprintf("report/%d/%d", pass, rank) }

// publish says what went wrong on this rank in this pass. Reports of two passes
// ago go: all ranks have taken part in the pass between, so they have read them.
func (r *reports) publish(ctx context.Context, mine report) error {
	ctx, cancel := awake.WithTimeout(ctx, reportTimeout)
	defer cancel()
	for ; len(r.mine) > 0 && r.mine[0]+2 <= r.pass; r.mine = r.mine[1:] {
		if _, err := r.store.Delete(ctx, key(r.mine[0], r.rank)); err != nil {
			return err
		}
	}
	text, err := json.Marshal(mine)
	if err != nil {
		return err
	}
	r.mine = append(r.mine, r.pass)
	return r.store.Set(ctx, key(r.pass, r.rank), text)
}

// collect reads the reports of the ranks whose flags are raised. A report was
// published before its flag could be seen, so one that is not there was not
// made: the flag is another's, of a pass whose flags could not be cleared, or
// its rank could not publish. away are the ranks that shadow the others: those
// among them that raise their flags leave. If all have come to the end of their
// passes, that is no error.
func (r *reports) collect(ctx context.Context, raised, away []bool) error {
	ctx, cancel := awake.WithTimeout(ctx, reportTimeout)
	defer cancel()
	var missing, silent []Missing
	var nonFinite []NonFinite
	var changed []GraphChange
	var left LeftError
	for rank, up := range raised {
		if !up {
			continue
		}
		theirs, err := r.read(ctx, rank)
		switch {
		case away != nil && away[rank]:
			left.add(rank, theirs, err)
			continue
		case err != nil:
			missing = append(missing, Missing{Rank: rank, Cause: fmt.Sprintf("its report is not to be had: %v", err)})
			continue
		case theirs == nil:
			silent = append(silent, Missing{Rank: rank, Cause: "it left no report"})
			continue
		}
		if theirs.lacks() {
			missing = append(missing, theirs.Missing)
		}
		if theirs.NonFinite != nil {
			nonFinite = append(nonFinite, *theirs.NonFinite)
		}
		if theirs.Graph != nil {
			changed = append(changed, *theirs.Graph)
		}
	}
	var errs []error
	if len(nonFinite) > 0 {
		errs = append(errs, &NonFiniteError{nonFinite})
	}
	if len(changed) > 0 {
		errs = append(errs, &GraphChangedError{changed})
	}
	if len(left.Left) > 0 && !(len(left.Left) == r.ranks && left.over()) {
		errs = append(errs, &left)
	}
	if len(errs) == 0 && len(missing) == 0 {
		missing = silent
	}
	if len(missing) > 0 {
		errs = slices.Insert(errs, 0, error(&MissingGradientError{missing}))
	}
	if len(errs) == 1 {
		return errs[0]
	}
	return errors.Join(errs...)
}

// read returns a rank's report of this pass, nil if there is none.
func (r *reports) read(ctx context.Context, rank int) (*report, error) {
	key := key(r.pass, rank)
	there, err := r.store.Check(ctx, key)
	if err != nil || !there {
		return nil, err
	}
	text, err := r.store.Get(ctx, key)
	if err != nil {
		return nil, err
	}
	return decodeReport(text, rank)
}

// decodeReport reads the report of a rank.
func decodeReport(text []byte, rank int) (*report, error) {
	theirs := &report{}
	if err := json.Unmarshal(text, theirs); err != nil {
		return nil, err
	}
	if theirs.lacks() && theirs.Rank != rank ||
		theirs.NonFinite != nil && theirs.NonFinite.Rank != rank || theirs.Graph != nil && theirs.Graph.Rank != rank {
		return nil, fmt.Errorf("it is of another rank than %d: %.200q", rank, text)
	}
	return theirs, nil
}
