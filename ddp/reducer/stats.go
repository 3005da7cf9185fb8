package reducer

import "github.com/goddp/goddp/profile"

// Stats are counts of what a Reducer did on this rank.
type Stats struct {
	Passes      int // passes that reduced
	Skipped     int // those of Passes whose gradients must not be used
	Shadowed    int // those of Passes that were shadow passes of this rank
	Accumulated int // passes that only accumulated

	Buckets []Bucket // the buckets in use, in the order in which they are reduced
	Rebuilt []string // the parameters in rank 0's order; nil if the buckets were not rebuilt
	Ready   []string // the parameters in the order in which this rank's last pass made them final
	Unused  []string // the parameters that this rank's last pass did not use; only if the reducer looks for them
}

// Stats returns the counts so far.
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

// Trace makes the Reducer call f with each span of a reduction, even if the device's recorder is off.
func (r *Reducer) Trace(f func(profile.Span)) { r.also = f }

// timed reports whether times of reductions are needed.
func (r *Reducer) timed() bool { return r.trace.On() || r.also != nil }

// record records a span in the device's trace and passes it to the function given to Trace.
func (r *Reducer) record(s profile.Span) {
	r.trace.Add(s)
	if r.also != nil {
		r.also(s)
	}
}
