package ranklist

import "testing"

func TestFormat(t *testing.T) {
	for _, test := range []struct {
		ranks []int
		want  string
	}{
		{[]int{3}, "rank 3"}, {[]int{0, 1}, "ranks 0, 1"}, {[]int{0, 1, 2, 5, 7, 8, 9}, "ranks 0-2, 5, 7-9"},
	} {
		if got := Format(test.ranks); got != test.want {
			t.Errorf("%v: %q, want %q", test.ranks, got, test.want)
		}
	}
}
