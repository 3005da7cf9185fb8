package watchdog

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
)

// TestFailures runs the scenarios of testdata/failures: the events of one rank in a
// mode, and what each makes it do.
func TestFailures(t *testing.T) {
	modes := []Mode{Async, CleanUp, None, Blocking}
	events := []Event{Overdue, Broke, Told, Gathered, Waited, Leave}
	datadriven.RunTest(t, "testdata/failures", func(t *testing.T, d *datadriven.TestData) string {
		i := slices.IndexFunc(modes, func(m Mode) bool { return m.String() == d.Cmd })
		if i < 0 {
			d.Fatalf(t, "no mode %s", d.Cmd)
		}
		c := Core{Mode: modes[i]}
		var out strings.Builder
		for word := range strings.FieldsSeq(d.Input) {
			i := slices.IndexFunc(events, func(e Event) bool { return e.String() == word })
			if i < 0 {
				d.Fatalf(t, "no event %s", word)
			}
			fmt.Fprintf(&out, "%s:", word)
			for _, a := range c.Step(events[i]) {
				fmt.Fprintf(&out, " %v", a)
			}
			out.WriteString("\n")
		}
		return out.String()
	})
}

// TestEveryFailureEnds tries all sequences of events: whatever comes, a rank
// that is not in mode none acts at most once, records before it aborts, and is
// over after a failure that was found and answered.
func TestEveryFailureEnds(t *testing.T) {
	events := []Event{Overdue, Broke, Told, Gathered, Waited, Leave}
	var try func(c Core, trail []Event, did []Action)
	try = func(c Core, trail []Event, did []Action) {
		if slices.Contains(did, Abort) {
			before := did[:slices.Index(did, Abort)]
			if !slices.Contains(before, Record) || !slices.Contains(before, Report) {
				t.Errorf("%v: %v aborts before it records and reports", trail, did)
			}
			if !c.Over() || slices.Contains(did, End) != (c.Mode == Async) {
				t.Errorf("%v: %v", trail, did)
			}
		}
		if len(trail) == 5 {
			return
		}
		for _, e := range events {
			waiting := c.state == gathering && e == Waited || c.state == awaiting && e == Gathered
			idle := c.state == watching && (e == Gathered || e == Waited)
			if c.Mode != None && (waiting || idle) {
				continue // answers to nothing
			}
			next := c
			actions := next.Step(e)
			try(next, append(slices.Clip(trail), e), append(slices.Clip(did), actions...))
		}
	}
	for _, m := range []Mode{Async, CleanUp, None, Blocking} {
		try(Core{Mode: m}, nil, nil)
	}
}
