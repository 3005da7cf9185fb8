package profile

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/goddp/goddp/internal/atomicfile"
)

// chromeEvent is one entry of the Trace Event Format ("Trace Event Format",
// Google, 2016): a complete event (ph X) or metadata (ph M). Times are in
// microseconds.
type chromeEvent struct {
	Name string         `json:"name"`
	Cat  string         `json:"cat,omitempty"`
	Ph   string         `json:"ph"`
	TS   float64        `json:"ts"`
	Dur  *float64       `json:"dur,omitempty"`
	PID  int            `json:"pid"`
	TID  int            `json:"tid"`
	Args map[string]any `json:"args,omitempty"`
}

// WriteChrome writes the spans as Chrome trace JSON. A rank is a process in the trace, and each track is
// a thread of it. Times are Unix times, so the traces of several ranks on a host can be merged.
func (r *Recorder) WriteChrome(w io.Writer, rank int) error {
	spans := r.Spans()
	slices.SortStableFunc(spans, func(a, b Span) int { // an outer span precedes the spans within it
		return cmp.Or(a.Begin.Time().Compare(b.Begin.Time()), b.End.Time().Compare(a.End.Time()))
	})
	tids := map[Track]int{Compute: 1, Communication: 2, Host: 3}
	for _, s := range spans {
		if tids[s.Track] == 0 {
			tids[s.Track] = len(tids) + 1
		}
	}
	events := []chromeEvent{{Name: "process_name", Ph: "M", PID: rank, Args: map[string]any{"name": fmt.Sprintf("rank %d", rank)}}}
	for _, t := range sortedTracks(tids) {
		events = append(events,
			chromeEvent{Name: "thread_name", Ph: "M", PID: rank, TID: tids[t], Args: map[string]any{"name": string(t)}},
			chromeEvent{Name: "thread_sort_index", Ph: "M", PID: rank, TID: tids[t], Args: map[string]any{"sort_index": tids[t]}})
	}
	for _, s := range spans {
		dur := micros(s.End.Time().Sub(s.Begin.Time()))
		e := chromeEvent{Name: s.Name, Cat: string(s.Track), Ph: "X", PID: rank, TID: tids[s.Track],
			TS: float64(s.Begin.Time().UnixNano()) / 1e3, Dur: &dur}
		if len(s.Args) > 0 {
			e.Args = make(map[string]any, len(s.Args))
			for _, a := range s.Args {
				e.Args[a.Name] = a.Value
			}
		}
		events = append(events, e)
	}
	buf := bufio.NewWriter(w)
	fmt.Fprint(buf, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n")
	for i, e := range events {
		line, err := json.Marshal(e)
		if err != nil {
			return fmt.Errorf("profile: span %q: %w", e.Name, err)
		}
		buf.Write(line)
		if i < len(events)-1 {
			buf.WriteByte(',')
		}
		buf.WriteByte('\n')
	}
	fmt.Fprint(buf, "]}\n")
	return buf.Flush()
}

func sortedTracks(tids map[Track]int) []Track {
	tracks := make([]Track, 0, len(tids))
	for t := range tids {
		tracks = append(tracks, t)
	}
	slices.SortFunc(tracks, func(a, b Track) int { return tids[a] - tids[b] })
	return tracks
}

func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }

// WriteFile writes the Chrome trace to a file. The file is complete or does not exist.
func (r *Recorder) WriteFile(path string, rank int) error {
	if err := atomicfile.Write(path, 0o644, func(w io.Writer) error { return r.WriteChrome(w, rank) }); err != nil {
		return fmt.Errorf("profile: %w", err)
	}
	return nil
}
