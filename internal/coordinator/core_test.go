package coordinator

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
)

// TestCore runs the scenarios in testdata/session. A scenario starts with
//
//	session size=3
//
// and continues with commands "do", whose input has one event per line:
//
//	RANK join [NAME=VALUE]... [process=P] [value=V] [isolated]
//	RANK gather KEY [group=G] [members=R,R] [value=V]
//	RANK fail TEXT [group=G] [ask=R,R] [answers] [final] [confined] [key=K] [kind=K]
//	RANK ack NUMBER [value=V]
//	RANK leave [group=G] [value=V] [alone] [final]
//	RANK query [KEY] [group=G]
//	RANK post KEY [group=G] [value=V] [ask=R,R]
//	RANK lost HOW
//	RANK exited HOW
//
// Some words stand for fields of Message: members= and ask= are Ranks, [answers] is WantAnswers. Some
// words of fail stand for fields of Failure: TEXT is Text, [confined] is Confined, key= is Key, and kind=
// is Kind. KEY is the message's Key, and HOW describes the end of the rank's connection or process.
//
// An underscore in a text stands for a space. The output repeats each line of the input, followed by
// the messages that the core sends. If the output of a scenario changes, run the test with -rewrite,
// and commit the difference only if it is intended.
func TestCore(t *testing.T) {
	datadriven.Walk(t, "testdata/session", func(t *testing.T, path string) {
		var c *Core
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "session":
				var size int
				d.ScanArgs(t, "size", &size)
				c = NewCore(size)
				return ""
			case "do":
				var b strings.Builder
				for line := range strings.Lines(d.Input) {
					fmt.Fprintf(&b, "> %s\n", strings.TrimSpace(line))
					out, err := play(t, c, line)
					for _, o := range out {
						fmt.Fprintln(&b, describe(&o))
					}
					if err != nil {
						fmt.Fprintf(&b, "error: %v\n", err)
					}
				}
				if c.Ended() {
					fmt.Fprintln(&b, "ended")
				}
				return b.String()
			}
			t.Fatalf("%s: unknown command %q", d.Pos, d.Cmd)
			return ""
		})
	})
}

// play gives the core the event in one line of a scenario.
func play(t *testing.T, c *Core, line string) ([]Outgoing, error) {
	fields := strings.Fields(line)
	from, verb, args := number(t, fields[0]), fields[1], fields[2:]
	var texts []string
	m := &Message{}
	f := &Failure{}
	for _, a := range args {
		name, value, named := strings.Cut(a, "=")
		switch {
		case a == "answers":
			m.WantAnswers = true
		case a == "confined":
			f.Confined = true
		case a == "final":
			m.Final = true
		case a == "isolated":
			m.Isolated = true
		case a == "alone":
			m.Alone = true
		case !named:
			texts = append(texts, strings.ReplaceAll(a, "_", " "))
		case name == "group":
			m.Group = value
		case name == "members" || name == "ask":
			for _, r := range strings.Split(value, ",") {
				m.Ranks = append(m.Ranks, number(t, r))
			}
		case name == "value":
			m.Value = []byte(value)
		case name == "key":
			f.Key = value
		case name == "kind":
			f.Kind = Kind(value)
		case name == "process":
			m.Process = value
		default:
			m.Options = append(m.Options, Option{name, value})
		}
	}
	text := strings.Join(texts, " ")
	switch verb {
	case "lost":
		return c.Lost(from, text), nil
	case "exited":
		return c.Exited(from, text), nil
	case "join":
		m.Verb = Join
	case "gather":
		m.Verb, m.Key = Gather, text
	case "fail":
		m.Verb, m.Failure, f.Text = Fail, f, text
	case "ack":
		m.Verb, m.Number = Ack, uint64(number(t, text))
	case "leave":
		m.Verb = Leave
	case "query":
		m.Verb, m.Key = Query, text
	case "post":
		m.Verb, m.Key = Post, text
	default:
		t.Fatalf("unknown event %q", line)
	}
	return c.Step(from, m)
}

// The core forgets the reads of a rank that has stopped waiting, and of a rank that is gone.
func TestReaders(t *testing.T) {
	c := NewCore(3)
	waiting := func() int { return len(c.groups[""].readers) }
	step := func(from int, m Message) []Outgoing {
		t.Helper()
		out, err := c.Step(from, &m)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	for r := range 3 {
		step(r, Message{Verb: Join})
	}
	step(0, Message{Verb: Post, Key: "key", Number: 7, Ranks: []int{2}})
	step(0, Message{Verb: Post, Key: "key", Number: 8, Ranks: []int{2}})
	step(1, Message{Verb: Post, Key: "key", Number: 7, Ranks: []int{2}})
	step(0, Message{Verb: Post, Key: "key", Number: 7, Final: true})
	if n := waiting(); n != 2 {
		t.Errorf("%d reads wait after one of three was withdrawn", n)
	}
	c.Lost(1, "it ended")
	if n := waiting(); n != 1 {
		t.Errorf("%d reads wait after the loss of a rank, want 1", n)
	}
	if out := step(2, Message{Verb: Post, Key: "key", Number: 1, Value: []byte("x")}); len(out) != 2 || waiting() != 0 {
		t.Errorf("%d answers, %d reads wait; want 2, 0", len(out), waiting())
	}
}

func number(t *testing.T, s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// describe formats a message of the core as one line of a scenario's output.
func describe(o *Outgoing) string {
	m := o.Message
	var b strings.Builder
	fmt.Fprintf(&b, "to %v: %v", o.To, m.Verb)
	if m.Number > 0 {
		fmt.Fprintf(&b, " #%d", m.Number)
	}
	if m.Group != "" {
		fmt.Fprintf(&b, " group %s", m.Group)
	}
	if m.Key != "" {
		fmt.Fprintf(&b, " %s", m.Key)
	}
	if len(m.Ranks) > 0 {
		fmt.Fprintf(&b, " ranks %v", m.Ranks)
	}
	if len(m.Value) > 0 {
		fmt.Fprintf(&b, " %s", m.Value)
	}
	if len(m.Values) > 0 {
		fmt.Fprintf(&b, " %s", m.Values)
	}
	if m.Alone && m.Verb != Settled {
		b.WriteString(" alone")
	}
	if f := m.Failure; f != nil {
		by := fmt.Sprintf("rank %d", f.Reporter)
		if f.Reporter == nobody {
			by = "coordinator"
		}
		fmt.Fprintf(&b, " by %s:", by)
		if f.Kind != Reported {
			fmt.Fprintf(&b, " %s %v", f.Kind, f.Ranks)
		}
		if f.Text != "" {
			fmt.Fprintf(&b, " %q", f.Text)
		}
		if f.Absent != nil {
			fmt.Fprintf(&b, " absent %v", f.Absent)
		}
	}
	return b.String()
}
