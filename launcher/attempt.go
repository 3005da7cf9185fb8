package launcher

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/goddp/goddp/internal/files"
	"github.com/goddp/goddp/internal/flight/analyze"
	"github.com/goddp/goddp/internal/jobenv"
	"github.com/goddp/goddp/internal/rootcause"
	"github.com/goddp/goddp/launcher/internal/failure"
	"github.com/goddp/goddp/launcher/internal/rendezvous"
)

// attempt is one generation of workers, from their start until the end of all processes
// and output that belong to them.
type attempt struct {
	round      *rendezvous.Round
	number     int // counts this agent's attempts; numbers of rounds can come twice, if etcd has forgotten the job
	start      time.Time
	spawner    *spawner
	procs      []*process     // the workers whose start was requested, by local rank
	retiring   sync.WaitGroup // the goroutines that wait for the output of lost workers
	hurrying   chan struct{}  // the copying goroutines wait for the console until hurry closes it
	hurry      func()
	stopSignal syscall.Signal // the signal last sent to stop the workers; 0 if none

	// In an attempt that survives lost workers:
	replacement *rendezvous.StartOrder // the latest order to start a worker
	members     []int                  // the numbers of the workers that train together, by rank; nil before the first epoch
	next        *rendezvous.Members    // the latest members, who are noted when the host has said what the end of the others means; or nil
	changed     time.Time              // when the first of the members was lost; zero if none was
	losses      []failure.Failure      // the last workers without which the others went on, at most maxLosses

	recorded bool // takeRecords has been called

	stopped  *rendezvous.StopOrder // the latest order to end the attempt; nil if there was none
	stopTime time.Time             // when the first order to end the attempt came
	shown    *rendezvous.StopOrder // the order that the user was told of; nil if the workers ended before that

	// The method end sets these fields: the failures of the workers that failed or were stopped, the root cause
	// first; the folder with this node's flight records ("": none); and what these records mean.
	failures []failure.Failure
	dumps    string
	meaning  *analyze.Report

	completing bool        // complete has been called
	unanswered *time.Timer // kills a reaper that does not report that orphans were killed; nil until they are being killed
}

func (a *agent) begin(round *rendezvous.Round) {
	a.logRound(round)
	number := 0
	if a.attempt != nil {
		number = a.attempt.number + 1
	}
	hurrying := make(chan struct{})
	a.attempt = &attempt{
		round:    round,
		number:   number,
		start:    time.Now(),
		hurrying: hurrying,
		hurry:    sync.OnceFunc(func() { close(hurrying) }),
	}
}

// requestWorkers asks the reaper to start all workers. On an error it returns the local
// rank of the first worker whose start could not be requested.
func (a *agent) requestWorkers() (local int, err error) {
	if err := a.makeRunDir(); err != nil {
		return 0, err
	}
	secretEnv, err := a.guard.publish(a.runDir, a.round.Credentials.Secret)
	if err != nil {
		return 0, err
	}
	s := &spawner{
		cfg:      a.cfg,
		reaper:   a.reaper,
		console:  a.console,
		hurry:    a.hurrying,
		env:      append(baseEnv(a.cfg, a.round.Nodes), secretEnv...),
		round:    a.round,
		dir:      a.attemptDir(),
		observer: a.observer,
		records:  a.records.Entries,
		dumps:    a.dumpDir(),
		chosen:   a.records.Dir != "",
	}
	a.spawner = s
	for local := range a.cfg.Workers {
		if a.round.Starts != nil {
			a.procs = append(a.procs, nil)
			a.replace(a.round.Starts[local])
			continue
		}
		p, err := s.spawn(local, nil)
		if err != nil {
			return local, err
		}
		a.procs = append(a.procs, p)
	}
	return 0, nil
}

