package timeline

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// event is a complete event of a trace.
type event struct {
	Interval
	name, category string
	enqueued       time.Time // when the host began to enqueue the event's work; zero if unknown
	isWait         bool      // the event is a span in which its stream waits
}

// rank is a process of a trace.
type rank struct {
	number int
	events []event
}

// chromeEvent holds the fields that this package reads of an entry of the Trace Event Format.
type chromeEvent struct {
	Name, Cat, Ph string
	TS, Dur       json.Number
	PID           int
	Args          struct {
		Enqueued json.Number
		Waits    bool
	}
}

// maxTime is the largest time in nanoseconds. Sums and differences of two times do not overflow.
const maxTime = 1 << 61

// read reads the ranks of a trace, in order. The trace may come from a pipe.
func read(path string) ([]*rank, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var trace struct{ TraceEvents []chromeEvent }
	d := json.NewDecoder(f) // stops reading at an error, unlike os.ReadFile, so a device without an end does no harm
	if err := d.Decode(&trace); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, fmt.Errorf("%s: there is data after the JSON object", path)
	}
	ranks := map[int]*rank{}
	for _, e := range trace.TraceEvents {
		if e.Ph != "X" {
			continue
		}
		begin, err := nanoseconds(e.TS)
		dur, err2 := nanoseconds(e.Dur)
		if err != nil || err2 != nil || dur < 0 || dur > maxTime || begin > maxTime || begin < -maxTime {
			return nil, fmt.Errorf("%s: event %q has an invalid time: ts %q, dur %q (microseconds)", path, e.Name, e.TS, e.Dur)
		}
		if ranks[e.PID] == nil {
			ranks[e.PID] = &rank{number: e.PID}
		}
		ev := event{name: e.Name, category: e.Cat, isWait: e.Args.Waits}
		ev.Begin, ev.End = time.Unix(0, begin), time.Unix(0, begin+dur)
		if at, err := nanoseconds(e.Args.Enqueued); err == nil {
			ev.enqueued = time.Unix(0, at)
		}
		ranks[e.PID].events = append(ranks[e.PID].events, ev)
	}
	if len(ranks) == 0 {
		return nil, fmt.Errorf("%s: the trace has no events", path)
	}
	return slices.SortedFunc(maps.Values(ranks), func(a, b *rank) int { return cmp.Compare(a.number, b.number) }), nil
}

// nanoseconds converts a decimal number of microseconds, without rounding.
func nanoseconds(us json.Number) (int64, error) {
	whole, fraction, _ := strings.Cut(us.String(), ".")
	if whole == "" {
		return 0, errors.New("no number")
	}
	return strconv.ParseInt(whole+(fraction + "000")[:3], 10, 64)
}
