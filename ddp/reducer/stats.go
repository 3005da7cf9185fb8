package reducer

import "github.com/goddp/goddp/profile"

// Stats are what a Reducer did so far on this rank.
type Stats struct {
	Passes      int // that reduced
	Skipped     int // of these: whose gradients were not to be used
	Shadowed    int // of these: that this rank made for the others' sake
	Accumulated int // passes that reduced nothing

	Buckets []Bucket // in use
	Rebuilt []string // rank 0's order of parameters, which they were rebuilt by; nil where they were not
	Ready   []string // the order in which gradients became final in the last pass, on this rank
	Unused  []string // the parameters that the last pass did not use, on this rank, where these are found
}

// Stats tell what the Reducer did so far.
func (r *Reducer) Stats() Stats {
	s := r.stats
	s.Buckets, s.Ready = r.Buckets(), r.names(r.core.order)
	for i, unused := range r.core.unused {
		if unused && !r.core.shadow {
			s.Unused = append(s.Unused, r.params[i].Name)
		}
	}
	return s
}

// Trace has what the device's recorder is told of reductions told to f as well,
// whether that recorder is on or not.
func (r *Reducer) Trace(f func(profile.Span)) { r.also = f }

// timed tells whether anybody asks for times.
func (r *Reducer) timed() bool { return r.trace.On() || r.also != nil }

func (r *Reducer) record(s profile.Span) {
	r.trace.Add(s)
	if r.also != nil {
		r.also(s)
	}
}
