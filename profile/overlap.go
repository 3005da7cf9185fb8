package profile

import (
	"fmt"
	"time"

	"github.com/goddp/goddp/internal/timeline"
)

// Overlap states how much of the communication ran at the same time as computation.
type Overlap struct {
	Reductions int
	Bytes      int64         // the bytes of all reductions
	Comm       time.Duration // the time during which communication ran
	Hidden     time.Duration // the part of Comm during which computation ran
}

// Percent returns Hidden as a percentage of Comm, 100 if there was no communication.
func (o Overlap) Percent() float64 {
	if o.Comm == 0 {
		return 100
	}
	return 100 * float64(o.Hidden) / float64(o.Comm)
}

func (o Overlap) String() string {
	return fmt.Sprintf("%d reductions, %.1f MiB, %v of communication, %.0f%% hidden behind computation, %v exposed",
		o.Reductions, float64(o.Bytes)/(1<<20), o.Comm.Round(time.Microsecond), o.Percent(), (o.Comm - o.Hidden).Round(time.Microsecond))
}

// Overlap computes how much of the time of the spans on the Communication track lies within spans of the Compute
// track, except spans in which the compute stream waits. Bytes is the sum of the arguments "bytes" of the spans.
// The reductions of captured steps have no spans; "goddp trace" counts their kernels.
func (r *Recorder) Overlap() Overlap {
	var o Overlap
	var comm, compute, waits []timeline.Interval
	for _, s := range r.Spans() {
		iv := timeline.Interval{Begin: s.Begin.Time(), End: s.End.Time()}
		switch {
		case s.Track == Communication:
			comm = append(comm, iv)
			o.Reductions++
			for _, a := range s.Args {
				if n, ok := a.Value.(int); ok && a.Name == "bytes" {
					o.Bytes += int64(n)
				}
			}
		case s.Track == Compute && s.Waits:
			waits = append(waits, iv)
		case s.Track == Compute:
			compute = append(compute, iv)
		}
	}
	comm = timeline.Union(comm)
	o.Comm = timeline.Length(comm)
	o.Hidden = timeline.Length(timeline.Both(comm, timeline.Minus(timeline.Union(compute), timeline.Union(waits))))
	return o
}
