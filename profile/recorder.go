package profile

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

// Track names the row of the trace that a span is drawn on: one per stream.
type Track string

// The tracks that the project itself records on.
const (
	Compute       Track = "compute"
	Communication Track = "communication"
	Host          Track = "host"
)

// Moment is a point in time that may not be known yet: a device's event is
// one. Time returns the zero Time until the moment has come.
type Moment interface{ Time() time.Time }

// At is a moment that is known.
type At time.Time

// Time returns the moment itself.
func (a At) Time() time.Time { return time.Time(a) }

// Arg is a named value shown with a span, such as a bucket's size in bytes.
type Arg struct {
	Name  string
	Value any // a number or a string
}

// Span is something that ran on a track.
type Span struct {
	Track      Track
	Name       string
	Begin, End Moment
	Args       []Arg
	Waits      bool // its track's stream waited for another one: no computation
}

// Recorder collects spans. Its methods are safe for concurrent use.
type Recorder struct {
	on    atomic.Bool
	mu    sync.Mutex
	spans []Span
	past  int // spans before it are over: their moments hold on to nothing
}

type valuesKey struct{}

// Of returns the recorder of a device.
func Of(dev device.Device) *Recorder {
	return kernels.Of(dev).Values().Get(valuesKey{}, func() any { return new(Recorder) }).(*Recorder)
}

// Start begins to record, after what was recorded before.
func (r *Recorder) Start() { r.on.Store(true) }

// Stop ends recording. What was recorded stays.
func (r *Recorder) Stop() { r.on.Store(false) }

// On tells whether spans are recorded: what would only be made to be recorded
// need not be made otherwise.
func (r *Recorder) On() bool { return r.on.Load() }

// Add records a span, if recording is on.
func (r *Recorder) Add(s Span) {
	if !r.on.Load() {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.spans = append(r.spans, s)
	for r.past < len(r.spans) && r.spans[r.past].settle() {
		r.past++
	}
}

// settle replaces both ends by their times, if they have come: a device's
// event, or a collective's call, need not be kept for its time.
func (s *Span) settle() bool {
	begin, end := s.Begin.Time(), s.End.Time()
	if begin.IsZero() || end.IsZero() {
		return false
	}
	s.Begin, s.End = At(begin), At(end)
	return true
}

// Spans returns the spans recorded so far whose both ends have come, in the
// order in which they were added.
func (r *Recorder) Spans() []Span {
	r.mu.Lock()
	defer r.mu.Unlock()
	var done []Span
	for i := range r.spans {
		if r.spans[i].settle() {
			done = append(done, r.spans[i])
		}
	}
	return done
}
