package watchdog

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
)

var events = []Event{Overdue, Broke, Leave}

// TestFailures runs the scenarios of testdata/failures. The input is a mode and the events of
// one rank. The output is the actions that Step returns for each event.
func TestFailures(t *testing.T) {
	modes := []Mode{Async, CleanUp, None, Blocking}
	datadriven.RunTest(t, "testdata/failures", func(t *testing.T, d *datadriven.TestData) string {
		i := slices.IndexFunc(modes, func(m Mode) bool { return m.String() == d.Cmd })
		if i < 0 {
			d.Fatalf(t, "no mode %s", d.Cmd)
		}
		c := Core{Mode: modes[i]}
		var out strings.Builder
		for field := range strings.FieldsSeq(d.Input) {
			i := slices.IndexFunc(events, func(e Event) bool { return e.String() == field })
			if i < 0 {
				d.Fatalf(t, "no event %s", field)
			}
			fmt.Fprintf(&out, "%s:", field)
			for _, a := range c.Step(events[i]) {
				fmt.Fprintf(&out, " %v", a)
			}
			out.WriteString("\n")
		}
		return out.String()
	})
}

// TestEveryFailureEnds tries all sequences of five events in every mode but None. It checks
// that a rank acts on a failure at most once, after the event Broke, and that the rank inquires
// at most once before that.
func TestEveryFailureEnds(t *testing.T) {
	var try func(c Core, trail []Event, did []Action)
	try = func(c Core, trail []Event, did []Action) {
		count := func(a Action) (n int) {
			for _, b := range did {
				if a == b {
					n++
				}
			}
			return n
		}
		left := slices.Index(trail, Leave)
		broke := slices.Index(trail, Broke)
		acts := 0
		if broke >= 0 && (left < 0 || broke < left) {
			acts = 1
		}
		ends := acts
		if c.Mode != Async {
			ends = 0
		}
		if count(Record) != acts || count(Report) != acts || count(End) != ends || count(Inquire) > 1 {
			t.Errorf("%v: %v", trail, did)
		}
		if len(trail) == 5 {
			return
		}
		for _, e := range events {
			next := c
			actions := next.Step(e)
			try(next, append(slices.Clip(trail), e), append(slices.Clip(did), actions...))
		}
	}
	for _, m := range []Mode{Async, CleanUp, Blocking} {
		try(Core{Mode: m}, nil, nil)
	}
}
