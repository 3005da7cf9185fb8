package timeline

import (
	"slices"
	"testing"
	"time"
)

// of makes intervals of pairs of milliseconds.
func of(ms ...int64) (ivs []Interval) {
	for pair := range slices.Chunk(ms, 2) {
		ivs = append(ivs, Interval{time.UnixMilli(pair[0]), time.UnixMilli(pair[1])})
	}
	return ivs
}

func TestIntervals(t *testing.T) {
	a := Union(of(20, 30, 0, 10, 5, 12, 6, 7, 12, 13))
	if want := of(0, 13, 20, 30); !slices.Equal(a, want) {
		t.Errorf("the union is %v, want %v", a, want)
	}
	b := Union(of(10, 22, 25, 26, 29, 40))
	if got, want := Both(a, b), of(10, 13, 20, 22, 25, 26, 29, 30); !slices.Equal(got, want) || !slices.Equal(Both(b, a), want) {
		t.Errorf("both: %v and %v, want %v", got, Both(b, a), want)
	}
	if got, want := Gaps(b), of(22, 25, 26, 29); !slices.Equal(got, want) {
		t.Errorf("gaps: %v, want %v", got, want)
	}
	if got, want := Minus(a, b), of(0, 10, 22, 25, 26, 29); !slices.Equal(got, want) || !slices.Equal(Minus(a, nil), a) {
		t.Errorf("minus: %v and %v, want %v and %v", got, Minus(a, nil), want, a)
	}
	if got := Length(a); got != 23*time.Millisecond {
		t.Errorf("length %v, want 23 ms", got)
	}
	if Union(nil) != nil || Both(a, nil) != nil || Gaps(a[:1]) != nil || Length(nil) != 0 {
		t.Error("nothing is not nothing")
	}
}
