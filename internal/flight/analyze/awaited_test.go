package analyze

import (
	"maps"
	"slices"
	"testing"
)

// If the records blame no rank, the chains of waits that the backends know do.
func TestAwaited(t *testing.T) {
	for _, c := range []struct {
		what    string
		waits   []int
		answers map[int][]int
		want    []int
	}{
		{"the ring's neighbor does not answer", []int{3}, nil, []int{3}},
		{"the neighbor waits for who does not answer", []int{3}, map[int][]int{3: {2}, 1: {0}}, []int{2}},
		{"all answer, and one waits for nobody", []int{1}, map[int][]int{1: {2}, 2: {3}, 3: {}}, []int{3}},
		{"silence says more than idleness", []int{1, 2}, map[int][]int{1: {3}, 2: {}}, []int{3}},
		{"several do not answer", []int{3, 1}, map[int][]int{2: {1}}, []int{1, 3}},
		{"who is not on the way does not matter", []int{1}, map[int][]int{1: {2}, 2: {}, 3: {}}, []int{2}},
		{"they wait for each other", []int{1}, map[int][]int{1: {2}, 2: {0}}, []int{1}},
	} {
		waits := map[int][]int{0: c.waits}
		maps.Copy(waits, c.answers)
		r := &Report{Findings: []Finding{{Kind: Transport, Ranks: []int{0, 1}}}}
		if got := r.Awaited(0, waits); !slices.Equal(got, c.want) {
			t.Errorf("%s: got %v, want %v", c.what, got, c.want)
		}
		r.Findings = append(r.Findings, Finding{Kind: Behind, Ranks: []int{2}}, Finding{Kind: Late, Ranks: []int{1, 2}})
		if got := r.Awaited(0, waits); !slices.Equal(got, []int{1, 2}) {
			t.Errorf("%s, but the records blame ranks 1 and 2: got %v", c.what, got)
		}
	}
}
