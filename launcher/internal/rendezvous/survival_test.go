package rendezvous

import (
	"testing"
	"time"
)

// A lost worker is replaced at once. After replacements that have not joined the others, there are pauses, and after
// three in a row there is no other one.
func TestReplacements(t *testing.T) {
	r := replacements{next: 4, failed: map[int]int{}}
	for i, tt := range []struct {
		lost, rank int
		hasJoined  bool
		want       *StartOrder
		pause      time.Duration
	}{
		{2, 2, true, &StartOrder{Worker: 4, Rank: 2, InPlaceOf: 2, Try: 1}, 0},
		{4, 2, false, &StartOrder{Worker: 5, Rank: 2, InPlaceOf: 4, Try: 2}, time.Second},
		{1, 1, true, &StartOrder{Worker: 6, Rank: 1, InPlaceOf: 1, Try: 1}, 0},
		{5, 2, true, &StartOrder{Worker: 7, Rank: 2, InPlaceOf: 5, Try: 1}, 0},
		{7, 2, false, &StartOrder{Worker: 8, Rank: 2, InPlaceOf: 7, Try: 2}, time.Second},
		{8, 2, false, &StartOrder{Worker: 9, Rank: 2, InPlaceOf: 8, Try: 3}, 2 * time.Second},
		{9, 2, false, nil, 0},
	} {
		o, pause := r.choose(&Exit{Rank: tt.rank, Worker: tt.lost}, tt.hasJoined)
		if (o == nil) != (tt.want == nil) || o != nil && *o != *tt.want || pause != tt.pause {
			t.Errorf("exit %d: order %+v after %v, want %+v after %v", i, o, pause, tt.want, tt.pause)
		}
	}
}
