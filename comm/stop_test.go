package comm

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
)

// TestStopCore plays the scenarios of testdata/stop: one process each, which "new" begins.
// heed says that the program asks for stop requests; SIGINT and SIGTERM, with the time at
// which they come, are signals, with "abort" behind it where the launcher does not ask; request is the program's own; accept NAME, that the ranks
// agreed; late, that the armed timer fired. The answer is what is to be done, and what
// the program is asked to stop for.
func TestStopCore(t *testing.T) {
	actions := [...]string{"nothing", "tell the launcher", "wait", "expire calls", "end the context"}
	signals := map[string]syscall.Signal{"SIGINT": syscall.SIGINT, "SIGTERM": syscall.SIGTERM}
	var core stopCore
	datadriven.RunTest(t, "testdata/stop/scenarios", func(t *testing.T, d *datadriven.TestData) string {
		if d.Cmd == "new" {
			core = stopCore{}
			return ""
		}
		var e stopEvent
		switch d.Cmd {
		case "heed":
			e.kind = stopHeed
		case "request":
			e.kind = stopRequest
		case "late":
			e.kind = stopLate
		case "accept":
			e = stopEvent{kind: stopAccept, signal: signals[d.CmdArgs[0].Key]}
		default:
			at, err := time.ParseDuration(d.CmdArgs[0].Key)
			if err != nil || signals[d.Cmd] == 0 {
				d.Fatalf(t, "%s at %v: %v", d.Cmd, d.CmdArgs, err)
			}
			e = stopEvent{kind: stopSignal, signal: signals[d.Cmd], at: at, abort: d.HasArg("abort")}
		}
		var out strings.Builder
		out.WriteString(actions[core.step(e)])
		if core.requested != 0 {
			out.WriteString("; requested: " + core.requested.String())
		}
		out.WriteString("\n")
		return out.String()
	})
}
