package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/goddp/goddp/internal/daemon"
)

// mutant is the product with one thing wrong.
type mutant struct {
	name, file, old, new string
	// shows tells in which scenarios it does.
	shows func(s *scenario) bool
}

// mutants are what the campaign must catch. The strings are exact, so that a
// change of the product that moves one of them is noticed.
var mutants = []mutant{
	{
		name: "the watchdog is switched off", file: "comm/watchdog.go",
		old: "case w.deadline <= now:", new: "case w.deadline == 0:",
		shows: func(s *scenario) bool { return s.Mode != none && (s.Fault == stop || s.Fault == delay) },
	},
	{
		name: "deadlines come early", file: "comm/collectives.go",
		old: "min(c.Timeout, far-w.created)", new: "min(c.Timeout/10, far-w.created)",
		shows: func(s *scenario) bool { return s.Mode != none && s.Fault == hiccup },
	},
	{
		name: "a deadline leads to nothing", file: "comm/failure.go",
		old: "\t\t\td.wg.Go(func() { d.inquire(e.call) })\n", new: "",
		shows: func(s *scenario) bool { return s.Mode != none && s.Fault == delay },
	},
	{
		name: "one rank alone is told of a failure", file: "internal/coordinator/core.go",
		old: "\tc.sendFailure(g, members...)\n", new: "\tc.sendFailure(g, members[:min(1, len(members))]...)\n",
		shows: func(s *scenario) bool { return s.Mode == async && s.Setup == alone && s.Fault == delay },
	},
	{
		name: "the culprit is the next rank", file: "comm/inquiry.go",
		old: "late.Waiting = ranks\n", new: "late.Waiting = []int{(ranks[0] + 1) % d.world.Size}\n",
		shows: func(s *scenario) bool { return s.World > 2 && s.Mode != none && s.Fault == delay },
	},
	{
		name: "a stuck process is not ended", file: "comm/failure.go",
		old: "\t\t\td.end()\n", new: "",
		shows: func(s *scenario) bool { return s.Deaf && s.Setup == alone && s.trouble() == kill },
	},
	{
		name: "clean-up only ends the process", file: "comm/internal/watchdog/core.go",
		old: "if c.Mode == Async {", new: "if c.Mode == Async || c.Mode == CleanUp {",
		shows: func(s *scenario) bool { return s.Mode == cleanUp && s.Setup == alone && s.Fault == kill },
	},
	{
		name: "mode none aborts", file: "comm/internal/watchdog/core.go",
		old: "case c.Mode == None:", new: "case c.Mode == Default:",
		shows: func(s *scenario) bool { return s.Mode == none && (s.Fault == stop || s.Fault == delay) },
	},
	{
		name: "Wait returns no error", file: "comm/work.go",
		old: "return w.report(err)\n\t\t}", new: "return nil\n\t\t}",
		shows: func(s *scenario) bool { return s.Mode == blocking && s.Fault == delay },
	},
	{
		name: "ranks do not compare their calls", file: "internal/backend/host/header.go",
		old: "if mine == theirs && c.countsHash == counts {", new: "if c.countsHash == counts {",
		shows: func(s *scenario) bool { return s.Fault == resize },
	},
	{
		name: "operands that overlap are taken", file: "comm/validate.go",
		old: "\tpg.validateOverlap(c)\n", new: "",
		shows: func(s *scenario) bool { return s.Fault == overlap && s.Pick%4 != 3 }, // that one is of several calls
	},
	{
		name: "calls started as one that overlap are taken", file: "comm/validate.go",
		old: "\t\tpg.validateCoalesced(c)\n", new: "",
		shows: func(s *scenario) bool { return s.Fault == overlap && s.Pick%4 == 3 },
	},
	{
		name: "a dead peer is not noticed", file: "internal/coordinator/core.go",
		old: "\t\tc.remove(r, lost, Failure{Kind: Lost,", new: "\t\t_ = c.remove\n\t\t_ = (Failure{Kind: Lost,",
		shows: func(s *scenario) bool { return s.Setup == alone && s.Fault == kill },
	},
	{
		name: "flight records are not written", file: "comm/record.go",
		old: "if dump == nil || d.dumps == nil {", new: "if dump != nil {",
		shows: func(s *scenario) bool { return s.Setup == alone && s.Mode != none && s.Fault == delay },
	},
	{
		name: "a full disk ends the process", file: "comm/record.go",
		old: "path, err := dump.Write(dir)\n\tif err != nil {\n", new: "path, err := dump.Write(dir)\n\tif err != nil {\n\t\td.exit(3)\n",
		shows: func(s *scenario) bool { return s.Fault == fullDisk && s.Setup == alone },
	},
	{
		name: "the store falls over nonsense", file: "store/server.go",
		old: "\t\ts.rejections.add(nc.RemoteAddr().String(), err)\n\t})\n", new: "\t\tgo s.Close()\n\t})\n",
		shows: func(s *scenario) bool { return s.Fault == garbage },
	},
	{
		name: "the store serves another user", file: "store/admission.go",
		old: "\tif s.opts.Member.Insecure {\n", new: "\tif true {\n",
		shows: func(s *scenario) bool { return s.Fault == stranger },
	},
	{
		name: "jobs are not compared", file: "internal/handshake/job.go",
		old: "\tif j == (Job{}) || other == (Job{}) {\n", new: "\tif true {\n",
		shows: func(s *scenario) bool { return s.Fault == twoJobs },
	},
	{
		name: "golaunch does not look for orphans", file: "launcher/orphans.go",
		old: "if found, err := find(ask); len(found) == 0 && err == nil {", new: "if _ = ask; true {",
		shows: func(s *scenario) bool { return s.Setup == golaunch && s.Fault == exit },
	},
	{
		name: "golaunch exits with a code of its own", file: "launcher/failure.go",
		old: "return failure.Root.ExitCode()", new: "return 1",
		shows: func(s *scenario) bool { return s.Setup == golaunch && (s.Fault == kill || s.Fault == exit) },
	},
	{
		name: "golaunch reports the next rank", file: "launcher/report.go",
		old: `field("rank", "%d (local_rank: %d)", f.Rank, f.LocalRank)`, new: `field("rank", "%d (local_rank: %d)", f.Rank+1, f.LocalRank)`,
		shows: func(s *scenario) bool { return s.Setup == golaunch && (s.Fault == kill || s.Fault == exit) },
	},
	{
		name: "a backward pass over other numbers passes", file: "autograd/version.go",
		old: "if now := x.mem.version; now != x.version {", new: "if now := x.mem.version; now < x.version {",
		shows: func(s *scenario) bool { return s.Fault == stale },
	},
	{
		name: "a suspension counts as waiting", file: "comm/watchdog.go",
		old: "\t\t\td.extend(now, suspended)\n", new: "",
		shows: func(s *scenario) bool { return s.Mode != none && s.Fault == suspend },
	},
	{
		name: "the reaper of a killed golaunch does nothing", file: "launcher/reaper.go",
		old: "\tr.killAll()\n\tfor ", new: "\tfor ",
		shows: func(s *scenario) bool { return s.Fault == launcher },
	},
	{
		name: "golaunch does nothing without its reaper", file: "launcher/attempt.go",
		old: "return killOrphans(descendants, a.cfg.PollInterval, orphanLimit)", new: "return orphanReport{}",
		shows: func(s *scenario) bool { return s.trouble() == reaper },
	},
	{
		name: "orphans do not become the reaper's children", file: "launcher/reaper.go",
		old: "newReaper(conn, setSubreaper(true) == nil)", new: "newReaper(conn, false)",
		shows: func(s *scenario) bool { return s.Fault == daemons && s.trouble() != reaper },
	},
	{
		name: "a process whose main thread has ended counts as dead", file: "launcher/orphans_linux.go",
		old:   "\treturn n == pid || err == unix.ECHILD\n",
		new:   "\tended, _ := threadExiting(\"/proc/\" + strconv.Itoa(pid))\n\treturn ended || n == pid || err == unix.ECHILD\n",
		shows: func(s *scenario) bool { return s.Daemon == daemon.Mainless },
	},
}

