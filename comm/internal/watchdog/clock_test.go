package watchdog

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
)

// TestSuspensions runs the scenarios of testdata/suspensions. In each scenario a call with a
// timeout hangs, while the process runs and stops by turns: "run 1s stop 5s". The argument
// times says how often these steps are repeated. The watchdog polls its clock every Tick while
// the process runs, and as soon as the process continues. The output is the deadline after each
// step, and the time at which the call became overdue.
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
			if suspended := c.Poll(now); suspended > 0 && began < now {
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
				case "stop": // no poll until the process runs again
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

// The first suspension is noticed at once, later ones together.
func TestSuspensionsAreNoticedOnceAMinute(t *testing.T) {
	var n Notices
	for _, c := range []struct {
		now   time.Duration
		count int
		total time.Duration
	}{
		{5 * time.Second, 1, time.Second}, {7 * time.Second, 0, 0}, {64 * time.Second, 0, 0}, {65 * time.Second, 3, 3 * time.Second}, {66 * time.Second, 0, 0},
		{time.Hour, 2, 2 * time.Second},
	} {
		if count, total := n.Add(c.now, time.Second); count != c.count || total != c.total {
			t.Errorf("after %v: %d suspensions of %v, want %d of %v", c.now, count, total, c.count, c.total)
		}
	}
}
