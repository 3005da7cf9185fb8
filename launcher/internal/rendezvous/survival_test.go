package rendezvous

import (
	"testing"
	"time"
)

// A lost worker is replaced at once. After replacements that have not joined the others, or only for a short time, there
// are pauses, and after three in a row there is no other one. A member that is killed is replaced at once.
func TestReplacements(t *testing.T) {
	r, now := newReplacements(4), time.Now()
	for i, tt := range []struct {
		lost, rank int
		hasJoined  bool
		isKilled   bool
		after      time.Duration // since the exit before
		want       *StartOrder
		pause      time.Duration
	}{
		{2, 2, true, false, 0, &StartOrder{Worker: 4, Rank: 2, InPlaceOf: 2, Try: 1}, 0},
		{4, 2, false, false, 0, &StartOrder{Worker: 5, Rank: 2, InPlaceOf: 4, Try: 2}, time.Second},
		{1, 1, true, false, 0, &StartOrder{Worker: 6, Rank: 1, InPlaceOf: 1, Try: 1}, 0},
		{5, 2, true, false, SteadyTime + time.Second, &StartOrder{Worker: 7, Rank: 2, InPlaceOf: 5, Try: 1}, 0},
		{7, 2, true, false, SteadyTime - time.Second, &StartOrder{Worker: 8, Rank: 2, InPlaceOf: 7, Try: 2}, time.Second},
		{8, 2, false, false, 0, &StartOrder{Worker: 9, Rank: 2, InPlaceOf: 8, Try: 3}, 2 * time.Second},
		{9, 2, false, false, 0, nil, 0},
		{6, 1, true, true, 0, &StartOrder{Worker: 10, Rank: 1, InPlaceOf: 6, Try: 1}, 0},
	} {
		now = now.Add(tt.after)
		o, pause := r.choose(&Exit{Rank: tt.rank, Worker: tt.lost, Killed: tt.isKilled}, tt.hasJoined, now)
		if (o == nil) != (tt.want == nil) || o != nil && *o != *tt.want || pause != tt.pause {
			t.Errorf("exit %d: order %+v after %v, want %+v after %v", i, o, pause, tt.want, tt.pause)
		}
	}
}
