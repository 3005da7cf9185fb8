package analyze

import (
	"testing"

	"github.com/goddp/goddp/internal/flight"
)

// A reason is second-hand if it repeats what another rank said.
func TestReasonThatRepeatsAnotherRank(t *testing.T) {
	for reason, want := range map[string]bool{
		"":                              false,
		"no luck":                       false,
		"rank 1: no luck":               false, // its own rank
		"rank 2: no luck":               true,
		"aborted by rank 2":             true,
		"aborted (rank 2: no luck)":     true,
		"rank 1: aborted by rank 12":    true,
		"waited for rank 2 in vain":     false,
		"prank 2: no luck":              false,
		"rank two: no luck":             false,
		"of the last rank 1: by rank ":  false,
		"deadline passed at rank 2 now": false,
	} {
		r := &rank{Dump: &flight.Dump{Rank: 1, Reason: reason}}
		if got := r.isSecondHand(); got != want {
			t.Errorf("%q: got %v, want %v", reason, got, want)
		}
	}
}
