package reducer

import "github.com/goddp/goddp/profile"

// Stats describes the passes and the buckets of a Reducer on this rank.
type Stats struct {
	Passes      int // the number of passes that reduced, shadow passes included
	Skipped     int // the number of passes in Passes whose gradients must not be used
	Shadowed    int // the number of passes in Passes that were shadow passes on this rank
	Accumulated int // the number of passes that only accumulated

	Buckets []Bucket // the buckets in use, in the order in which they are reduced
	Rebuilt []string // the names of the parameters in the order in which rank 0's gradients became final; nil if the buckets were not rebuilt
	Ready   []string // the names of the parameters in the order in which their gradients became final in the last pass
	Unused  []string // the names of the parameters that the last pass did not use; nil with UnusedMissing
}

// Stats returns the current Stats of the reducer.
func (r *Reducer) Stats() Stats {
	s := r.stats
	s.Buckets, s.Ready = r.describeBuckets(), r.names(r.core.order)
	for i, unused := range r.core.unused {
		if unused && !r.core.shadow {
			s.Unused = append(s.Unused, r.params[i].Name)
		}
	}
	return s
}

// Trace makes the Reducer call f with the span of each reduction and of each rebuilding of the buckets,
// even if the device's recorder is off.
func (r *Reducer) Trace(f func(profile.Span)) { r.also = f }

// timed reports whether the reducer must measure the times of reductions.
func (r *Reducer) timed() bool { return r.trace.On() || r.also != nil }

// record records a span in the device's trace and passes it to the function given to Trace.
func (r *Reducer) record(s profile.Span) {
	r.trace.Add(s)
	if r.also != nil {
		r.also(s)
	}
}