// makeRunDir creates the run's folder, which holds the attempts' folders. It recreates the folder if it is gone:
// systemd-tmpfiles, for example, may remove old files while the job runs.
func (a *agent) makeRunDir() (err error) {
	dir := a.runDir
	if dir == "" {
		if dir, err = a.nameRunDir(); err != nil {
			return err
		}
	}
	if parent := filepath.Dir(dir); a.cfg.LogDir != "" {
		if err := os.MkdirAll(parent, 0o755); err != nil {
			return err
		}
		if err := files.CheckFolder(parent); err != nil {
			return fmt.Errorf("the folder for logs: %w", err)
		}
	}
	isNew := !exists(dir)
	if err := files.MakePrivate(dir); err != nil {
		return err
	}
	if isNew {
		a.hold(dir)
	}
	a.runDir = dir
	return nil
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// nameRunDir chooses the path of the run's folder. If the folder is temporary, nameRunDir first sends the path to
// the reaper, which removes it if the agent dies.
func (a *agent) nameRunDir() (dir string, err error) {
	parent, name := a.cfg.LogDir, strings.ReplaceAll(a.cfg.RunID, string(filepath.Separator), "_")+"_"+randomID()
	if parent == "" {
		parent, name = os.TempDir(), "golaunch_"+name
	}
	// The workers and the reaper may run in another folder than this process.
	if dir, err = filepath.Abs(filepath.Join(parent, name)); err != nil || a.cfg.keepsLogs() {
		return dir, err
	}
	return dir, a.reaper.discard(dir)
}

// attemptDir returns the attempt's folder within the run's folder.
func (a *agent) attemptDir() string {
	return filepath.Join(a.runDir, fmt.Sprintf("attempt_%d", a.round.Number))
}

// stopWorkers sends sig to workers. First it records which workers are already exiting, because the signal is not
// the cause of their exit.
func (a *agent) stopWorkers(locals []int, sig syscall.Signal) {
	for _, local := range locals {
		p := a.procs[local]
		p.dying = p.dying || a.stopSignal == 0 && p.PID != 0 && exiting(p.PID)
	}
	a.stopSignal = sig
	a.signalWorkers(locals, sig)
}

func (a *agent) signalWorkers(locals []int, sig syscall.Signal) {
	_ = a.reaper.request(request{Signal: &signalRequest{Locals: locals, Signal: sig}}) // the loss of the reaper is a separate event
}

// removeOrphans asks the reaper to remove the processes that the workers left behind. If
// the reaper is dead, the agent kills the workers and these processes itself.
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
			return killOrphans(descendants(int(a.electionPID.Load())), a.cfg.PollInterval, orphanLimit)
		})
		return
	}
	_ = a.reaper.request(request{Orphans: &orphanRequest{
		Attempt: a.attempt.number, Kill: kill, Interval: a.cfg.PollInterval,
	}})
	if kill && a.unanswered == nil {
		limit := orphanLimit + abandonAfter
		a.unanswered = time.AfterFunc(limit, func() {
			a.reaper.giveUp(fmt.Sprintf("did not end the workers' processes in %v", limit))
		})
	}
}

// complete calls remove and then waits for the rest of the workers' output, in a helper
// goroutine. A second call has no effect.
func (a *agent) complete(remove func() orphanReport) {
	if a.completing {
		return
	}
	a.completing = true
	if a.unanswered != nil {
		a.unanswered.Stop()
	}
	limit := drainTime
	if a.isHurried() {
		limit = hurriedTime
	}
	a.helper.Go(func() {
		left := remove()
		a.drain(limit)
		a.orphans <- left
	})
}

// drain waits until all output of the attempt is read from its pipes, and is written or waits
// in the console's queue. It must be called when no process of the attempt is left. If output
// finds no room in the queue, drain waits until the time limit, or until hurry is called; then the queue has more room.
func (at *attempt) drain(limit time.Duration) {
	for _, p := range at.procs {
		p.endSoon()
	}
	timer := time.AfterFunc(limit, at.hurry)
	for _, p := range at.procs {
		p.copying.Wait()
	}
	at.retiring.Wait()
	timer.Stop()
	at.hurry()
}

