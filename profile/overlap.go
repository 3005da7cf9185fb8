package profile

import (
	"fmt"
	"slices"
	"time"
)

// Overlap states how much of the communication ran at the same time as computation.
type Overlap struct {
	Reductions int
	Bytes      int64         // the bytes of all reductions
	Comm       time.Duration // the time during which communication ran
	Hidden     time.Duration // the part of Comm during which computation ran
}

// Percent returns Hidden as a percentage of Comm, 100 if there was no communication.
func (o Overlap) Percent() float64 {
	if o.Comm == 0 {
		return 100
	}
	return 100 * float64(o.Hidden) / float64(o.Comm)
}

func (o Overlap) String() string {
	return fmt.Sprintf("%d reductions, %.1f MiB, %v of communication, %.0f%% hidden behind computation, %v exposed",
		o.Reductions, float64(o.Bytes)/(1<<20), o.Comm.Round(time.Microsecond), o.Percent(), (o.Comm - o.Hidden).Round(time.Microsecond))
}

// Overlap computes how much of the Communication track's time lies within spans of the Compute track,
// except spans in which the compute stream waits. Bytes is the sum of the spans' arguments of that name.
func (r *Recorder) Overlap() Overlap {
	var o Overlap
	var comm, compute, waits []interval
	for _, s := range r.Spans() {
		iv := interval{s.Begin.Time(), s.End.Time()}
		switch {
		case s.Track == Communication:
			comm = append(comm, iv)
			o.Reductions++
			for _, a := range s.Args {
				if n, ok := a.Value.(int); ok && a.Name == "bytes" {
					o.Bytes += int64(n)
				}
			}
		case s.Track == Compute && s.Waits:
			waits = append(waits, iv)
		case s.Track == Compute:
			compute = append(compute, iv)
		}
	}
	comm = union(comm)
	beside := both(comm, union(compute))
	o.Comm = length(comm)
	o.Hidden = length(beside) - length(both(beside, union(waits)))
	return o
}

type interval struct{ begin, end time.Time }

// union merges overlapping intervals and sorts them by time.
func union(ivs []interval) []interval {
	slices.SortFunc(ivs, func(a, b interval) int { return a.begin.Compare(b.begin) })
	var out []interval
	for _, iv := range ivs {
		if n := len(out); n > 0 && !out[n-1].end.Before(iv.begin) {
			out[n-1].end = later(out[n-1].end, iv.end)
			continue
		}
		out = append(out, iv)
	}
	return out
}

// both returns the time that lies in a and in b, which are results of union.
func both(a, b []interval) []interval {
	var out []interval
	for i, j := 0, 0; i < len(a) && j < len(b); {
		iv := interval{later(a[i].begin, b[j].begin), earlier(a[i].end, b[j].end)}
		if iv.begin.Before(iv.end) {
			out = append(out, iv)
		}
		if a[i].end.Before(b[j].end) {
			i++
		} else {
			j++
		}
	}
	return out
}

// length returns the total time of a union.
func length(ivs []interval) time.Duration {
	var d time.Duration
	for _, iv := range ivs {
		d += iv.end.Sub(iv.begin)
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
