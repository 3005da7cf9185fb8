package rendezvous

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/goddp/goddp/launcher/internal/failure"
)

// TestCore plays the scenarios under testdata/core. If one fails, run
//
//	go test ./launcher/internal/rendezvous -run TestCore -rewrite
//
// and read the diff; keep it only if you understand and want it.
//
// Commands are the events, about agents named a, b and so on. Each event happens one second after the one
// before. The output is the actions, one per line.
func TestCore(t *testing.T) {
	datadriven.Walk(t, "testdata/core", func(t *testing.T, path string) {
		var c *core
		ids, names := map[string]agentID{}, map[agentID]string{}
		now := 0
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			now++
			at := time.Unix(int64(now), 0)
			if d.Cmd == "new" {
				l := Limits{MinNodes: 1, MaxNodes: 1}
				scan(t, d, "min", &l.MinNodes)
				scan(t, d, "max", &l.MaxNodes)
				scan(t, d, "restarts", &l.MaxRestarts)
				l.Static = d.HasArg("static")
				epoch := 0
				scan(t, d, "epoch", &epoch)
				c = newCore(l, epoch, 0)
				c.durable = d.HasArg("durable")
				scan(t, d, "expected", &c.expected)
				clear(ids)
				return ""
			}
			var b strings.Builder
			play := func(name string) {
				if d.Cmd == "join" {
					ids[name] = agentID(len(names))
					names[ids[name]] = name
				}
				for _, act := range c.Step(parseEvent(t, d, c, ids[name], name, at)) {
					describe(&b, act, names)
				}
			}
			subjects := 0
			for _, arg := range d.CmdArgs {
				if len(arg.Vals) == 0 && !slices.Contains([]string{"agreed", "fatal", "goes-on", "local", "now", "replaces", "shrinks"}, arg.Key) {
					play(arg.Key)
					subjects++
				}
			}
			if subjects == 0 {
				play("")
			}
			return b.String()
		})
	})
}

func parseEvent(t *testing.T, d *datadriven.TestData, c *core, id agentID, name string, at time.Time) event {
	epoch, rank, workers := c.epoch, -1, 2
	scan(t, d, "workers", &workers)
	now := fails
	switch {
	case d.HasArg("replaces"):
		now = replaces
	case d.HasArg("shrinks"):
		now = shrinks
	}
	scan(t, d, "epoch", &epoch)
	scan(t, d, "rank", &rank)
	switch d.Cmd {
	case "join":
		return agentJoined{id, NodeInfo{Host: "host-" + name, Workers: workers, Rank: rank}, d.HasArg("local"), now}
	case "lose":
		ago := 0
		scan(t, d, "ago", &ago)
		return agentLost{id, "3 heartbeats missed", at.Add(-time.Duration(ago) * time.Second), now}
	case "died":
		return workersDied{id, d.HasArg("goes-on")}
	case "leave":
		if d.HasArg("now") {
			return agentLeaves{id, "the reaper was killed", at, true, now}
		}
		return agentLeaves{id, "SIGTERM", at, false, now}
	case "fail":
		f := workerFailure(0, at)
		if d.HasArg("fatal") {
			f = failure.Failure{Kind: failure.Unable, Why: "cannot start rank 0", Time: at, Exited: at}
		}
		return workerFailed{id, epoch, f}
	case "end":
		var failures []failure.Failure
		if d.HasArg("failures") { // so many, the last one the earliest
			n := 0
			scan(t, d, "failures", &n)
			for i := range n {
				failures = append(failures, workerFailure(i, at.Add(-time.Duration(i)*time.Second)))
			}
		}
		return workersEnded{id, epoch, d.HasArg("agreed"), failures}
	case "depose":
		return hostDeposed{}
	case "saved":
		return saved{}
	case "join-timeout":
		return joinTimeout{DefaultJoinTimeout}
	case "last-call":
		return lastCallElapsed{}
	}
	d.Fatalf(t, "unknown event %q", d.Cmd)
	return nil
}

func describe(b *strings.Builder, act action, names map[agentID]string) {
	switch act := act.(type) {
	case refuse:
		fmt.Fprintf(b, "refuse %s: %s\n", names[act.id], act.reason)
	case hold:
		fmt.Fprintf(b, "hold %s: %s\n", names[act.id], act.reason)
	case save:
		fmt.Fprintf(b, "save round %d, %s\n", act.epoch, count(act.restarts, "restart"))
	case begin:
		fmt.Fprintf(b, "begin round %d:", act.epoch)
		for _, a := range act.participants {
			fmt.Fprintf(b, " %s", names[a.id])
		}
		fmt.Fprintln(b)
		describeFailures(b, act.failures)
	case admit:
		fmt.Fprintf(b, "admit %s as node %d with rank %d\n", names[act.agent.id], act.agent.place, act.agent.first)
	case awaitDeaths:
		fmt.Fprintf(b, "await deaths of %s: %s", names[act.agent.id], &act.agent.loss)
		if act.areDead {
			fmt.Fprint(b, ", certain")
		}
		fmt.Fprintln(b)
	case stop:
		how := ""
		if act.gently {
			how = " gently"
		}
		fmt.Fprintf(b, "stop round %d%s: %s\n", act.epoch, how, act.reason)
	case startLastCall:
		fmt.Fprintln(b, "start last call")
	case cancelLastCall:
		fmt.Fprintln(b, "cancel last call")
	case release:
		fmt.Fprintf(b, "release %s\n", names[act.id])
	case resign:
		fmt.Fprintf(b, "resign: %s\n", act.reason)
	case end:
		r := act.result
		fmt.Fprintf(b, "end after %s", count(r.Restarts, "restart"))
		if r.Agreed {
			fmt.Fprint(b, ", agreed")
		}
		if r.Reason != "" {
			fmt.Fprintf(b, ": %s", r.Reason)
		}
		fmt.Fprintln(b)
		describeFailures(b, r.Failures)
	}
}

func describeFailures(b *strings.Builder, failures []failure.Failure) {
	for _, f := range failures {
		fmt.Fprintf(b, "  %ds node %d (%s): %s\n", f.Exited.Unix(), f.Node, f.Host, &f)
	}
}

func workerFailure(rank int, at time.Time) failure.Failure {
	return failure.Failure{Rank: rank, Status: failure.Status{Code: 1}, Time: at, Exited: at}
}

func scan(t *testing.T, d *datadriven.TestData, key string, dest any) {
	if d.HasArg(key) {
		d.ScanArgs(t, key, dest)
	}
}
