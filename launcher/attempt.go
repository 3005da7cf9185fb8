package launcher

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/goddp/goddp/internal/atomicfile"
	"github.com/goddp/goddp/internal/rendezvous"
	"github.com/goddp/goddp/internal/stopfile"
)

// attempt is one generation of workers, from their start until nothing of them
// is left.
type attempt struct {
	round      *rendezvous.Round
	start      time.Time
	procs      []*process      // those that were to be started, by local rank
	copying    sync.WaitGroup  // the goroutines that copy output
	showing    context.Context // until hide, they wait for the console
	hide       context.CancelFunc
	stopSignal syscall.Signal // what the workers were last told to stop with

	recorded bool // the workers' records have been taken

	completing bool        // what the workers left is gone
	unanswered *time.Timer // ends a reaper that does not say that all is gone; nil before it must
}

func (a *agent) begin(round *rendezvous.Round) {
	showing, hide := context.WithCancel(context.Background())
	a.attempt = &attempt{
		round:   round,
		start:   time.Now(),
		showing: showing,
		hide:    hide,
	}
}

// requestWorkers has the reaper start all workers. It returns the first whose start
// could not be asked for.
func (a *agent) requestWorkers() (local int, err error) {
	if a.runDir == "" {
		if err = a.makeRunDir(); err != nil {
			return 0, err
		}
		secretEnv, err := a.guard.publish(a.runDir)
		if err != nil {
			return 0, err
		}
		a.env = append(a.env, secretEnv...)
	}
	s := spawner{
		cfg:     a.cfg,
		reaper:  a.reaper,
		console: a.console,
		hidden:  a.showing.Done(),
		env:     a.env,
		round:   a.round,
		attempt: a.core.restarts,
		dir:     a.attemptDir(),
		records: a.records.Entries,
		dumps:   a.dumpDir(),
		chosen:  a.records.Chosen() != "",
		copying: &a.copying,
	}
	for local := range a.cfg.Workers {
		p, err := s.spawn(local)
		if err != nil {
			return local, err
		}
		a.procs = append(a.procs, p)
	}
	return 0, nil
}

