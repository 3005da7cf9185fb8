package host

import (
	"slices"
	"testing"
)

func TestRanksAcrossHosts(t *testing.T) {
	for _, x := range []struct {
		what    string
		sharing [][]int
		want    [][]int // by rank; nil: shared memory is not used
	}{
		{"one host", [][]int{{0, 1}, {0, 1}}, [][]int{{0}, {1}}},
		{"two hosts", [][]int{{0, 1}, {0, 1}, {2, 3}, {2, 3}}, [][]int{{0, 2}, {1, 3}, {0, 2}, {1, 3}}},
		{"two hosts in turn", [][]int{{0, 2}, {1, 3}, {0, 2}, {1, 3}}, [][]int{{0, 1}, {0, 1}, {2, 3}, {2, 3}}},
		{"one rank a host", [][]int{{0}, {1}}, nil},
		{"hosts of different sizes", [][]int{{0, 1}, {0, 1}, {2}}, nil},
		{"ranks 0 and 2 could not connect", [][]int{{0, 1}, {0, 1, 2}, {1, 2}}, nil},
		{"a ring", [][]int{{0, 1}, {1, 2}, {0, 2}}, nil},
	} {
		for rank := range x.sharing {
			var want []int
			if x.want != nil {
				want = x.want[rank]
			}
			if got := ranksAcross(x.sharing, rank); !slices.Equal(got, want) {
				t.Errorf("%s: rank %d reduces with ranks %v, want %v", x.what, rank, got, want)
			}
		}
	}
}
