package main

import (
	"fmt"
	"slices"
)

// The sides, in the order of the table's columns.
const (
	plainC = iota
	eventedC
	ofGoddp
	sides
)

// samples holds the times of a call on one rank, in microseconds, by side and turn.
type samples [sides][]float64

// row is a line of the table. Times are in microseconds, each the largest of all ranks.
type row struct {
	bytes int
	times [sides]float64
	added [3]float64 // quartiles of the difference between goddp and C without events
}

var header = fmt.Sprintf("%10s %9s %11s %9s %9s  %15s  %s", "bytes", "C us", "C, events", "goddp us", "added us", "middle half", "limit")

// newRow returns the row for the samples of all ranks, which have the same number of turns.
func newRow(bytes int, ranks []samples) row {
	r := row{bytes: bytes}
	for i, s := range ranks {
		added := slices.Clone(s[ofGoddp])
		for turn := range added {
			added[turn] -= s[plainC][turn]
		}
		a := quartiles(added)
		if i == 0 {
			r.added = a
		}
		for side, times := range s {
			r.times[side] = max(r.times[side], quartiles(times)[1])
		}
		for q := range a {
			r.added[q] = max(r.added[q], a[q])
		}
	}
	return r
}

// quartiles returns the quartiles of v.
func quartiles(v []float64) [3]float64 {
	v = slices.Sorted(slices.Values(v))
	n := len(v)
	return [3]float64{v[n/4], v[n/2], v[n*3/4]}
}

// limit returns the name of the limit at this size, and whether the row meets it.
func (r row) limit() (name string, isMet bool) {
	if r.bytes <= 1<<20 {
		return "C + 2 us", r.added[1] <= 2
	}
	return "1.05 C", r.added[1] <= 0.05*r.times[plainC]
}

func (r row) String() string {
	name, isMet := r.limit()
	verdict := "ok"
	if !isMet {
		verdict = "MISSED"
	}
	return fmt.Sprintf("%10d %9.2f %11.2f %9.2f %9.2f  %6.2f .. %5.2f  %s %s",
		r.bytes, r.times[plainC], r.times[eventedC], r.times[ofGoddp], r.added[1], r.added[0], r.added[2], name, verdict)
}

// verdict returns an error if a row missed its limit.
func verdict(rows []row) error {
	missed := 0
	for _, r := range rows {
		if _, isMet := r.limit(); !isMet {
			missed++
		}
	}
	if missed == 0 {
		return nil
	}
	return fmt.Errorf("sizes at which goddp adds more than the limit: %d of %d", missed, len(rows))
}
