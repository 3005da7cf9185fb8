package reducer

import (
	"fmt"
	"slices"
	"strings"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/rootcause"
)

// skipped is embedded in the types of errors after which all ranks skip the step.
type skipped struct{}

// Is makes errors.Is(err, device.ErrSkipped) true. With such an error, every rank's device sees a raised
// flag and skips the step.
func (skipped) Is(target error) bool { return target == device.ErrSkipped }

// RefusedError says that the process group failed before the device had all reductions of a step, in a job that
// survives the loss of ranks. This rank does not apply the step; another one may have applied it. The error matches
// [device.ErrSkipped].
type RefusedError struct {
	Rank int
	skipped
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("rank %d: the process group failed before the gradients were reduced: the step is not applied here", e.Rank)
}

// MissingGradientError lists the parameters that got no gradient in a pass, and the ranks whose pass
// failed. Every rank gets this error for that pass. No rank applies the step, and the group remains
// usable. The error matches [device.ErrSkipped].
type MissingGradientError struct {
	Missing []Missing // one element for each rank with an incomplete pass, in order of rank
	skipped
}

// Missing describes the incomplete pass of one rank.
type Missing struct {
	Rank   int
	Params []string // the parameters without a gradient; empty if the pass failed after the last gradient
	Cause  string   // the error that cut the pass short; "" if there was none
}

func (e *MissingGradientError) Error() string {
	var b strings.Builder
	unused := false
	b.WriteString("no gradient in this backward pass for ")
	for rest := e.Missing; len(rest) > 0; {
		m, ranks := rest[0], []int(nil)
		for len(rest) > 0 && rest[0].Cause == m.Cause && slices.Equal(rest[0].Params, m.Params) {
			ranks, rest = append(ranks, rest[0].Rank), rest[1:]
		}
		if ranks[0] != e.Missing[0].Rank {
			b.WriteString("; for ")
		}
		fmt.Fprintf(&b, "%s on %s", names(m.Params), rootcause.Ranks(ranks))
		if m.Cause != "" {
			fmt.Fprintf(&b, ", whose pass failed: %s", m.Cause)
		} else {
			unused = true
		}
	}
	b.WriteString(": the step is skipped on every rank")
	if unused {
		b.WriteString(" (was a parameter not used in the loss? FindUnusedParameters allows that)")
	}
	return b.String()
}

// GraphChangedError says that a pass with ddp.Options.StaticGraph used other parameters than the
// first successful pass. Every rank gets this error for that pass. No rank applies the step, and the
// group remains usable. The error matches [device.ErrSkipped].
type GraphChangedError struct {
	Changed []GraphChange // one element for each rank whose graph changed, in order of rank
	skipped
}

// GraphChange says how the parameters that one rank uses have changed since its first successful pass.
type GraphChange struct {
	Rank         int
	NewlyUsed    []string // parameters that this pass uses and the first successful pass did not use
	NoLongerUsed []string // parameters that the first successful pass used and this pass does not use
}

func (e *GraphChangedError) Error() string {
	var b strings.Builder
	b.WriteString("the static graph changed: ")
	for i, c := range e.Changed {
		if i > 0 {
			b.WriteString("; ")
		}
		var how []string
		if len(c.NewlyUsed) > 0 {
			how = append(how, "now uses "+names(c.NewlyUsed))
		}
		if len(c.NoLongerUsed) > 0 {
			how = append(how, "does not use "+names(c.NoLongerUsed))
		}
		fmt.Fprintf(&b, "rank %d %s", c.Rank, strings.Join(how, ", "))
	}
	b.WriteString(", other than in the first backward pass: the step is skipped on every rank")
	return b.String()
}

// names lists parameters for an error text. If there are many, it lists the first ones and says how many
// more there are.
func names(ps []string) string {
	const most = 8
	if len(ps) == 0 {
		return "the parts before the model"
	}
	if len(ps) > most {
		return fmt.Sprintf("parameters %q and %d more", ps[:most], len(ps)-most)
	}
	if len(ps) == 1 {
		return fmt.Sprintf("parameter %q", ps[0])
	}
	return fmt.Sprintf("parameters %q", ps)
}

// ModelMismatchError describes the first difference between the model of a rank and the model of rank 0.
type ModelMismatchError struct {
	What   string // the kind of an item, such as "parameter" or "buffer"
	Rank   int
	Index  int    // the index of the item that differs; -1 if the numbers of items differ
	Theirs string // the item, or the number of items, on the rank Rank
	Rank0  string // the item, or the number of items, on rank 0
	Ranks  []int  // all ranks whose item at Index, or number of items, differs from rank 0's; ascending, the first is Rank
}

func (e *ModelMismatchError) Error() string {
	others := ""
	if len(e.Ranks) > 1 {
		others = fmt.Sprintf("; %s differ from rank 0", rootcause.Ranks(e.Ranks))
	}
	if e.Index < 0 {
		return fmt.Sprintf("the ranks' models differ: %s %ss on rank %d, %s on rank 0%s", e.Theirs, e.What, e.Rank, e.Rank0, others)
	}
	return fmt.Sprintf("the ranks' models differ: %s %d is %s on rank %d, %s on rank 0%s", e.What, e.Index, e.Theirs, e.Rank, e.Rank0, others)
}

// NonFiniteError lists gradients that held a NaN or an infinity before they were reduced. Only
// a model with ddp.Options.CheckNonFinite looks for such gradients. Every rank gets this error for that pass.
// No rank applies the step, and the group remains usable. The error matches [device.ErrSkipped]. It may be
// joined with a [*MissingGradientError].
type NonFiniteError struct {
	Found []NonFinite // one element for each rank that has non-finite gradients, in order of rank
	skipped
}

// NonFinite describes the gradients of one rank that are not finite.
type NonFinite struct {
	Rank   int
	Bucket int    // the first bucket that has a non-finite gradient, in the order of reduction
	Param  string // the first parameter in Bucket with a non-finite gradient, in order of registration
	Params int    // the number of parameters with a non-finite gradient, in all buckets
}

func (e *NonFiniteError) Error() string {
	var b strings.Builder
	b.WriteString("NaN or Inf in the gradient of ")
	for i, f := range e.Found {
		if i > 0 {
			b.WriteString("; of ")
		}
		fmt.Fprintf(&b, "parameter %q, in bucket %d,", f.Param, f.Bucket)
		if f.Params > 1 {
			fmt.Fprintf(&b, " and %d more", f.Params-1)
		}
		fmt.Fprintf(&b, " on rank %d", f.Rank)
	}
	b.WriteString(": the step is skipped on every rank")
	return b.String()
}

// LeftError says that some ranks have left, so that no rank can make further passes: see
// ddp.Model.Join. Every rank gets this error for the pass in which these ranks leave. No rank applies
// the step of this pass, and the group remains usable. The error matches [device.ErrSkipped].
type LeftError struct {
	Left []Left // one element for each rank that left, in order of rank
	skipped
}

// Left describes a rank that has left.
type Left struct {
	Rank  int
	Cause string // why the rank left; "": it ran out of inputs
}

func (e *LeftError) Error() string {
	var b strings.Builder
	for i, l := range e.Left {
		if i > 0 {
			b.WriteString("; ")
		}
		if l.Cause == "" {
			fmt.Fprintf(&b, "rank %d ran out of inputs", l.Rank)
		} else {
			fmt.Fprintf(&b, "rank %d failed: %s", l.Rank, l.Cause)
		}
	}
	b.WriteString(": training ends on every rank")
	return b.String()
}
