package launcher

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/goddp/goddp/launcher/rendezvous"
)

// attempt is one generation of workers, from their start until nothing of them
// is left.
type attempt struct {
	round      *rendezvous.Round
	start      time.Time
	procs      []*process // those that could be started, by local rank
	exits      chan exit
	watcher    *watcher
	copying    sync.WaitGroup  // the goroutines that copy output
	showing    context.Context // until hide, they wait for the console
	hide       context.CancelFunc
	stopSignal syscall.Signal // what the workers were last told to stop with

	recorded bool // the workers' records have been taken

	sweeping  bool
	sweepKill chan struct{} // closed to make the sweep kill
}

func (a *agent) begin(round *rendezvous.Round) {
	exits := make(chan exit, a.cfg.Workers)
	showing, hide := context.WithCancel(context.Background())
	a.attempt = &attempt{
		round:     round,
		start:     time.Now(),
		exits:     exits,
		watcher:   newWatcher(exits),
		showing:   showing,
		hide:      hide,
		sweepKill: make(chan struct{}),
	}
}

// startWorkers starts all workers, or returns the first that could not be.
func (a *agent) startWorkers() (local int, err error) {
	if a.runDir == "" {
		if a.runDir, err = a.makeRunDir(); err != nil {
			return 0, err
		}
	}
	s := spawner{
		cfg:     a.cfg,
		starter: a.starter,
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
	if a.shepherd == nil {
		// Before the workers, so that none ever runs unwatched.
		a.shepherd = startShepherd(a.jobID)
		if !a.cfg.keepsLogs() {
			a.shepherd.discard(a.runDir)
		}
		if a.cfg.Scratch != "" {
			a.shepherd.discard(a.cfg.Scratch)
		}
	}
	for local := range a.cfg.Workers {
		p, err := s.spawn(local)
		if err != nil {
			return local, err
		}
		a.procs = append(a.procs, p)
		a.watcher.add(p)
		a.shepherd.add(p.PID)
		if a.cfg.OnStart != nil {
			a.cfg.OnStart(p.Worker)
		}
	}
	return 0, nil
}

// makeRunDir makes the folder that the attempts' folders go into.
func (a *agent) makeRunDir() (string, error) {
	name := strings.ReplaceAll(a.cfg.RunID, string(filepath.Separator), "_") + "_"
	if a.cfg.LogDir == "" {
		return os.MkdirTemp("", "golaunch_"+name)
	}
	if err := os.MkdirAll(a.cfg.LogDir, 0o755); err != nil {
		return "", err
	}
	// Workers may run in another folder than this process.
	dir, err := filepath.Abs(a.cfg.LogDir)
	if err != nil {
		return "", err
	}
	return os.MkdirTemp(dir, name)
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
		p.dying = p.dying || a.stopSignal == 0 && exiting(p.PID)
	}
	a.stopSignal = sig
	a.signalWorkers(locals, sig)
}

func (a *agent) signalWorkers(locals []int, sig syscall.Signal) {
	for _, local := range locals {
		if p := a.procs[local]; p.end == nil {
			signalGroup(p.PID, sig)
		}
	}
}

// sweep removes what the workers left, and has their output completed, beside the
// agent's loop. A second call has no effect.
func (a *agent) sweep() {
	if a.sweeping {
		return
	}
	a.sweeping = true
	s := sweeper{jobID: a.jobID, groups: a.groups(), interval: a.cfg.PollInterval, kill: a.sweepKill}
	a.helper.Go(func() {
		left := s.run()
		a.drain(a.console.grace, a.console.giveUp)
		a.sweeps <- left
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
	over := time.AfterFunc(grace, func() {
		late()
		at.hide()
	})
	at.copying.Wait()
	over.Stop()
	at.hide()
}

func (a *agent) groups() []int {
	var pgids []int
	for _, p := range a.procs {
		pgids = append(pgids, p.PID)
	}
	return pgids
}

// end finishes an attempt of which nothing is left and whose output is complete: a
// failure has its report.
func (a *agent) end() {
	a.watcher.close()
	for _, p := range a.procs {
		a.shepherd.remove(p.PID)
	}
	if a.core.verdict == failed {
		a.failure = a.describeFailure()
		a.failure.Records, a.failure.Meaning = a.writeRecords()
	}
	for _, p := range a.procs {
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
		if e.status.Success() && !stopped {
			continue
		}
		if ordered.IsZero() {
			ordered = p.end.at
		}
		f := Failure{
			Worker:    p.Worker,
			Status:    e.status,
			Exited:    p.end.at,
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
			p.Rank, p.LocalRank, p.PID, p.end.status(), n, a.grace())
	}
}

// grace says how long workers have to stop.
func (a *agent) grace() string {
	if a.cfg.ShutdownTimeout < time.Millisecond {
		return ""
	}
	return fmt.Sprintf(", for up to %v", a.cfg.ShutdownTimeout)
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