// attempts is how many scenarios a mutant has to survive.
const attempts = 6

// hunt runs scenarios with each mutant until one fails, prints which, and tells
// how many mutants survived. made makes the i-th mutant in a new folder.
func (c *campaign) hunt(ctx context.Context, dir string, bin binaries, made func(i int, dir string) (binaries, error)) (survived int, err error) {
	catchers, reasons, errs := make([]*scenario, len(mutants)), make([]string, len(mutants)), make([]error, len(mutants))
	parallel(c.jobs, len(mutants), func(i int) {
		into := mutantFolder(dir, i)
		defer os.RemoveAll(into)
		mutated, err := made(i, into)
		if err != nil {
			errs[i] = err
			return
		}
		catchers[i], reasons[i], errs[i] = c.catch(ctx, mutated, bin, &mutants[i])
	})
	fmt.Fprintf(c.out, "\n| mutant | caught by | because |\n|---|---|---|\n")
	for i, s := range catchers {
		if s != nil {
			fmt.Fprintf(c.out, "| %s | %v | %s |\n", mutants[i].name, s, reasons[i])
		} else {
			survived++
			fmt.Fprintf(c.out, "| %s | **nothing** | |\n", mutants[i].name)
		}
	}
	return survived, errors.Join(errs...)
}

// catch returns the scenario that caught the mutant, and how. A scenario counts
// that the product as it is passes.
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
