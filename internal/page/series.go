package page

import (
	"math"
	"slices"
)

// bucket holds what is known of the points of some neighbouring steps.
type bucket struct {
	first, last    int64 // steps
	min, max, mean float32
	// points is the number of finite points, and others that of NaNs and infinities.
	points, others uint32
}

// add adds the points of o, which follow those of b.
func (b *bucket) add(o bucket) {
	b.last = o.last
	b.others += o.others
	if o.points == 0 {
		return
	}
	if b.points == 0 {
		b.min, b.max, b.mean, b.points = o.min, o.max, o.mean, o.points
		return
	}
	b.min, b.max = min(b.min, o.min), max(b.max, o.max)
	n := b.points + o.points
	b.mean += (o.mean - b.mean) * (float32(o.points) / float32(n))
	b.points = n
}

// series are the points of one number of one rank, in order of their steps. It holds a bounded number of buckets: when
// there are more, neighbours are joined. So a spike of one step stays visible, however long the run is.
type series struct {
	buckets []bucket
	width   uint32 // the number of points in a bucket
	latest  float64
	at      int64 // the step of latest
}

// add adds a point. A step that comes again, because the job went back to a checkpoint or lost a worker, replaces what
// is known of it and of later ones.
func (s *series) add(step int64, value float64, most int) {
	s.latest, s.at = value, step
	for n := len(s.buckets); n > 0 && s.buckets[n-1].last >= step; n-- {
		if b := &s.buckets[n-1]; b.first < step {
			b.last = step - 1
			break
		}
		s.buckets = s.buckets[:n-1]
	}
	b := bucket{first: step, last: step}
	if v := float32(value); math.IsNaN(value) || math.IsInf(float64(v), 0) {
		b.others = 1
	} else {
		b.min, b.max, b.mean, b.points = v, v, v, 1
	}
	s.width = max(s.width, 1)
	if n := len(s.buckets); n > 0 && s.buckets[n-1].points+s.buckets[n-1].others < s.width {
		s.buckets[n-1].add(b)
		return
	}
	if len(s.buckets) >= most {
		s.halve()
	}
	s.buckets = append(s.buckets, b)
}

// halve joins pairs of buckets.
func (s *series) halve() {
	n := 0
	for i := 0; i < len(s.buckets); i += 2 {
		b := s.buckets[i]
		if i+1 < len(s.buckets) {
			b.add(s.buckets[i+1])
		}
		s.buckets[n] = b
		n++
	}
	s.buckets = s.buckets[:n]
	s.width *= 2
}

// shrink makes the series hold at most `most` buckets, in memory for no more.
func (s *series) shrink(most int) {
	for len(s.buckets) > most {
		s.halve()
	}
	s.buckets = slices.Clip(slices.Clone(s.buckets))
}

// bins sums up the buckets between two steps in n bins of equal width. A bin without points has points and others 0. A
// bucket that is wider than a bin is in the bin of its first step, or in the first bin if it begins before.
func (s *series) bins(from, to int64, n int) []bucket {
	out := make([]bucket, n)
	begin, _ := slices.BinarySearchFunc(s.buckets, from, func(b bucket, step int64) int { return int(max(-1, min(1, b.last-step))) })
	for _, b := range s.buckets[begin:] {
		if b.first > to {
			break
		}
		i := int(float64(max(b.first, from)-from) / float64(to-from+1) * float64(n))
		bin := &out[min(i, n-1)]
		if bin.points+bin.others == 0 {
			*bin = b
		} else {
			bin.add(b)
		}
	}
	return out
}
