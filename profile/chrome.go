package profile

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/goddp/goddp/internal/files"
	"github.com/goddp/goddp/internal/jsonfloat"
)

// chromeEvent is one entry of the Trace Event Format ("Trace Event Format",
// Google, 2016): a complete event (ph X) or metadata (ph M).
type chromeEvent struct {
	Name string         `json:"name"`
	Cat  string         `json:"cat,omitempty"`
	Ph   string         `json:"ph"`
	TS   micros         `json:"ts"`
	Dur  *micros        `json:"dur,omitempty"`
	PID  int            `json:"pid"`
	TID  int            `json:"tid"`
	Args map[string]any `json:"args,omitempty"`
}

// micros is a time in nanoseconds. In JSON it is written in microseconds with three decimals. A float64 would not do:
// the microseconds since 1970 have a resolution of only a quarter of a microsecond in it.
type micros int64

func (m micros) MarshalJSON() ([]byte, error) {
	return fmt.Appendf(nil, "%d.%03d", m/1000, m%1000), nil
}

// event is a span with its category.
type event struct {
	Span
	category string
}

// WriteChrome writes the spans and the GPU's activity as Chrome trace JSON. A rank is a process in the
// trace, labelled with the name of the host; each track, stream and thread is a thread of it. Times are Unix
// times: "goddp trace --merge" puts the traces of several ranks on one clock. GPU work that is running during
// the call is not included.
func (r *Recorder) WriteChrome(w io.Writer, rank int) error {
	var events []event
	for _, s := range r.Spans() {
		events = append(events, event{s, string(s.Track)})
	}
	r.mu.Lock()
	activities := r.gpu.take()
	r.mu.Unlock()
	events = append(events, activityEvents(activities)...)
	tids := map[Track]int{Compute: 1, Communication: 2, Host: 3}
	for _, e := range events {
		if tids[e.Track] == 0 {
			tids[e.Track] = len(tids) + 1
		}
	}
	slices.SortStableFunc(events, func(a, b event) int { // an outer span precedes the spans within it
		return cmp.Or(a.Begin.Time().Compare(b.Begin.Time()), b.End.Time().Compare(a.End.Time()))
	})
	host, _ := os.Hostname() // without a name, the host counts as one of its own
	entries := []chromeEvent{
		{Name: "process_name", Ph: "M", PID: rank, Args: map[string]any{"name": fmt.Sprintf("rank %d", rank)}},
		{Name: "process_labels", Ph: "M", PID: rank, Args: map[string]any{"labels": host}},
	}
	for _, t := range sortedTracks(tids) {
		entries = append(entries,
			chromeEvent{Name: "thread_name", Ph: "M", PID: rank, TID: tids[t], Args: map[string]any{"name": string(t)}},
			chromeEvent{Name: "thread_sort_index", Ph: "M", PID: rank, TID: tids[t], Args: map[string]any{"sort_index": tids[t]}})
	}
	for _, e := range events {
		dur := max(0, micros(e.End.Time().Sub(e.Begin.Time()))) // the times of device events are not exact
		entry := chromeEvent{Name: e.Name, Cat: e.category, Ph: "X", PID: rank, TID: tids[e.Track],
			TS: micros(e.Begin.Time().UnixNano()), Dur: &dur, Args: map[string]any{}}
		for _, a := range e.Args {
			entry.Args[a.Name] = a.Value
		}
		if e.Waits {
			entry.Args["waits"] = true
		}
		entries = append(entries, entry)
	}
	buf := bufio.NewWriter(w)
	fmt.Fprint(buf, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n")
	for i, e := range entries {
		line, err := jsonfloat.Marshal(e)
		if err != nil {
			return fmt.Errorf("profile: span %q: %w", e.Name, err)
		}
		buf.Write(line)
		if i < len(entries)-1 {
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

// WriteFile writes the Chrome trace to a file. The file is complete or does not exist.
func (r *Recorder) WriteFile(path string, rank int) error {
	if err := files.Write(path, 0o644, func(w io.Writer) error { return r.WriteChrome(w, rank) }); err != nil {
		return fmt.Errorf("profile: %w", err)
	}
	return nil
}

// RankPath returns where a rank writes its trace, if path is where rank 0 does: trace.json is trace.rank3.json on rank 3.
func RankPath(path string, rank int) string {
	if rank == 0 {
		return path
	}
	ext := filepath.Ext(path)
	return fmt.Sprintf("%s.rank%d%s", strings.TrimSuffix(path, ext), rank, ext)
}
