package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/goddp/goddp/internal/testkit/daemon"
	survival "github.com/goddp/goddp/test/survive/job"
)

// mutant is goddp with one line wrong. The campaign builds each mutant and must catch it.
type mutant struct {
	name string
	// file and function say where the mutant differs: function is "F" or "Type.Method".
	file, function string
	// old occurs once in the function; new replaces it.
	old, new string
	// shows reports whether the mutant must fail a scenario.
	shows func(s *scenario) bool
}

// mutants are what the campaign must catch. A function that is renamed, or loses its text, fails
// TestMutantsApply.
var mutants = []mutant{
	{
		name: "the watchdog is switched off", file: "comm/watchdog.go", function: "watchdogLoop.findOverdue",
		old: "w.deadline <= now", new: "w.deadline == 0",
		shows: func(s *scenario) bool { return s.Mode != none && (s.Fault == stop || s.Fault == delay) },
	},
	{
		name: "deadlines come early", file: "comm/collectives.go", function: "ProcessGroup.submit",
		old: "min(c.Timeout,", new: "min(c.Timeout/10,",
		shows: func(s *scenario) bool { return s.Mode != none && s.Fault == hiccup },
	},
	{
		name: "a deadline leads to nothing", file: "comm/failure.go", function: "watchdogLoop.handle",
		old: "d.inquire(e.call)", new: "",
		shows: func(s *scenario) bool { return s.Mode != none && s.Fault == delay },
	},
	{
		name: "one rank alone is notified of a failure", file: "internal/coordinator/core.go", function: "Core.decide",
		old: "c.sendFailure(g, members...)", new: "c.sendFailure(g, members[:min(1, len(members))]...)",
		shows: func(s *scenario) bool { return s.Mode == async && s.Setup == alone && s.Fault == delay },
	},
	{
		name: "the culprit is the next rank", file: "internal/flight/analyze/awaited.go", function: "Report.blamed",
		old: "append(ranks, f.Ranks...)", new: "append(ranks, (f.Ranks[0]+1)%r.WorldSize)",
		shows: func(s *scenario) bool { return s.World > 2 && s.Mode != none && s.Fault == delay },
	},
	{
		name: "a stuck process is not ended", file: "comm/failure.go", function: "watchdogLoop.handle",
		old: "d.end()", new: "",
		shows: func(s *scenario) bool { return s.Stuck && s.Setup == alone && s.trouble() == kill },
	},
	{
		name: "clean-up only ends the process", file: "comm/internal/watchdog/core.go", function: "Core.Step",
		old: "c.Mode == Async", new: "c.Mode == Async || c.Mode == CleanUp",
		shows: func(s *scenario) bool { return s.Mode == cleanUp && s.Setup == alone && s.Fault == kill },
	},
	{
		name: "mode none aborts", file: "comm/internal/watchdog/core.go", function: "Core.Step",
		old: "c.Mode == None", new: "c.Mode == Default",
		shows: func(s *scenario) bool { return s.Mode == none && (s.Fault == stop || s.Fault == delay) },
	},
	{
		name: "Wait returns no error", file: "comm/work.go", function: "Work.Wait",
		old: "w.report(err)", new: "nil",
		shows: func(s *scenario) bool { return s.Mode == blocking && s.Fault == delay },
	},
	{
		name: "ranks do not compare their calls", file: "comm/internal/host/header.go", function: "plan.checkHeaders",
		old: "mine == theirs && c.countsHash", new: "c.countsHash",
		shows: func(s *scenario) bool { return s.Fault == resize },
	},
	{
		name: "operands that overlap are accepted", file: "comm/validate.go", function: "ProcessGroup.validate",
		old: "pg.validateOverlap(c)", new: "",
		shows: func(s *scenario) bool { return s.Fault == overlap && s.Pick%4 != 3 }, // 3 makes several calls
	},
	{
		name: "calls started as one that overlap are accepted", file: "comm/validate.go", function: "ProcessGroup.validate",
		old: "pg.validateCoalesced(c)", new: "",
		shows: func(s *scenario) bool { return s.Fault == overlap && s.Pick%4 == 3 },
	},
	{
		name: "a dead peer is not noticed", file: "internal/coordinator/core.go", function: "Core.Lost",
		old: "c.ranks[r].state == present", new: "false",
		shows: func(s *scenario) bool { return s.Setup == alone && s.Fault == kill },
	},
	{
		name: "flight records are not written", file: "comm/record.go", function: "watchdogLoop.record",
		old: "dump == nil || d.dumps == nil", new: "dump != nil",
		shows: func(s *scenario) bool { return s.Setup == alone && s.Mode != none && s.Fault == delay },
	},
	{
		name: "a full disk ends the process", file: "comm/record.go", function: "watchdogLoop.record",
		old: "path, err := dump.Write(dir)", new: "path, err := dump.Write(dir)\nif err != nil { d.exit(3) }",
		shows: func(s *scenario) bool { return s.Fault == fullDisk && s.Setup == alone },
	},
	{
		name: "garbage closes the store", file: "internal/store/server.go", function: "Server.serve",
		old: "s.rejections.Add(nc.RemoteAddr().String(), err)", new: "go s.Close()",
		shows: func(s *scenario) bool { return s.Fault == garbage },
	},
	{
		name: "the store serves another user", file: "internal/store/admission.go", function: "Server.known",
		old: "s.opts.Member.Insecure", new: "true",
		shows: func(s *scenario) bool { return s.Fault == stranger },
	},
	{
		name: "jobs are not compared", file: "internal/handshake/job.go", function: "Job.Compare",
		old: "j == (Job{})", new: "true",
		shows: func(s *scenario) bool { return s.Fault == twoJobs },
	},
	{
		name: "golaunch does not look for orphans", file: "launcher/orphans.go", function: "stopOrphans",
		old: "found, err := find(ask); len(found) == 0 && err == nil", new: "_ = ask; true",
		shows: func(s *scenario) bool { return s.Setup == golaunch && s.Fault == exit },
	},
	{
		name: "golaunch exits with a code of its own", file: "launcher/failure.go", function: "ExitCode",
		old: "failed.root.ExitCode()", new: "1",
		shows: func(s *scenario) bool { return s.Setup == golaunch && (s.Fault == kill || s.Fault == exit) },
	},
	{
		name: "golaunch reports the next rank", file: "launcher/report.go", function: "FailureError.writeRoot",
		old: "f.Rank, f.LocalRank", new: "f.Rank+1, f.LocalRank",
		shows: func(s *scenario) bool { return s.Setup == golaunch && (s.Fault == kill || s.Fault == exit) },
	},
	{
		name: "a backward pass over modified values passes", file: "autograd/version.go", function: "input.check",
		old: "now != x.version", new: "now < x.version",
		shows: func(s *scenario) bool { return s.Fault == stale },
	},
	{
		name: "a suspension counts as waiting", file: "comm/watchdog.go", function: "watchdogLoop.loop",
		old: "d.extend(now, suspended)", new: "",
		shows: func(s *scenario) bool { return s.Mode != none && s.Fault == suspend },
	},
	{
		name: "the reaper of a killed golaunch does nothing", file: "launcher/reaper.go", function: "ReaperMain",
		old: "r.killAll()", new: "",
		shows: func(s *scenario) bool { return s.Fault == launcher },
	},
	{
		name: "golaunch does nothing without its reaper", file: "launcher/attempt.go", function: "agent.removeOrphans",
		old: "killOrphans(descendants(int(a.electionPID.Load())), a.cfg.PollInterval, orphanLimit)", new: "orphanReport{}",
		shows: func(s *scenario) bool { return s.trouble() == reaper },
	},
	{
		name: "orphans do not become the reaper's children", file: "launcher/reaper.go", function: "ReaperMain",
		old: "setSubreaper(true) == nil", new: "false",
		shows: func(s *scenario) bool { return s.Fault == daemons && s.trouble() != reaper },
	},
	{
		name: "a process whose main thread has ended counts as dead", file: "launcher/orphans_linux.go", function: "reap",
		old: "return n == pid", new: "ended, _ := threadExiting(\"/proc/\" + strconv.Itoa(pid))\nreturn ended || n == pid",
		shows: func(s *scenario) bool { return s.Daemon == daemon.Mainless },
	},
	{
		name: "the survivors do not undo a failed step", file: "elastic/commit.go", function: "run.rollBack",
		old: "c.values == nil ||", new: "true ||",
		shows: func(s *scenario) bool { return s.Fault == shrink && s.Phase > survival.Backward },
	},
	{
		name: "golaunch names the next worker as lost", file: "launcher/survive.go", function: "process.name",
		old: "p.number,", new: "p.number+1,",
		shows: func(s *scenario) bool { return s.Fault == shrink },
	},
	{
		name: "a replacement keeps its own state", file: "internal/coordinator/membership.go", function: "Membership.begin",
		old: "case !holds(w):", new: "case false:",
		shows: func(s *scenario) bool { return s.Fault == replace },
	},
	{
		name: "a job survives one loss in a step", file: "internal/coordinator/elastic.go", function: "Server.Gone",
		old: "e.losses <= max(minLosses, s.size)", new: "e.losses <= 1",
		shows: func(s *scenario) bool { return s.Fault == doubleFault && !s.Late },
	},
	{
		name: "the others wait for a worker that dies while they regroup", file: "internal/coordinator/membership.go", function: "Membership.Gone",
		old: "m.advance()", new: "",
		shows: func(s *scenario) bool { return s.Fault == doubleFault && s.Late },
	},
	{
		name: "a transfer is not made again", file: "elastic/elastic.go", function: "run.regroup",
		old: "!r.pg.Failed()", new: "true",
		shows: func(s *scenario) bool { return s.Fault == sourceDies },
	},
	{
		name: "golaunch does not kill a suspended worker", file: "launcher/survive.go", function: "agent.expel",
		old: "a.signalWorkers([]int{p.LocalRank}, syscall.SIGKILL)", new: "_ = syscall.SIGKILL",
		shows: func(s *scenario) bool { return s.Fault == stopAndContinue && s.Late },
	},
	{
		name: "golaunch kills a worker that is suspended for a short time", file: "internal/coordinator/server.go", function: "Options.silent",
		old: "max(2, silence(o.Silence/o.Interval))", new: "1",
		shows: func(s *scenario) bool { return s.Fault == stopAndContinue && !s.Late },
	},
}

