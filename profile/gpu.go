package profile

import (
	"cmp"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/profile/internal/cupti"
)

// gpu records the activity of a device, if it is a GPU. The mutex of its Recorder guards it.
type gpu struct {
	dev        device.Device // nil if nothing can be recorded
	recording  *cupti.Recording
	activities []cupti.Activity // taken from the recording
}

// start starts a recording. If that fails, it logs why, once, and the trace contains only spans.
func (g *gpu) start() {
	d, isGPU := g.dev.(interface {
		Ordinal() int // the GPU's number, as the driver counts
	})
	if !isGPU || g.recording != nil {
		return
	}
	recording, err := cupti.Start(d.Ordinal())
	if err != nil {
		slog.Warn("profile: the trace has no activities of the GPU", "device", g.dev, "cause", err)
		g.dev = nil
		return
	}
	g.recording = recording
}

func (g *gpu) stop() {
	if g.recording == nil {
		return
	}
	g.keep(g.recording.Stop())
	g.recording = nil
}

// take returns all activities so far.
func (g *gpu) take() []cupti.Activity {
	if g.recording != nil {
		g.keep(g.recording.Take())
	}
	return g.activities
}

func (g *gpu) keep(taken []cupti.Activity, err error) {
	if err != nil {
		slog.Warn("profile: the trace lacks activities of the GPU", "device", g.dev, "cause", err)
	}
	g.activities = append(g.activities, taken...)
}

// longCall is the minimum duration of a driver or runtime call that is included in the trace.
const longCall = 20 * time.Microsecond

// categories are the categories of events, as in PyTorch's traces.
var categories = map[cupti.Kind]string{cupti.Kernel: "kernel", cupti.Memcpy: "gpu_memcpy", cupti.Memset: "gpu_memset", cupti.Call: "cuda_driver"}

// activityEvents converts activities to events, with a track for each stream and each thread with long
// calls.
func activityEvents(activities []cupti.Activity) []event {
	activities = slices.Clone(activities)
	slices.SortStableFunc(activities, func(a, b cupti.Activity) int { // so that streams precede threads
		return cmp.Or(cmp.Compare(a.Stream, b.Stream), cmp.Compare(a.Thread, b.Thread))
	})
	enqueued := map[uint32]time.Time{} // the start of the call that enqueued the work, by Correlation
	for _, a := range activities {
		if a.Kind == cupti.Call {
			enqueued[a.Correlation] = a.Begin
		}
	}
	var events []event
	for _, a := range activities {
		name := strings.TrimPrefix(a.Name, "goddp_launch_") // the prefix of kernels of a device.Module
		e := event{category: categories[a.Kind], Span: Span{Name: name, Begin: At(a.Begin), End: At(a.End)}}
		if a.Kind == cupti.Call {
			if a.End.Sub(a.Begin) >= longCall {
				e.Track = Track(fmt.Sprintf("thread %d", a.Thread))
				events = append(events, e)
			}
			continue
		}
		e.Track = Track(fmt.Sprintf("stream %d", a.Stream))
		e.Args = []Arg{{"stream", a.Stream}}
		if a.Bytes > 0 {
			e.Args = append(e.Args, Arg{"bytes", a.Bytes})
		}
		if a.Graph > 0 {
			e.Args = append(e.Args, Arg{"graph", a.Graph})
		}
		if at, ok := enqueued[a.Correlation]; ok {
			e.Args = append(e.Args, Arg{"enqueued", micros(at.UnixNano())})
		}
		events = append(events, e)
	}
	return events
}
