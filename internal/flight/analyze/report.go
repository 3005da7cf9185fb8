package analyze

import (
	"fmt"
	"slices"
	"strings"
)

// Kind is the kind of a finding.
type Kind string

// The kinds of findings, the most conclusive first. "The rank" is the rank at fault.
const (
	Usage     Kind = "usage"     // the rank's program made a call that was rejected
	Mismatch  Kind = "mismatch"  // ranks made different calls under one number
	Awaited   Kind = "awaited"   // other ranks waited for the rank, and the records do not say why
	Dead      Kind = "dead"      // the rank's process ended
	Replaced  Kind = "replaced"  // the rank's process has become another program
	Suspended Kind = "suspended" // the rank's process is suspended
	Missing   Kind = "missing"   // the rank left no record
	Left      Kind = "left"      // the rank closed its groups, or exited normally, while others still made calls
	Behind    Kind = "behind"    // the rank is busy outside communication
	Late      Kind = "late"      // the rank started its call when the other ranks' calls had timed out, or were about to
	Compute   Kind = "compute"   // the rank's call is queued behind its own compute
	Circle    Kind = "circle"    // ranks wait for each other
	Transport Kind = "transport" // all ranks are in the same call, which does not end
	Failed    Kind = "failed"    // the rank was the first to record a failure
)

var order = []Kind{Usage, Mismatch, Awaited, Dead, Replaced, Suspended, Missing, Left, Behind, Late, Compute, Circle, Transport, Failed}

// Finding is a fault and the ranks at fault.
type Finding struct {
	Kind    Kind     `json:"kind"`
	Ranks   []int    `json:"ranks"`
	Summary string   `json:"summary"` // one line
	Details []string `json:"details"` // the evidence, line by line
}

// Report is the result of Analyze.
type Report struct {
	WorldSize int       `json:"world_size"`
	Records   int       `json:"records"`  // number of ranks that left a record
	Findings  []Finding `json:"findings"` // the most probable first; empty if nothing is wrong
	Notes     []string  `json:"notes"`    // reasons why the findings may be incomplete
}

// String returns the report as text for the user.
func (r *Report) String() string {
	var b strings.Builder
	if len(r.Findings) == 0 {
		fmt.Fprintf(&b, "Nothing wrong: records of %d of %d ranks.\n", r.Records, r.WorldSize)
	}
	for i, f := range r.Findings {
		if i == 0 {
			fmt.Fprintf(&b, "Most probable: %s.\n", f.Summary)
		} else {
			fmt.Fprintf(&b, "Also: %s.\n", f.Summary)
		}
		for _, d := range f.Details {
			fmt.Fprintf(&b, "  %s\n", d)
		}
		if i+1 == len(r.Findings) || r.Findings[i+1].Kind != f.Kind {
			fmt.Fprintf(&b, "  What to do: %s\n", f.Kind.Advice())
		}
	}
	for _, n := range r.Notes {
		fmt.Fprintf(&b, "Note: %s.\n", n)
	}
	return b.String()
}

func (r *Report) add(k Kind, ranks []int, summary string, details ...string) {
	r.Findings = append(r.Findings, Finding{Kind: k, Ranks: ranks, Summary: summary, Details: details})
}

func (r *Report) has(k Kind) bool {
	return slices.ContainsFunc(r.Findings, func(f Finding) bool { return f.Kind == k })
}

func (r *Report) notef(format string, args ...any) {
	r.Notes = append(r.Notes, fmt.Sprintf(format, args...))
}

// sort orders the findings, the most conclusive first. The sort is stable.
func (r *Report) sort() {
	slices.SortStableFunc(r.Findings, func(a, b Finding) int {
		return slices.Index(order, a.Kind) - slices.Index(order, b.Kind)
	})
}