// attempts is the number of scenarios after which a mutant has survived.
const attempts = 6

// mutantTableHead is the head of the mutants' table.
const mutantTableHead = "| mutant | caught by | because |\n|---|---|---|\n"

// hunt runs scenarios with each mutant until one fails, prints the table of mutants, and returns how
// many survived. newMutant makes the i-th mutant in a new folder.
func (c *campaign) hunt(ctx context.Context, dir string, bin binaries, newMutant func(i int, dir string) (binaries, error)) (survived int, err error) {
	catchers, reasons, errs := make([]*scenario, len(mutants)), make([]string, len(mutants)), make([]error, len(mutants))
	parallel(c.jobs, len(mutants), func(i int) {
		into := mutantFolder(dir, i)
		defer os.RemoveAll(into)
		mutated, err := newMutant(i, into)
		if err != nil {
			errs[i] = err
			return
		}
		catchers[i], reasons[i], errs[i] = c.catch(ctx, mutated, bin, &mutants[i])
	})
	fmt.Fprint(c.out, "\n"+mutantTableHead)
	for i, s := range catchers {
		if s != nil {
			fmt.Fprintf(c.out, "| %s | %s | %s |\n", mutants[i].name, s.summary(), reasons[i])
		} else {
			survived++
			fmt.Fprintf(c.out, "| %s | **nothing** | |\n", mutants[i].name)
		}
	}
	return survived, errors.Join(errs...)
}

// catch returns the scenario that caught the mutant, and its first finding. The scenario must pass
// with goddp as it is.
func (c *campaign) catch(ctx context.Context, mutated, bin binaries, m *mutant) (by *scenario, because string, err error) {
	tried := 0
	for k := 0; tried < attempts && ctx.Err() == nil; k++ {
		s := draw(c.seed, k, c.terms)
		if !m.shows(&s) {
			continue
		}
		tried++
		v, _ := c.try(ctx, &s, mutated, "")
		if v.ok() {
			continue
		}
		if same, _ := c.try(ctx, &s, bin, ""); same.ok() {
			return &s, v.first(), nil
		}
	}
	return nil, "", ctx.Err()
}
