package rootcause

import "testing"

func TestRanks(t *testing.T) {
	var even []int
	for r := range 20 {
		even = append(even, 2*r)
	}
	for _, test := range []struct {
		ranks []int
		want  string
	}{
		{[]int{3}, "rank 3"}, {[]int{0, 1}, "ranks 0, 1"}, {[]int{0, 1, 2, 5, 7, 8, 9}, "ranks 0-2, 5, 7-9"},
		{even, "ranks 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30 and 4 more"},
		{[]int{3, 2, 0}, "ranks 0, 2, 3"},
	} {
		if got := Ranks(test.ranks); got != test.want {
			t.Errorf("%v: %q, want %q", test.ranks, got, test.want)
		}
	}
}
