package timeline

import (
	"slices"
	"time"
)

// Interval is the time from Begin to End.
type Interval struct{ Begin, End time.Time }

// Union merges overlapping intervals and sorts them by time. It reorders ivs.
func Union(ivs []Interval) []Interval {
	slices.SortFunc(ivs, func(a, b Interval) int { return a.Begin.Compare(b.Begin) })
	var out []Interval
	for _, iv := range ivs {
		if n := len(out); n > 0 && !out[n-1].End.Before(iv.Begin) {
			out[n-1].End = later(out[n-1].End, iv.End)
			continue
		}
		out = append(out, iv)
	}
	return out
}

// Both returns the time that lies both in a and in b. a and b must be results of Union.
func Both(a, b []Interval) []Interval {
	var out []Interval
	for i, j := 0, 0; i < len(a) && j < len(b); {
		iv := Interval{later(a[i].Begin, b[j].Begin), earlier(a[i].End, b[j].End)}
		if iv.Begin.Before(iv.End) {
			out = append(out, iv)
		}
		if a[i].End.Before(b[j].End) {
			i++
		} else {
			j++
		}
	}
	return out
}

// Minus returns the time that lies in a and not in b. a and b must be results of Union.
func Minus(a, b []Interval) []Interval {
	outside := Gaps(slices.Concat([]Interval{{End: time.Unix(0, -2*maxTime)}}, b, []Interval{{Begin: time.Unix(0, 2*maxTime-1)}}))
	return Both(a, outside)
}

// Gaps returns the intervals between the intervals of a result of Union.
func Gaps(ivs []Interval) []Interval {
	var out []Interval
	for i := 1; i < len(ivs); i++ {
		out = append(out, Interval{ivs[i-1].End, ivs[i].Begin})
	}
	return out
}

// Length returns the total time of a result of Union.
func Length(ivs []Interval) time.Duration {
	var d time.Duration
	for _, iv := range ivs {
		d += iv.End.Sub(iv.Begin)
	}
	return d
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
