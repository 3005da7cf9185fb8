package analyze

import (
	"fmt"
	"slices"
	"strings"
)

// Kind is what a finding is about.
type Kind string

// The kinds of findings, most telling first.
const (
	Usage     Kind = "usage"     // its program made a call that was refused
	Mismatch  Kind = "mismatch"  // different calls under one number
	Awaited   Kind = "awaited"   // others waited for it, and their records say no more
	Dead      Kind = "dead"      // its process ended
	Suspended Kind = "suspended" // its process is
	Missing   Kind = "missing"   // it left no record
	Left      Kind = "left"      // it closed its groups, or its process ended well, while others still called
	Behind    Kind = "behind"    // it is busy outside communication
	Late      Kind = "late"      // it called when the others were giving up, or had
	Compute   Kind = "compute"   // its call is queued behind its own compute
	Circle    Kind = "circle"    // ranks wait for each other
	Transport Kind = "transport" // all are in the same call, which does not end
	Failed    Kind = "failed"    // it was the first to record a failure
)

var order = []Kind{Usage, Mismatch, Awaited, Dead, Suspended, Missing, Left, Behind, Late, Compute, Circle, Transport, Failed}

// Finding is a fault, and the ranks that it points at.
type Finding struct {
	Kind    Kind     `json:"kind"`
	Ranks   []int    `json:"ranks"`
	Summary string   `json:"summary"` // one line
	Details []string `json:"details"` // what shows it, line by line
}

// Report is what is to be said about a job.
type Report struct {
	WorldSize int       `json:"world_size"`
	Records   int       `json:"records"`  // ranks that left one
	Findings  []Finding `json:"findings"` // most probable culprit first; none: nothing is wrong
	Notes     []string  `json:"notes"`    // what limits the above
}

// String is the report as a user reads it.
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

// sort puts the most telling findings first, and keeps the order of equals.
func (r *Report) sort() {
	slices.SortStableFunc(r.Findings, func(a, b Finding) int {
		return slices.Index(order, a.Kind) - slices.Index(order, b.Kind)
	})
}
