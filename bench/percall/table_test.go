package main

import (
	"slices"
	"strings"
	"testing"
)

// turns returns n equal times.
func turns(v float64, n int) []float64 { return slices.Repeat([]float64{v}, n) }

func TestRowsAndTheirLimits(t *testing.T) {
	for _, c := range []struct {
		name  string
		bytes int
		ranks []samples
		want  string // with single spaces between the columns
	}{
		{
			"at the limit, and at the largest size of that limit", 1 << 20, []samples{{turns(30, 3), turns(30, 3), turns(32, 3)}},
			"1048576 30.00 30.00 32.00 2.00 2.00 .. 2.00 C + 2 us ok",
		},
		{
			"above the limit on one rank", 1024, []samples{{turns(9, 5), turns(9, 5), turns(9, 5)}, {turns(8, 5), turns(8, 5), turns(10.5, 5)}},
			"1024 9.00 9.00 10.50 2.50 2.50 .. 2.50 C + 2 us MISSED",
		},
		{
			"faster than C", 1024, []samples{{turns(9, 2), turns(9, 2), turns(8.5, 2)}, {turns(9, 2), turns(9, 2), turns(8, 2)}},
			"1024 9.00 9.00 8.50 -0.50 -0.50 .. -0.50 C + 2 us ok",
		},
		{
			"a machine of two speeds, on which the medians differ by 3", 4096,
			[]samples{{{8, 12, 8, 12, 8}, {8, 8, 9, 9, 9}, {9, 13, 9, 13, 13}}},
			"4096 8.00 9.00 13.00 1.00 1.00 .. 1.00 C + 2 us ok",
		},
		{
			"the differences' quartiles", 4096,
			[]samples{{turns(10, 8), turns(10, 8), {17, 11, 12, 16, 13, 14, 15, 10}}},
			"4096 10.00 10.00 14.00 4.00 2.00 .. 6.00 C + 2 us MISSED",
		},
		{
			"above the limit of a large size", 4 << 20, []samples{{turns(100, 4), turns(100, 4), turns(105.5, 4)}},
			"4194304 100.00 100.00 105.50 5.50 5.50 .. 5.50 1.05 C MISSED",
		},
	} {
		if got := strings.Join(strings.Fields(newRow(c.bytes, c.ranks).String()), " "); got != c.want {
			t.Errorf("%s:\ngot  %s\nwant %s", c.name, got, c.want)
		}
	}
}

func TestVerdictCountsMissedLimits(t *testing.T) {
	held, missed := newRow(1024, []samples{{turns(9, 1), turns(9, 1), turns(10, 1)}}), newRow(1024, []samples{{turns(9, 1), turns(9, 1), turns(12, 1)}})
	if err := verdict([]row{held, held}); err != nil {
		t.Error(err)
	}
	const want = "sizes at which goddp adds more than the limit: 1 of 2"
	if err := verdict([]row{missed, held}); err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}
