package ddp

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/goddp/goddp/ddp/internal/buckets"
	"github.com/goddp/goddp/ddp/reducer"
	"github.com/goddp/goddp/profile"
)

// reportEvery is the number of reducing passes between two reports of the statistics in the log.
const reportEvery = 100

// Stats are statistics of a model on this rank. The times are measured if Options.Stats is set. They are
// the device's times per step, averaged over the passes that reduced and succeeded. The step of a reducing pass
// also includes the forward passes, and the passes that only accumulated, since the previous reducing pass.
type Stats struct {
	reducer.Stats

	Timed    int           // the number of steps in the averages
	Forward  time.Duration // the time of the module's Forward
	Backward time.Duration // the time of backward passes
	Comm     time.Duration // the time in which at least one bucket was being reduced
	Hidden   time.Duration // the part of Comm in which Forward or a backward pass ran too
}

// Percent returns the percentage of the communication that was hidden behind computation; 100 if there was
// none.
func (s Stats) Percent() float64 {
	return profile.Overlap{Comm: s.Comm, Hidden: s.Hidden}.Percent()
}

func (s Stats) String() string {
	text := fmt.Sprintf("%d passes reduced %d buckets (%d skipped, %d more accumulated), %d parameters unused in the last one",
		s.Passes, len(s.Buckets), s.Skipped, s.Accumulated, len(s.Unused))
	if s.Rebuilt != nil {
		text += ", rebuilt"
	}
	if s.Timed > 0 {
		text += fmt.Sprintf("; in a step forward %v, backward %v, communication %v, %.0f%% of it hidden", s.Forward, s.Backward, s.Comm, s.Percent())
	}
	return text
}

// Stats returns the statistics so far.
func (m *Model) Stats() Stats {
	s := Stats{Stats: m.reducer.Stats()}
	m.times.average(&s)
	return s
}

// Waited returns the time for which the host has waited for reductions, in all passes since New or Regroup. On a GPU it
// includes the wait for the kernels before them. It is always measured.
func (m *Model) Waited() time.Duration { return m.reducer.Waited() }

// report logs the statistics in every reportEvery-th pass.
func (m *Model) report() {
	if log := m.pg.Log(); m.passes%reportEvery == 0 && log.Enabled(m.pg.Context(), slog.LevelDebug) {
		log.Debug("distributed training", "stats", m.Stats())
	}
}

// timing measures passes. It never waits for the device: it evaluates a pass once the times of all events of the
// pass are known. A nil timing measures nothing.
type timing struct {
	now     *window   // the window of the next pass to end
	pending []*window // the windows of passes that have ended, the oldest first

	passes                          int           // the number of evaluated passes
	forward, backward, comm, hidden time.Duration // sums over these passes
}

// window collects the spans that belong to one reducing pass.
type window struct {
	rec   profile.Recorder
	added int // the number of spans
}

// mostPending is the largest number of windows that wait for times. If there are more, the oldest window is
// discarded, because it may contain a call that never gets a time.
const mostPending = 16

func newTiming(r *buckets.Reducer) *timing {
	t := &timing{}
	t.open()
	r.Trace(t.add)
	return t
}

// open starts a new window.
func (t *timing) open() {
	t.now = &window{}
	t.now.rec.Start()
}

// add adds a span to the current window.
func (t *timing) add(s profile.Span) {
	if t == nil {
		return
	}
	t.now.rec.Add(s)
	t.now.added++
}

// end ends the window of a pass. A pass that failed is not counted.
func (t *timing) end(err error) {
	if t == nil {
		return
	}
	if err == nil {
		t.pending = append(t.pending, t.now)
	}
	t.open()
	t.settle()
	if len(t.pending) > mostPending {
		t.pending = t.pending[1:]
	}
}

// settle evaluates the pending windows that have all times.
func (t *timing) settle() {
	for len(t.pending) > 0 {
		w := t.pending[0]
		spans := w.rec.Spans()
		if len(spans) < w.added {
			return
		}
		for _, s := range spans {
			took := s.End.Time().Sub(s.Begin.Time())
			switch {
			case s.Track != profile.Compute:
			case s.Name == "forward":
				t.forward += took
			default:
				t.backward += took
			}
		}
		o := w.rec.Overlap()
		t.comm += o.Comm
		t.hidden += o.Hidden
		t.passes++
		t.pending = t.pending[1:]
	}
}

// average sets the averages in s.
func (t *timing) average(s *Stats) {
	if t == nil {
		return
	}
	if t.settle(); t.passes == 0 {
		return
	}
	n := time.Duration(t.passes)
	s.Timed = t.passes
	s.Forward, s.Backward, s.Comm, s.Hidden = t.forward/n, t.backward/n, t.comm/n, t.hidden/n
}
