package comm

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
)

// TestStopScenarios runs the scenarios of testdata/stop. "new" starts a process. Each later
// command is an event. "poll" is a call of StopRequested. "SIGINT" and "SIGTERM" are signals,
// followed by the time at which the signal arrives, and by "abort" if the launcher ends the
// program rather than asks it to stop. "request" is a call of RequestStop. "accept NAME" is a
// call of AcceptStop. "late" means that the timer fires. The output is the action that step
// returns, and the signal for which the program is asked to stop.
func TestStopScenarios(t *testing.T) {
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
		case "poll":
			e.kind = stopPoll
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
