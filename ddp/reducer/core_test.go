package reducer

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
)

// TestCore runs the scenarios in testdata. A scenario starts with
//
//	buckets
//	2 1
//	0
//
// a line per bucket with its parameters, and goes on with events:
// begin [nosync], ready PARAM..., finish [failed]. The output is the core's actions.
// If one differs, run the test with -rewrite and inspect the difference: commit
// it only if it is what you meant.
func TestCore(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		var c *core
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "buckets":
				var buckets [][]int
				n := 0
				for line := range strings.Lines(d.Input) {
					var ps []int
					for _, f := range strings.Fields(line) {
						ps = append(ps, number(t, f))
						n++
					}
					buckets = append(buckets, ps)
				}
				c = newCore(buckets, n)
				return ""
			case "begin":
				return play(c, event{kind: begin, sync: !d.HasArg("nosync")})
			case "ready":
				var out strings.Builder
				for _, a := range d.CmdArgs {
					out.WriteString(play(c, event{kind: ready, param: number(t, a.Key)}))
				}
				return out.String()
			case "finish":
				return play(c, event{kind: finish, failed: d.HasArg("failed")})
			}
			t.Fatalf("%s: unknown command %q", d.Pos, d.Cmd)
			return ""
		})
	})
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
		case lack:
			fmt.Fprintf(&out, "lack gradient %d\n", a.param)
		case flag:
			fmt.Fprintln(&out, "raise the flag")
		}
	}
	return out.String()
}
