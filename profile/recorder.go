package profile

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

// Track is the row of the trace on which a span is drawn; each stream has one.
type Track string

// The tracks that this module records on.
const (
	Compute       Track = "compute"
	Communication Track = "communication"
	Host          Track = "host"
)

// Moment is a point in time that may lie in the future, such as a device's event. Time returns the zero
// Time until the moment has come.
type Moment interface{ Time() time.Time }

// At is a Moment at a known time.
type At time.Time

// Time returns the time.
func (a At) Time() time.Time { return time.Time(a) }

// Arg is a named value of a span, such as a bucket's size in bytes.
type Arg struct {
	Name  string
	Value any // a number or a string
}

// Span is a period of activity on a track.
type Span struct {
	Track      Track
	Name       string
	Begin, End Moment
	Args       []Arg
	Waits      bool // whether the stream waited for another stream, so that no computation ran
}

// Recorder collects spans. Its methods are safe for concurrent use.
type Recorder struct {
	dev   device.Device // nil in the zero Recorder
	on    atomic.Bool
	mu    sync.Mutex
	spans []Span
	past  int // the spans before this index have ended; their Moments are plain times
	gpu   gpu
}

type valuesKey struct{}

// ofDevice is the recorder of a device, which may be closed while the recorder records.
type ofDevice struct{ *Recorder }

// Close is called before the device closes.
func (r ofDevice) Close() { r.Stop() }

// Of returns the recorder of a device.
func Of(dev device.Device) *Recorder {
	return kernels.Of(dev).Values().Get(valuesKey{}, func() any { return ofDevice{&Recorder{dev: dev, gpu: gpu{dev: dev}}} }).(ofDevice).Recorder
}

// Start starts recording. Earlier spans are kept. If the device is a GPU and CUPTI is installed, the trace
// also contains the GPU's activity until Stop, or until the device is closed.
func (r *Recorder) Start() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.gpu.start()
	r.on.Store(true)
}

// Stop stops recording. The recorded spans are kept.
func (r *Recorder) Stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.on.Store(false)
	r.gpu.stop()
}

// On reports whether the recorder records, so that callers can skip work that serves only the recording. It does
// not record spans of a step that the calling goroutine is capturing, because the step does not run then. A
// captured step that runs is one span.
func (r *Recorder) On() bool {
	if !r.on.Load() {
		return false
	}
	d, ok := r.dev.(kernels.Capturer)
	return !ok || !d.Capturing()
}

// Add records a span if the recorder is on.
func (r *Recorder) Add(s Span) {
	if !r.On() {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.spans = append(r.spans, s)
	for r.past < len(r.spans) && r.spans[r.past].settle() {
		r.past++
	}
}

// settle replaces the span's Moments by their times once these are known, so that the span does not keep a device's
// event or a collective's call alive.
func (s *Span) settle() bool {
	begin, end := s.Begin.Time(), s.End.Time()
	if begin.IsZero() || end.IsZero() {
		return false
	}
	s.Begin, s.End = At(begin), At(end)
	return true
}

// Spans returns the recorded spans that have ended, in the order in which they were added.
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
