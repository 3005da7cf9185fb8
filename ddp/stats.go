package ddp

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/goddp/goddp/ddp/reducer"
	"github.com/goddp/goddp/profile"
)

// reportEvery is how many passes that reduce lie between two reports of a
// model's statistics in the log.
const reportEvery = 100

// Stats are what a model did so far on this rank. The times are measured with
// Options.Stats. They are the device's, averaged over the passes that reduced and
// succeeded, each together with the forward passes, and those that only
// accumulated, since the one before.
type Stats struct {
	reducer.Stats

	Timed    int           // passes whose times are known
	Forward  time.Duration // of the module's Forward
	Backward time.Duration // of backward passes
	Comm     time.Duration // during which some bucket was being reduced
	Hidden   time.Duration // of Comm, during which Forward or a backward pass ran
}

// Percent is the part of the communication that was hidden behind computation;
// 100 if there was none.
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

// Stats tell what the model did so far.
func (m *Model) Stats() Stats {
	s := Stats{Stats: m.reducer.Stats()}
	m.times.average(&s)
	return s
}

// report logs the statistics every so many passes.
func (m *Model) report() {
	if log := m.pg.Log(); m.passes%reportEvery == 0 && log.Enabled(context.Background(), slog.LevelDebug) {
		log.Debug("distributed training", "stats", m.Stats())
	}
}

// timing measures passes. Nothing waits for a time: those of a pass are taken
// once they have all come. A nil timing measures nothing.
type timing struct {
	now     *window   // of the next pass to end
	pending []*window // of passes that have ended, the oldest first

	passes                          int
	forward, backward, comm, hidden time.Duration // sums over the passes
}

// window is what ran for one pass that reduces.
type window struct {
	rec   profile.Recorder
	added int
}

// mostPending bounds the passes whose times have not come: those of the oldest
// are given up, such as calls that were never timed.
const mostPending = 16

func newTiming(r *reducer.Reducer) *timing {
	t := &timing{}
	t.open()
	r.Trace(t.add)
	return t
}

func (t *timing) open() {
	t.now = &window{}
	t.now.rec.Start()
}

func (t *timing) add(s profile.Span) {
	if t == nil {
		return
	}
	t.now.rec.Add(s)
	t.now.added++
}

// end ends the window of a pass, which is not counted if it failed.
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

// settle takes the times that have come.
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

// average fills in the averages.
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
