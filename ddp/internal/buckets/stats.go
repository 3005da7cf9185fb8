package buckets

import (
	"time"

	"github.com/goddp/goddp/ddp/reducer"
	"github.com/goddp/goddp/profile"
)

// Stats returns the current Stats of the reducer.
func (r *Reducer) Stats() reducer.Stats {
	s := r.stats
	s.Buckets, s.Ready = r.describeBuckets(), r.names(r.core.order)
	for _, b := range r.buckets {
		if b.slot == own {
			s.Held += int64(b.size)
		}
	}
	for _, to := range r.slots {
		s.Held += int64(to.buf.Len())
	}
	for i, unused := range r.core.unused {
		if unused && !r.core.shadow {
			s.Unused = append(s.Unused, r.params[i].Name)
		}
	}
	return s
}

// Waited returns the time for which the host has waited for the outcomes of passes.
func (r *Reducer) Waited() time.Duration { return r.waited }

// Trace makes the Reducer call f with the span of each reduction and of each rebuilding of the buckets,
// even if the device's recorder is off.
func (r *Reducer) Trace(f func(profile.Span)) { r.also = f }

// timed reports whether the reducer must measure the times of reductions.
func (r *Reducer) timed() bool { return r.trace.On() || r.also != nil }

// traceSpan adds a span to the device's trace and passes it to the function given to Trace.
func (r *Reducer) traceSpan(s profile.Span) {
	r.trace.Add(s)
	if r.also != nil {
		r.also(s)
	}
}
