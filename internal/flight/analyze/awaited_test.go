package analyze

import (
	"slices"
	"testing"

	"github.com/goddp/goddp/internal/flight"
)

// Without records, the chains of waits that the backends know lead to the awaited ranks.
func TestOverdueWithoutRecords(t *testing.T) {
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
		accounts := []*flight.Dump{{WorldSize: 4, Waits: c.waits}}
		for r, waits := range c.answers {
			accounts = append(accounts, &flight.Dump{Rank: r, WorldSize: 4, Waits: waits})
		}
		if report, got := Overdue(0, accounts); !slices.Equal(got, c.want) || report.Records != 0 {
			t.Errorf("%s: got %v and %d records, want %v", c.what, got, report.Records, c.want)
		}
	}
}

// The records take precedence over what the backend knows.
func TestOverdueWithRecords(t *testing.T) {
	var s scenario
	for _, line := range []string{"rank 0 of 3 deadline=passed", "group default 3", "AllReduce 1 running", "rank 2 of 3", "group default 3", "AllReduce 1 running", "rank 1 of 3", "group default 3"} {
		if err := s.line(line); err != nil {
			t.Fatal(err)
		}
	}
	s.dumps[0].Waits = []int{2} // the neighbor, which waits too
	if report, got := Overdue(0, s.dumps); !slices.Equal(got, []int{1}) || report.Records != 3 {
		t.Errorf("got %v and %d records, want rank 1", got, report.Records)
	}
}
