package reducer

import (
	"errors"
	"fmt"
	"strings"

	"github.com/goddp/goddp/device"
)

var (
	errReadyTwice  = errors.New("ready twice in one backward pass")
	errReadyUnused = errors.New("ready in a backward pass that was not to reach it")
)

// MissingGradientError says which parameters got no gradient in a pass that
// was to be reduced, or that a rank's pass failed. Every rank gets it for that
// pass; none applies the step, and the group stays usable. It matches
// [device.ErrSkipped]: the flags are raised on every rank's device.
type MissingGradientError struct {
	Missing []Missing // by rank
}

// Missing is what one rank lacked.
type Missing struct {
	Rank   int
	Params []string // by name; none if the pass failed behind the last gradient
	Cause  string   // what cut the pass short, if something did
}

func (e *MissingGradientError) Error() string {
	var b strings.Builder
	unused := false
	b.WriteString("no gradient in this backward pass for ")
	for i, m := range e.Missing {
		if i > 0 {
			b.WriteString("; for ")
		}
		fmt.Fprintf(&b, "%s on rank %d", names(m.Params), m.Rank)
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

// Is makes errors.Is(err, device.ErrSkipped) hold.
func (e *MissingGradientError) Is(target error) bool { return target == device.ErrSkipped }

// GraphChangedError says that a pass of a static graph did not use the
// parameters that its first one did. Every rank gets it for that pass; none
// applies the step, and the group stays usable. It matches [device.ErrSkipped].
type GraphChangedError struct {
	Changed []GraphChange // by rank
}

// GraphChange is how one rank's graph changed: the parameters, by name, that it
// uses and did not, and those that it did and does not.
type GraphChange struct {
	Rank           int
	Appear, Vanish []string
}

func (e *GraphChangedError) Error() string {
	var b strings.Builder
	b.WriteString("the static graph changed: ")
	for i, c := range e.Changed {
		if i > 0 {
			b.WriteString("; ")
		}
		var how []string
		if len(c.Appear) > 0 {
			how = append(how, "now uses "+names(c.Appear))
		}
		if len(c.Vanish) > 0 {
			how = append(how, "does not use "+names(c.Vanish))
		}
		fmt.Fprintf(&b, "rank %d %s", c.Rank, strings.Join(how, ", "))
	}
	b.WriteString(", other than in the first backward pass: the step is skipped on every rank")
	return b.String()
}

// Is makes errors.Is(err, device.ErrSkipped) hold.
func (e *GraphChangedError) Is(target error) bool { return target == device.ErrSkipped }

// names lists the first few of many names.
func names(ps []string) string {
	const most = 8
	if len(ps) == 0 {
		return "what comes before the model"
	}
	if len(ps) > most {
		return fmt.Sprintf("parameters %q and %d more", ps[:most], len(ps)-most)
	}
	if len(ps) == 1 {
		return fmt.Sprintf("parameter %q", ps[0])
	}
	return fmt.Sprintf("parameters %q", ps)
}

// ModelMismatchError says how a rank's model differs from rank 0's.
type ModelMismatchError struct {
	What   string // "parameter", "buffer", ...
	Rank   int
	Index  int    // in order of registration; -1 when the number of them differs
	Theirs string // as it is on Rank
	Rank0  string // as it is on rank 0
	Ranks  []int  // all ranks that differ from rank 0 in this, ascending; Rank is the first
}

func (e *ModelMismatchError) Error() string {
	others := ""
	if len(e.Ranks) > 1 {
		others = fmt.Sprintf("; ranks %v differ from rank 0", e.Ranks)
	}
	if e.Index < 0 {
		return fmt.Sprintf("the ranks' models differ: %s %ss on rank %d, %s on rank 0%s", e.Theirs, e.What, e.Rank, e.Rank0, others)
	}
	return fmt.Sprintf("the ranks' models differ: %s %d is %s on rank %d, %s on rank 0%s", e.What, e.Index, e.Theirs, e.Rank, e.Rank0, others)
}
