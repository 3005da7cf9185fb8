package buckets

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
)

// TestCore runs the scenarios in testdata. A scenario starts with one line per bucket, which lists
// its parameters:
//
//	buckets
//	2 1
//	0
//
// In place of "buckets", "buckets static" is for a static graph, and "buckets reorder" for buckets that
// may be rebuilt. Events follow:
//
//	begin [nosync] [shadow] [unused=(PARAM...)] [all]
//	ready PARAM...
//	finish [failed] [stop]
//	succeed
//
// nosync begins a pass that only accumulates, shadow begins a shadow pass. unused lists the parameters
// that the pass will not use; the pass will use all others. If neither unused nor all is given, the field
// event.reached is nil, which means all parameters. With all, event.reached is a list that is true for
// each parameter.
//
// Two commands are no events. "order" prints the order that rank 0 would send. "rebuild" replaces the
// buckets; its input lists buckets as for "buckets".
//
// The output is the core's actions. If the output changes, run the test with -rewrite, and commit the
// difference only if it is intended.
func TestCore(t *testing.T) {
	datadriven.Walk(t, "testdata/core", func(t *testing.T, path string) {
		var c *core
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "buckets":
				buckets, n := lists(t, d.Input)
				c = newCore(buckets, n)
				c.isStatic, c.reorder = d.HasArg("static"), d.HasArg("reorder")
				return ""
			case "rebuild":
				buckets, _ := lists(t, d.Input)
				c.rebuild(buckets)
				c.reorder = false
				return ""
			case "begin":
				e := event{kind: begin, sync: !d.HasArg("nosync"), shadow: d.HasArg("shadow")}
				for _, arg := range d.CmdArgs {
					if arg.Key == "all" || arg.Key == "unused" {
						e.reached = slices.Repeat([]bool{true}, len(c.home))
					}
					for _, v := range arg.Vals {
						e.reached[number(t, v)] = false
					}
				}
				return play(c, e)
			case "succeed":
				return play(c, event{kind: succeed})
			case "order":
				return fmt.Sprintln(c.knownOrder())
			case "ready":
				var out strings.Builder
				for _, a := range d.CmdArgs {
					out.WriteString(play(c, event{kind: ready, param: number(t, a.Key)}))
				}
				return out.String()
			case "finish":
				return play(c, event{kind: finish, failed: d.HasArg("failed"), stop: d.HasArg("stop")})
			}
			t.Fatalf("%s: unknown command %q", d.Pos, d.Cmd)
			return ""
		})
	})
}

// lists parses the input of the test command "buckets", one line for each bucket. It returns the parameters
// of each bucket, and the number of all parameters.
func lists(t *testing.T, input string) (buckets [][]int, n int) {
	for line := range strings.Lines(input) {
		var ps []int
		for _, f := range strings.Fields(line) {
			ps = append(ps, number(t, f))
			n++
		}
		buckets = append(buckets, ps)
	}
	return buckets, n
}

func number(t *testing.T, s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func play(c *core, e event) string {
	actions, err := c.step(e)
	if err != nil {
		return fmt.Sprintf("error: %v\n", err)
	}
	var out strings.Builder
	for _, a := range actions {
		switch a.kind {
		case launch:
			fmt.Fprintf(&out, "launch bucket %d\n", a.bucket)
		case noteMissing:
			fmt.Fprintf(&out, "note that gradient %d is missing\n", a.param)
		case skipUnused:
			fmt.Fprintf(&out, "skip unused gradient %d\n", a.param)
		case noteNewlyUsed:
			fmt.Fprintf(&out, "note that %d is newly used\n", a.param)
		case noteNoLongerUsed:
			fmt.Fprintf(&out, "note that %d is no longer used\n", a.param)
		case sendOrder:
			fmt.Fprintln(&out, "send rank 0's order")
		case setShadowFlag:
			fmt.Fprintln(&out, "set the shadow flag")
		case askToStop:
			fmt.Fprintln(&out, "ask all ranks to stop")
		case raiseFlag:
			fmt.Fprintln(&out, "raise the flag")
		}
	}
	return out.String()
}