// end finishes an attempt whose processes are gone and whose output is complete.
func (a *agent) end() {
	if a.core.verdict == failed || a.core.verdict == stopped {
		a.failures = a.describeFailures()
		a.dumps, a.meaning = a.writeRecords()
	}
	showsStack := func(f failure.Failure) bool { return f.Stopped || stackOf(&f) != nil }
	for _, p := range a.procs {
		isReported := a.rootCause() != nil && slices.ContainsFunc(a.failures, func(f failure.Failure) bool { return f.Rank == p.Rank && showsStack(f) })
		if !isReported {
			for _, st := range p.streams {
				st.showStack()
			}
		}
		p.closeRecord()
	}
}

// rootCause returns the failure of this node that came first, or nil if no worker failed.
func (at *attempt) rootCause() *failure.Failure {
	i := slices.IndexFunc(at.failures, func(f failure.Failure) bool { return !f.Stopped })
	if i < 0 {
		return nil
	}
	return &at.failures[i]
}

// describeFailures describes every worker that failed or was stopped, the root cause first.
func (a *agent) describeFailures() []failure.Failure {
	var failures []failure.Failure
	ordered := a.stopTime // when the first failure was observed, or the rendezvous ended the attempt, and the others were told to stop
	for _, e := range a.core.exits {
		p := a.procs[e.local]
		late := e.late && !p.dying
		stopped := late && e.status.IsEffectOf(a.stopSignal, e.killed)
		if e.asked != 0 || e.status.IsSuccess() && !stopped {
			continue
		}
		if ordered.IsZero() || p.end.Exited.Before(ordered) {
			ordered = p.end.Exited
		}
		f, err := failureOf(p)
		if err != nil {
			a.console.logf("error file of rank %d: %v", p.Rank, err)
		}
		f.IsLate, f.Stopped, f.Stderr = late, stopped, p.stderr.lines()
		if e.status == (failure.Status{Code: 2}) {
			if f.Crash = p.stderr.crash; len(f.Crash) == 0 {
				f.Stderr = p.stderr.whole()
			}
		}
		failures = append(failures, f)
	}
	failure.Judge(failures, a.start, ordered)
	failure.Sort(failures)
	return failures
}

// failureOf describes a worker that has ended, without its stderr, which may not be complete.
func failureOf(p *process) (f failure.Failure, err error) {
	f = *p.end
	f.ErrorFile, err = jobenv.ReadErrorFile(f.ErrorPath)
	return f, err
}

// logFailure logs at once which worker ends the attempt. The report follows when the
// other workers have ended too.
func (a *agent) logFailure(p *process) {
	if n := len(a.core.alive); n > 0 {
		f, _ := failureOf(p) // describeFailures logs the error
		a.console.logf("rank %d (local rank %d, pid %d) %s%s; stopping the %d still running%s",
			p.Rank, p.LocalRank, p.PID, p.end.Status, f.Blame(), n, a.grace())
	}
}

// grace returns the time that workers have to stop, as a clause of a log line.
func (a *agent) grace() string {
	if a.cfg.ShutdownTimeout < time.Millisecond {
		return ""
	}
	return fmt.Sprintf(", for up to %v", a.cfg.ShutdownTimeout)
}

// heedStop reports whether all workers of act take its signal as a request to stop after
// the current step.
func (a *agent) heedStop(act action) bool {
	return (act.signal == syscall.SIGINT || act.signal == syscall.SIGTERM) && !slices.ContainsFunc(act.locals, func(local int) bool {
		return jobenv.ReadStopState(a.procs[local].stopFile) == jobenv.StopUnheeded
	})
}

// ranks formats workers as "ranks 0-3, 5".
func (a *agent) ranks(locals []int) string {
	var all []int
	for _, local := range locals {
		all = append(all, a.procs[local].Rank)
	}
	return rootcause.Ranks(all)
}

// names formats workers as "rank 1 (pid 5), rank 3 (pid 7)". A worker that has not started yet has no pid.
func (a *agent) names(locals []int) string {
	var names []string
	for _, local := range locals {
		p := a.procs[local]
		name := fmt.Sprintf("rank %d", p.Rank)
		if p.PID != 0 {
			name += fmt.Sprintf(" (pid %d)", p.PID)
		}
		names = append(names, name)
	}
	return strings.Join(names, ", ")
}