// makeRunDir makes the folder that the attempts' folders go into. The reaper knows the
// name of one that is temporary before it exists.
func (a *agent) makeRunDir() error {
	name := strings.ReplaceAll(a.cfg.RunID, string(filepath.Separator), "_") + "_" + randomID()
	parent := a.cfg.LogDir
	if parent == "" {
		parent, name = os.TempDir(), "golaunch_"+name
	} else if err := os.MkdirAll(parent, 0o755); err != nil {
		return err
	} else if err := atomicfile.CheckFolder(parent); err != nil {
		return fmt.Errorf("the folder for logs: %w", err)
	}
	// Workers, and the reaper, may run in another folder than this process.
	parent, err := filepath.Abs(parent)
	if err != nil {
		return err
	}
	dir := filepath.Join(parent, name)
	if !a.cfg.keepsLogs() {
		if err := a.reaper.discard(dir); err != nil {
			return err
		}
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	a.runDir = dir
	return nil
}

// attemptDir is the attempt's folder within the run's.
func (a *agent) attemptDir() string {
	return filepath.Join(a.runDir, fmt.Sprintf("attempt_%d", a.core.restarts))
}

// stopWorkers passes the order to stop on, having noted who does not need it:
// an exit that is under way is the worker's own.
func (a *agent) stopWorkers(locals []int, sig syscall.Signal) {
	for _, local := range locals {
		p := a.procs[local]
		p.dying = p.dying || a.stopSignal == 0 && p.PID != 0 && exiting(p.PID)
	}
	a.stopSignal = sig
	a.signalWorkers(locals, sig)
}

func (a *agent) signalWorkers(locals []int, sig syscall.Signal) {
	_ = a.reaper.request(request{Signal: &signalRequest{Locals: locals, Signal: sig}}) // its loss is an event
}

// removeOrphans has the reaper remove what the workers left, or, when the reaper is
// dead, removes the workers and what they left itself.
func (a *agent) removeOrphans(kill bool) {
	if a.lost != nil {
		for _, p := range a.procs {
			if p.PID != 0 && p.end == nil {
				_ = syscall.Kill(-p.PID, syscall.SIGKILL)
			}
		}
		a.complete(func() orphanReport {
			if !a.subreaper {
				return orphanReport{Error: a.lost.Error()}
			}
			return killOrphans(descendants, a.cfg.PollInterval, orphanLimit)
		})
		return
	}
	_ = a.reaper.request(request{Orphans: &orphanRequest{
		Attempt: a.core.restarts, Kill: kill, Interval: a.cfg.PollInterval,
	}})
	if kill && a.unanswered == nil {
		a.unanswered = time.AfterFunc(orphanLimit+abandonAfter, a.reaper.kill)
	}
}

// complete removes what the workers left, and has their output completed, beside the
// agent's loop. A second call has no effect.
func (a *agent) complete(remove func() orphanReport) {
	if a.completing {
		return
	}
	a.completing = true
	if a.unanswered != nil {
		a.unanswered.Stop()
	}
	a.helper.Go(func() {
		left := remove()
		a.drain(a.console.grace, a.console.giveUp)
		a.orphans <- left
	})
}

// drain returns when the output of an attempt of which nothing is left is complete,
// as far as the console takes it before grace is over, which late is told of, or hide
// is called.
func (at *attempt) drain(grace time.Duration, late func()) {
	for _, p := range at.procs {
		for _, st := range p.streams {
			st.endSoon()
		}
	}
	timer := time.AfterFunc(grace, func() {
		late()
		at.hide()
	})
	at.copying.Wait()
	timer.Stop()
	at.hide()
}

// end finishes an attempt of which nothing is left and whose output is complete: a
// failure has its report.
func (a *agent) end() {
	if a.core.verdict == failed {
		a.failure = a.describeFailure()
		a.failure.Records, a.failure.Meaning = a.writeRecords()
	}
	for _, p := range a.procs {
		if a.core.verdict != failed || !a.failure.showsStack(p.Rank) {
			for _, st := range p.streams {
				st.showStack()
			}
		}
		p.closeRecord()
	}
}

// describeFailure gathers what every worker that failed, or was stopped, left
// behind.
func (a *agent) describeFailure() *FailureError {
	var failures []Failure
	var ordered time.Time // when the first failure was observed, and the stop ordered
	for _, e := range a.core.exits {
		p := a.procs[e.local]
		late := e.late && !p.dying
		stopped := late && stoppedBy(e.status, a.stopSignal, e.killed)
		if e.asked || e.status.isSuccess() && !stopped {
			continue
		}
		if ordered.IsZero() {
			ordered = p.end.At
		}
		f := Failure{
			Worker:    p.Worker,
			Status:    e.status,
			Exited:    p.end.At,
			Stopped:   stopped,
			Stderr:    p.stderr.lines(),
			errorPath: p.errorFile,
		}
		if e.status == (Status{Code: 2}) {
			if f.Crash = p.stderr.crash; len(f.Crash) == 0 {
				f.Stderr = p.stderr.whole()
			}
		}
		var err error
		if f.ErrorFile, err = readErrorFile(p.errorFile); err != nil {
			a.console.logf("error file of rank %d: %v", p.Rank, err)
		}
		f.date(a.start, ordered, late)
		failures = append(failures, f)
	}
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return newFailureError(a.cfg.Name, host, a.core.restarts, failures, ordered)
}

// logFailure says at once which worker ends the attempt; the report follows
// when the others have ended too.
func (a *agent) logFailure(p *process) {
	if n := len(a.core.alive); n > 0 {
		a.console.logf("rank %d (local rank %d, pid %d) %s; stopping the %d still running%s",
			p.Rank, p.LocalRank, p.PID, p.end.Status, n, a.grace())
	}
}

// grace says how long workers have to stop.
func (a *agent) grace() string {
	if a.cfg.ShutdownTimeout < time.Millisecond {
		return ""
	}
	return fmt.Sprintf(", for up to %v", a.cfg.ShutdownTimeout)
}

// heedStop reports whether the workers that act is about stop behind their step.
func (a *agent) heedStop(act action) bool {
	return (act.signal == syscall.SIGINT || act.signal == syscall.SIGTERM) && !slices.ContainsFunc(act.locals, func(local int) bool {
		return stopfile.Read(a.procs[local].stopFile) == stopfile.Unheeded
	})
}

// ranks lists workers as "ranks 0-3, 5".
func (a *agent) ranks(locals []int) string {
	var runs []string
	for i := 0; i < len(locals); {
		first, last := a.procs[locals[i]].Rank, a.procs[locals[i]].Rank
		for i++; i < len(locals) && a.procs[locals[i]].Rank == last+1; i++ {
			last++
		}
		if first == last {
			runs = append(runs, strconv.Itoa(first))
		} else {
			runs = append(runs, fmt.Sprintf("%d-%d", first, last))
		}
	}
	if len(locals) == 1 {
		return "rank " + runs[0]
	}
	return "ranks " + strings.Join(runs, ", ")
}

// names lists workers as "rank 1 (pid 5), rank 3 (pid 7)".
func (a *agent) names(locals []int) string {
	var names []string
	for _, local := range locals {
		p := a.procs[local]
		names = append(names, fmt.Sprintf("rank %d (pid %d)", p.Rank, p.PID))
	}
	return strings.Join(names, ", ")
}
