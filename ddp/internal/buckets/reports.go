package buckets

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp/reducer"
	"github.com/goddp/goddp/internal/awake"
)

// reports exchanges reports between the ranks, through the coordinator. If a rank raises its flag in a
// pass, the rank's report says why.
type reports struct {
	pg        *comm.ProcessGroup
	id        int64  // the same on all ranks; differs between the reducers of a group
	published uint64 // the latest pass of which this rank has published a report
}

// report says what went wrong on a rank in one pass.
type report struct {
	Pass    uint64
	IsStale bool `json:",omitempty"` // there is nothing to report: the rank's flag is a value of an earlier pass
	reducer.Missing
	NonFinite *reducer.NonFinite   `json:",omitempty"`
	Graph     *reducer.GraphChange `json:",omitempty"`
}

// isEmpty reports whether there is nothing to report.
func (r *report) isEmpty() bool { return !r.isIncomplete() && r.NonFinite == nil && r.Graph == nil }

// isIncomplete reports whether the rank lacked gradients or its pass failed.
func (r *report) isIncomplete() bool { return len(r.Params) > 0 || r.Cause != "" }

// reportTimeout is the time limit for publishing a report, and for reading the reports of one pass.
const reportTimeout = 10 * time.Second

// newReports returns the reports of a new reducer. All ranks must call it.
func newReports(ctx context.Context, pg *comm.ProcessGroup) (reports, error) {
	ids, err := comm.AllGatherInts(ctx, pg, []int64{rand.Int64()})
	if err != nil {
		return reports{}, err
	}
	return reports{pg: pg, id: ids[0][0]}, nil
}

// key returns the key under which ranks publish their reports of a pass. Two keys alternate, so a new
// report replaces the report of two passes ago. No rank needs the old report: all ranks have taken
// part in the previous pass, and a rank reads the reports of one pass before it takes part in the next.
func (r *reports) key(pass uint64) string { return fmt.Sprintf("reducer/%d/%d", r.id, pass%2) }

// publish publishes this rank's report of a pass.
func (r *reports) publish(ctx context.Context, mine report) error {
	ctx, cancel := awake.WithTimeout(ctx, reportTimeout)
	defer cancel()
	text, err := json.Marshal(mine)
	if err != nil {
		return err
	}
	if err = r.pg.Post(ctx, r.key(mine.Pass), text); err == nil {
		r.published = mine.Pass
	}
	if r.pg.Failed() {
		return nil // the reductions return the cause
	}
	return err
}

// read returns the texts that the given ranks have published for a pass, or the errors of those that cannot be
// read. It takes at most as long as reportTimeout.
func (r *reports) read(ctx context.Context, pass uint64, ranks []int) ([][]byte, []error) {
	errs := make([]error, len(ranks))
	all, cancel := awake.WithTimeout(ctx, reportTimeout/2)
	defer cancel()
	texts, err := r.pg.Posted(all, r.key(pass), ranks...)
	if err == nil {
		return texts, errs
	}
	// Some report is missing. Read each on its own.
	each, cancelEach := awake.WithTimeout(ctx, reportTimeout/2)
	defer cancelEach()
	texts = make([][]byte, len(ranks))
	var wg sync.WaitGroup
	for i, rank := range ranks {
		wg.Go(func() {
			var one [][]byte
			if one, errs[i] = r.pg.Posted(each, r.key(pass), rank); errs[i] == nil {
				texts[i] = one[0]
			}
		})
	}
	wg.Wait()
	return texts, errs
}

// collect reads the reports of a pass of the ranks whose flags are raised, and returns the error that they
// describe. The list `raised` says, by rank, whether the flag is raised; `away` says, by rank, whether the
// rank made a shadow pass.
//
// A rank with a raised flag and no report could not publish its report, or its flag is a value of an
// earlier pass that some rank failed to clear. The error names ranks without a report only if there is no
// other error. A raised flag of a rank that made a shadow pass means that this rank leaves. If all ranks
// leave because they have no more passes, collect returns nil.
func (r *reports) collect(ctx context.Context, pass uint64, raised, away []bool) error {
	var up []int
	for rank, is := range raised {
		if is {
			up = append(up, rank)
		}
	}
	if raised[r.pg.Rank()] && r.published != pass { // the other ranks wait for a report
		if err := r.publish(ctx, report{Pass: pass, IsStale: true}); err != nil {
			return err
		}
	}
	texts, unread := r.read(ctx, pass, up)
	var missing, silent []reducer.Missing
	var nonFinite []reducer.NonFinite
	var changed []reducer.GraphChange
	var left []reducer.Left
	for i, rank := range up {
		var theirs *report
		err := unread[i]
		if err == nil {
			theirs, err = decode(texts[i], rank, pass)
		}
		var cause string
		switch {
		case err != nil:
			cause = fmt.Sprintf("its report cannot be read: %v", err)
		case theirs == nil:
			cause = "it left no report"
		default:
			cause = theirs.Cause
		}
		switch {
		case away != nil && away[rank]:
			left = append(left, reducer.Left{Rank: rank, Cause: cause})
			continue
		case err != nil:
			missing = append(missing, reducer.Missing{Rank: rank, Cause: cause})
			continue
		case theirs == nil:
			silent = append(silent, reducer.Missing{Rank: rank, Cause: cause})
			continue
		}
		if theirs.isIncomplete() {
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
		errs = append(errs, &reducer.NonFiniteError{Found: nonFinite})
	}
	if len(changed) > 0 {
		errs = append(errs, &reducer.GraphChangedError{Changed: changed})
	}
	hasFailed := slices.ContainsFunc(left, func(l reducer.Left) bool { return l.Cause != "" })
	if len(left) > 0 && (len(left) < len(raised) || hasFailed) { // else all ranks have run out of inputs
		errs = append(errs, &reducer.LeftError{Left: left})
	}
	if len(errs) == 0 && len(missing) == 0 {
		missing = silent
	}
	if len(missing) > 0 {
		errs = slices.Insert(errs, 0, error(&reducer.MissingGradientError{Missing: missing}))
	}
	if len(errs) == 1 {
		return errs[0]
	}
	return errors.Join(errs...)
}

// decode decodes the text that a rank last published under the key of a pass. It returns nil if the text is a
// report of another pass, or of a stale flag.
func decode(text []byte, rank int, pass uint64) (*report, error) {
	theirs, err := decodeReport(text, rank)
	if err != nil || theirs.Pass != pass || theirs.IsStale {
		return nil, err
	}
	return theirs, nil
}

// decodeReport decodes a report. It returns an error if the report is not about the given rank.
func decodeReport(text []byte, rank int) (*report, error) {
	theirs := &report{}
	if err := json.Unmarshal(text, theirs); err != nil {
		return nil, err
	}
	if theirs.isIncomplete() && theirs.Rank != rank ||
		theirs.NonFinite != nil && theirs.NonFinite.Rank != rank || theirs.Graph != nil && theirs.Graph.Rank != rank {
		return nil, fmt.Errorf("it is not a report of rank %d: %.200q", rank, text)
	}
	return theirs, nil
}
