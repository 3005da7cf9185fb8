package timeline

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goddp/goddp/internal/magic"
)

// Job holds the traces of a job's ranks, on one clock.
type Job struct {
	ranks  []*rank // in order
	clocks []Clock
}

// rank is a process of a trace.
type rank struct {
	number int
	path   string        // of its file
	pid    string        // its number in the file
	host   string        // ranks of one host have the same clock
	shift  time.Duration // what Read has added to the times in the file
	events []event       // sorted by their begin
	steps  []Interval
}

// event is a complete event of a trace.
type event struct {
	Interval
	name, category string
	enqueued       time.Time // when the host began to enqueue the event's work; zero if unknown
	isWait         bool      // the event is a span in which its stream waits
}

// chromeEvent holds the fields that this package reads of an entry of the Trace Event Format.
type chromeEvent struct {
	Name, Cat, Ph string
	TS, Dur       json.Number
	PID           json.RawMessage
	Args          struct {
		Name, Labels string // of the process, in its metadata
		Enqueued     json.Number
		Waits        bool
	}
}

// maxTime is the largest time in nanoseconds. Sums and differences of two times do not overflow.
const maxTime = 1 << 61

// Read reads the traces of a job. A rank may be in one file only.
func Read(paths ...string) (*Job, error) {
	job := &Job{}
	from := map[int]string{}
	for _, path := range paths {
		ranks, err := read(path)
		if err != nil {
			return nil, err
		}
		for _, r := range ranks {
			if first, ok := from[r.number]; ok {
				return nil, fmt.Errorf("rank %d is in two files, %s and %s: want one file per rank", r.number, first, path)
			}
			from[r.number] = path
			job.ranks = append(job.ranks, r)
		}
	}
	slices.SortFunc(job.ranks, byNumber)
	job.align()
	for _, r := range job.ranks {
		r.steps = findSteps(r.events)
	}
	return job, nil
}

func byNumber(a, b *rank) int { return cmp.Compare(a.number, b.number) }

// read reads the ranks of a file, which may be a pipe.
func read(path string) ([]*rank, error) {
	entries, err := decode[chromeEvent](path)
	if err != nil {
		return nil, err
	}
	processes := map[string]*rank{}
	for _, e := range entries {
		var number int
		switch pid := string(e.PID); {
		case e.Ph == "M" && e.Name == "process_name" && isRank(e.Args.Name, &number):
			processes[pid] = &rank{number: number, path: path, pid: pid, host: path} // without its name, a file has a host of its own
		case e.Ph == "M" && e.Name == "process_labels" && processes[pid] != nil && e.Args.Labels != "":
			processes[pid].host = e.Args.Labels
		}
	}
	for _, e := range entries {
		if e.Ph != "X" {
			continue
		}
		r := processes[string(e.PID)]
		if r == nil {
			return nil, fmt.Errorf("%s: the event %q belongs to no rank: want a trace that package profile has written", path, e.Name)
		}
		begin, err := nanoseconds(e.TS)
		dur, err2 := nanoseconds(e.Dur)
		if err != nil || err2 != nil || dur < 0 || dur > maxTime || begin > maxTime || begin < -maxTime {
			return nil, fmt.Errorf("%s: event %q has an invalid time: ts %q, dur %q (microseconds)", path, e.Name, e.TS, e.Dur)
		}
		ev := event{name: e.Name, category: e.Cat, isWait: e.Args.Waits}
		ev.Begin, ev.End = time.Unix(0, begin), time.Unix(0, begin+dur)
		if at, err := nanoseconds(e.Args.Enqueued); err == nil {
			ev.enqueued = time.Unix(0, at)
		}
		r.events = append(r.events, ev)
	}
	var ranks []*rank
	for _, r := range processes {
		if len(r.events) > 0 {
			slices.SortStableFunc(r.events, func(a, b event) int { return a.Begin.Compare(b.Begin) })
			ranks = append(ranks, r)
		}
	}
	if len(ranks) == 0 {
		return nil, fmt.Errorf("%s: the trace has no events", path)
	}
	slices.SortFunc(ranks, byNumber)
	return ranks, nil
}

// isRank reports whether a process has the name of a rank, and sets its number.
func isRank(name string, number *int) bool {
	n, err := strconv.Atoi(strings.TrimPrefix(name, "rank "))
	*number = n
	return err == nil && n >= 0 && strings.HasPrefix(name, "rank ")
}

// decode reads the entries of a trace.
func decode[T any](path string) ([]T, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	in := bufio.NewReader(f)
	head, _ := in.Peek(magic.HeadSize)
	var trace struct{ TraceEvents []T }
	d := json.NewDecoder(in) // stops reading at an error, unlike os.ReadFile, so a device without an end does no harm
	var syntax *json.SyntaxError
	var misfit *json.UnmarshalTypeError
	switch err := d.Decode(&trace); {
	case err == io.EOF:
		return nil, fmt.Errorf("%s: the file is empty: want a trace", path)
	case err == io.ErrUnexpectedEOF:
		return nil, fmt.Errorf("%s: the trace is incomplete: the file ends within the JSON object", path)
	case errors.As(err, &syntax) && magic.Describe(head) != "" && head[0] != '{':
		return nil, fmt.Errorf("%s: want a trace, got a file that is %s", path, magic.Describe(head))
	case errors.As(err, &misfit):
		return nil, fmt.Errorf("%s: want a trace that package profile has written, but an unexpected %s is at byte %d", path, misfit.Value, misfit.Offset)
	case err != nil:
		return nil, fmt.Errorf("%s: want a trace: %w", path, err)
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, fmt.Errorf("%s: there is data after the JSON object", path)
	}
	return trace.TraceEvents, nil
}

// nanoseconds converts a decimal number of microseconds, without rounding.
func nanoseconds(us json.Number) (int64, error) {
	whole, fraction, _ := strings.Cut(us.String(), ".")
	if whole == "" {
		return 0, errors.New("no number")
	}
	return strconv.ParseInt(whole+(fraction + "000")[:3], 10, 64)
}
