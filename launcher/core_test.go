package launcher

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/goddp/goddp/launcher/internal/failure"
)

// TestCore plays the scenarios under testdata/core. If one fails, run
//
//	go test ./launcher -run TestCore -rewrite
//
// and read the diff; keep it only if you understand and want it.
//
// Commands are the events, and may-go-on, which asks whether the attempt may go on
// without a worker that ended in this way; the output is the actions, one per line, and then
// the phase the core is left in. "start" makes a core whose first round is up; the
// job has one node, or with "nodes" several. Each event comes 2 s after the one before,
// or "after" another time.
func TestCore(t *testing.T) {
	datadriven.Walk(t, "testdata/core", func(t *testing.T, path string) {
		var c *core
		var now time.Time
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			var acts []action
			switch d.Cmd {
			case "new", "start":
				workers := 1
				argument(t, d, "workers", &workers)
				c = newCore(workers, !d.HasArg("nodes"))
				if d.Cmd == "start" {
					acts = c.Step(roundBegan{})
				}
			case "may-go-on":
				return fmt.Sprintln(c.canLose(parseExit(t, d)))
			default:
				after := "2s"
				argument(t, d, "after", &after)
				took, err := time.ParseDuration(after)
				if err != nil {
					d.Fatalf(t, "%v", err)
				}
				now = now.Add(took)
				acts = c.Step(parseEvent(t, d, now))
			}
			var b strings.Builder
			for _, act := range acts {
				fmt.Fprintln(&b, act)
			}
			fmt.Fprintf(&b, "(%s)\n", describe(c))
			return b.String()
		})
	})
}

func parseExit(t *testing.T, d *datadriven.TestData) workerExited {
	local, code, name, asked := 0, 0, "", ""
	argument(t, d, "local", &local)
	argument(t, d, "code", &code)
	argument(t, d, "signal", &name)
	argument(t, d, "asked", &asked)
	parse := func(name string) (sig syscall.Signal) {
		if name != "" {
			var err error
			if sig, err = ParseSignal(name); err != nil {
				d.Fatalf(t, "%v", err)
			}
		}
		return sig
	}
	return workerExited{local: local, status: failure.Status{Code: code, Signal: parse(name)}, asked: parse(asked)}
}

func parseEvent(t *testing.T, d *datadriven.TestData, now time.Time) event {
	local := 0
	argument(t, d, "local", &local)
	switch d.Cmd {
	case "begin":
		return roundBegan{}
	case "stop":
		return stopOrdered{d.HasArg("gently"), d.HasArg("kills")}
	case "end":
		verdicts := map[string]verdict{"succeeded": succeeded, "failed": failed, "signalled": signalled, "broken": broken}
		v, known := verdicts[d.CmdArgs[0].Key]
		if !known {
			d.Fatalf(t, "end wants a verdict")
		}
		if v == broken {
			return jobEnded{verdict: v, err: errors.New("port in use")}
		}
		return jobEnded{verdict: v}
	case "start-failed":
		return startFailed{local, errors.New("exec format error")}
	case "reaper-lost":
		return reaperLost{errors.New("the reaper was killed")}
	case "exit":
		return parseExit(t, d)
	case "lost":
		return workerLost{local, d.HasArg("replaced")}
	case "replaced":
		return workerReplaced{local}
	case "signal":
		if len(d.CmdArgs) == 0 {
			d.Fatalf(t, "signal wants a name")
		}
		sig, err := ParseSignal(d.CmdArgs[0].Key)
		if err != nil {
			d.Fatalf(t, "%v", err)
		}
		return signalReceived{sig, now, d.HasArg("can-leave")}
	case "answered":
		return leaveAnswered{d.HasArg("drained")}
	case "timer":
		return timerFired{}
	case "orphans-gone":
		return orphansGone{}
	}
	d.Fatalf(t, "unknown event %q", d.Cmd)
	return nil
}

func argument(t *testing.T, d *datadriven.TestData, key string, dest any) {
	if d.HasArg(key) {
		d.ScanArgs(t, key, dest)
	}
}

func describe(c *core) string {
	phases := [...]string{"waiting", "running", "stopping", "removing-orphans", "finished"}
	text := phases[c.phase]
	if len(c.alive) > 0 {
		text += fmt.Sprintf(", alive %v", c.alive)
	}
	if c.phase == finished {
		verdicts := [...]string{"succeeded", "failed", "signalled", "stopped", "broken"}
		text += ": " + verdicts[c.verdict]
		if c.err != nil {
			text += ": " + c.err.Error()
		}
	}
	return text
}
