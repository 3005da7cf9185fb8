package watchdog

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
)

// TestSuspensions runs the scenarios of testdata/suspensions. Each is a call that hangs,
// with a timeout, in a process that runs, is stopped and goes on: "run 1s stop 5s", each
// pair repeated as often as times says. The watchdog looks every Tick while the process
// runs, and as soon as it goes on. The answer is where the deadline is after each step,
// and when it passed.
func TestSuspensions(t *testing.T) {
	datadriven.RunTest(t, "testdata/suspensions", func(t *testing.T, d *datadriven.TestData) string {
		timeout, created, times := "", "0s", 1
		d.ScanArgs(t, "timeout", &timeout)
		if d.HasArg("created") {
			d.ScanArgs(t, "created", &created)
		}
		if d.HasArg("times") {
			d.ScanArgs(t, "times", &times)
		}
		length := func(field string) time.Duration {
			l, err := time.ParseDuration(field)
			if err != nil {
				d.Fatalf(t, "%v", err)
			}
			return l
		}
		var c Clock
		var now time.Duration
		began := length(created)
		deadline := began + length(timeout)
		overdue := func() bool {
			if suspended := c.Look(now); suspended > 0 && began < now {
				deadline = Extend(deadline, began, now, suspended)
			}
			return deadline <= now
		}
		words := strings.Fields(d.Input)
		var out strings.Builder
		for range times {
			for i := 0; i < len(words); i += 2 {
				end := now + length(words[i+1])
				switch words[i] {
				case "stop": // the next look is that of a process that runs again
					now = end
				case "run":
					for {
						if overdue() {
							fmt.Fprintf(&out, "overdue at %v\n", now)
							return out.String()
						}
						if now == end {
							break
						}
						now = min(now+Tick, end)
					}
				default:
					d.Fatalf(t, "neither run nor stop: %s", words[i])
				}
				if times == 1 {
					fmt.Fprintf(&out, "%s until %v: deadline %v\n", words[i], now, deadline)
				}
			}
		}
		return out.String()
	})
}
