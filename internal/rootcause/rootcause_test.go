package rootcause

import (
	"testing"
	"time"
)

func TestSort(t *testing.T) {
	at := func(ms int) time.Time { return time.Unix(1_700_000_000, 0).Add(time.Duration(ms) * time.Millisecond) }
	of := func(rank int, causedBy ...int) Evidence { return Evidence{Ranks: []int{rank}, CausedBy: causedBy} }
	seen := func(rank, ms int, how Seen) Evidence { return Evidence{Ranks: []int{rank}, At: at(ms), Seen: how} }
	for name, c := range map[string]struct {
		failures []Evidence
		first    int
	}{
		"equal failures keep their order":            {[]Evidence{of(1), of(0)}, 1},
		"the earlier one":                            {[]Evidence{seen(0, 7, Told), seen(1, 6, Told)}, 1},
		"an effect comes after its cause":            {[]Evidence{of(0, 1), of(1)}, 1},
		"and after a cause that is itself unsure":    {[]Evidence{of(0, 1), {Ranks: []int{1}, Doubt: Overdue}}, 1},
		"a chain leads to its end":                   {[]Evidence{of(0, 1), of(1, 2), of(2)}, 2},
		"in a circle, the first":                     {[]Evidence{of(0, 1), of(1, 0)}, 0},
		"a cause that has not failed does not count": {[]Evidence{of(0, 5), of(1)}, 0},
		"itself is no cause":                         {[]Evidence{of(0, 0), of(1)}, 0},
		"a lost node caused what its ranks did":      {[]Evidence{of(0, 3), {Ranks: []int{2, 3}, At: at(9)}}, 2},
		"the more certain one":                       {[]Evidence{{Ranks: []int{0}, Doubt: Overdue}, {Ranks: []int{1}, Doubt: Broken}}, 1},
		"an exit is seen after its effects":          {[]Evidence{seen(0, 2001, Told), seen(1, 2100, Exited)}, 1},
		"but not long after":                         {[]Evidence{seen(0, 2001, Told), seen(1, 2102, Exited)}, 0},
		"a crash is seen later":                      {[]Evidence{seen(0, 2100, Told), seen(1, 3000, Crashed)}, 1},
	} {
		if Sort(c.failures, func(e Evidence) Evidence { return e }); c.failures[0].Ranks[0] != c.first {
			t.Errorf("%s: first is %v, want rank %d", name, c.failures[0].Ranks, c.first)
		}
	}
}
