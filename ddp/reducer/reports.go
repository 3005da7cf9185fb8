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
	"github.com/goddp/goddp/internal/commaccess"
	"github.com/goddp/goddp/internal/coordinator"
)

// reports are how the ranks tell each other through the coordinator what went wrong in a
// pass. The flags say which rank failed, its report says why.
type reports struct {
	control *coordinator.Group
	number  int    // of this reducer
	pass    uint64 // number of the pass among those that reduce
}

// report is what a rank says about a pass.
type report struct {
	Pass uint64
	Missing
	NonFinite *NonFinite   `json:",omitempty"`
	Graph     *GraphChange `json:",omitempty"`
}

// empty tells whether there is nothing to say.
func (r *report) empty() bool { return !r.lacks() && r.NonFinite == nil && r.Graph == nil }

// lacks tells whether the rank's pass was incomplete.
func (r *report) lacks() bool { return len(r.Params) > 0 || r.Cause != "" }

// reportTimeout bounds the dealings with the coordinator about one pass.
const reportTimeout = 10 * time.Second

// newReports numbers this reducer. The ranks make theirs in the same order.
func newReports(pg *comm.ProcessGroup) reports {
	control := commaccess.Control(pg)
	return reports{control: control, number: control.Count("reducer")}
}

// key is where ranks post their reports of the pass, in place of those of two passes ago: all
// ranks have taken part in the pass between, so they have read them.
func (r *reports) key() string { return fmt.Sprintf("reducer/%d/%d", r.number, r.pass%2) }

// publish says what went wrong on this rank in this pass.
func (r *reports) publish(ctx context.Context, mine report) error {
	ctx, cancel := awake.WithTimeout(ctx, reportTimeout)
	defer cancel()
	mine.Pass = r.pass
	text, err := json.Marshal(mine)
	if err != nil {
		return err
	}
	if err = r.control.Post(ctx, r.key(), text); errors.As(err, new(*coordinator.Failure)) {
		return nil // the group is broken, and the reductions say why
	}
	return err
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
	var up, members []int
	for rank, is := range raised {
		if is {
			up, members = append(up, rank), append(members, r.control.Members[rank])
		}
	}
	texts, unread := r.control.Posted(ctx, r.key(), members)
	var missing, silent []Missing
	var nonFinite []NonFinite
	var changed []GraphChange
	var left LeftError
	for i, rank := range up {
		var theirs *report
		err := unread
		if err == nil {
			theirs, err = r.decode(texts[i], rank)
		}
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
	if len(left.Left) > 0 && !(len(left.Left) == len(raised) && left.over()) {
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

// decode reads what a rank posted last; nil: it has posted no report of this pass.
func (r *reports) decode(text []byte, rank int) (*report, error) {
	if len(text) == 0 {
		return nil, nil
	}
	theirs, err := decodeReport(text, rank)
	if err != nil || theirs.Pass != r.pass {
		return nil, err
	}
	return theirs, nil
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
