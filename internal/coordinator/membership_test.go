package coordinator

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
)

// TestMembership runs the scenarios in testdata/membership. A scenario starts with
//
//	job min=2
//
// and continues with commands "do", whose input has one event per line:
//
//	start WORKER...
//	ready WORKER [epoch=E] [steps=S] [inconsistent]
//	unready | gone | expel | leave WORKER
//	hurry
//
// The output repeats each line of the input, followed by the orders. If it changes, run the test with -rewrite, and
// commit the difference only if it is intended.
func TestMembership(t *testing.T) {
	var m *Membership
	datadriven.RunTest(t, "testdata/membership", func(t *testing.T, d *datadriven.TestData) string {
		var b strings.Builder
		switch d.Cmd {
		case "job":
			var min int
			d.ScanArgs(t, "min", &min)
			m = NewMembership(min)
		case "do":
			for line := range strings.Lines(d.Input) {
				fmt.Fprintf(&b, "> %s\n", strings.TrimSpace(line))
				for _, o := range playMembership(t, m, strings.Fields(line)) {
					fmt.Fprintln(&b, describeOrder(o))
				}
			}
		default:
			t.Fatalf("%s: unknown command %q", d.Pos, d.Cmd)
		}
		return b.String()
	})
}

// playMembership gives m the event in the words of a line.
func playMembership(t *testing.T, m *Membership, words []string) (out []Order) {
	if words[0] == "start" {
		for _, w := range words[1:] {
			out = append(out, m.Start(number(t, w))...)
		}
		return out
	}
	if words[0] == "hurry" {
		return m.Hurry()
	}
	worker := number(t, words[1])
	switch words[0] {
	case "ready":
		r := Ready{Holds: true}
		for _, w := range words[2:] {
			switch name, value, _ := strings.Cut(w, "="); name {
			case "epoch":
				r.Epoch = number(t, value)
			case "steps":
				r.Steps = number(t, value)
			case "inconsistent":
				r.Holds = false
			default:
				t.Fatalf("unknown word %q", w)
			}
		}
		return m.Ready(worker, r)
	case "unready":
		return m.Unready(worker)
	case "gone", "done":
		return m.Gone(worker, words[0] == "done")
	case "expel":
		return m.Expel(worker)
	case "leave":
		return m.Leave(worker)
	}
	t.Fatalf("unknown event %q", words[0])
	return nil
}

func describeOrder(o Order) string {
	text := fmt.Sprintf("%v %v", [...]string{Begin: "begin", Kill: "kill", Notice: "notice", Wait: "wait", Release: "release"}[o.Verb], o.Workers)
	if o.Verb == Begin {
		text += fmt.Sprintf(" epoch %d steps %d source %d", o.Epoch, o.Steps, o.Source)
	}
	return text
}
