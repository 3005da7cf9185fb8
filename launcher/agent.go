package launcher

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goddp/goddp/internal/awake"
	"github.com/goddp/goddp/internal/jobenv"
	"github.com/goddp/goddp/launcher/internal/failure"
	"github.com/goddp/goddp/launcher/internal/rendezvous"
)

// abandonAfter is how long the agent waits for workers after SIGKILL.
const abandonAfter = 10 * time.Second

// Result describes a job that ended, with or without success.
type Result struct {
	// Restarts is the number of attempts that failed before the last one.
	Restarts int
	// LogDir is the run's folder if Run kept it, else "".
	LogDir string
}

// Run runs the job that cfg describes. It returns when no worker, no process that a worker started, and
// no unwritten output is left. After the workers' end, Run stops waiting for an output that takes no line
// for ShutdownTimeout (at least 1 s), or for 1 s if a signal ended the job. One more signal also ends this
// wait. Run then drops the rest of the output, and may leave a goroutine in a blocked write.
//
// The error is nil, a [*FailureError], a [*SignalError], the context's cause, the reason why the workers
// could not be started or watched, or the reason why output of a successful job was lost (a reader that
// exits, such as head, does not count). [ExitCode] turns the error into an exit code. Before Run returns,
// it writes the error to Stderr; a [*FailureError] is written as a report. Run does not write the context's
// error, nor an error in cfg or Env. For an error in cfg or Env the result is nil.
func Run(ctx context.Context, cfg *Config) (*Result, error) {
	c, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	records, err := jobenv.ReadFlight(jobenv.Users(lookup(c.Env)))
	if err != nil {
		return nil, err
	}
	security, err := readSecurity(c.Env)
	if err != nil {
		return nil, err
	}
	a := &agent{
		cfg:     c,
		guard:   security,
		records: records,
		core:    newCore(c.Workers, c.Nodes == nil),
		console: newConsole(c.Stdout, c.Stderr),
		view:    newView(c),
		orphans: make(chan orphanReport, 1),
	}
	if c.JSONLines {
		a.console.json = &jsonLine{Source: fromGolaunch, Host: hostname()}
	}
	options, err := a.rendezvousOptions()
	if err != nil {
		return nil, err
	}
	if c.Nodes == nil { // of several nodes, the one with the page is not known yet
		if err := a.openView(); err != nil {
			return nil, err
		}
	}
	a.rendezvous = rendezvous.Open(context.WithoutCancel(ctx), options)
	return a.run(ctx)
}

// agent performs the actions of the core, and turns exits, signals and timeouts into the
// core's events. Only the goroutine that called Run may use it.
type agent struct {
	cfg         *Config
	guard       security
	rendezvous  *rendezvous.Agent
	records     jobenv.Flight
	core        *core
	console     *console
	view        *view      // nil: the job has no page
	observer    observer   // what shows this round's workers; nil: nobody looks at the job
	remote      *remoteRun // the observer, if the page is on another node
	reaper      *reaperClient
	lost        error        // how the reaper ended; nil while it runs
	electionPID atomic.Int64 // process id of golaunch-etcd; 0 if it was not started
	subreaper   bool         // orphans become children of this process once the reaper has ended
	runDir      string
	held        []*os.File      // folders that hold has locked
	timer       *awake.Timer    // the latest timer; nil before the first one
	timeout     <-chan struct{} // closed when the timer fires; nil if no timer is armed

	// One helper goroutine at a time completes an attempt.
	helper  sync.WaitGroup
	orphans chan orphanReport

	*attempt               // the current attempt; nil before the first one
	err      *FailureError // why the job has failed; nil until it has
}

func (a *agent) run(ctx context.Context) (_ *Result, err error) {
	canceled := false
	defer func() { err = cmp.Or(err, a.close(err, canceled)) }()
	done, signals := ctx.Done(), a.cfg.Signals

	if err := a.startReaper(); err != nil { // the agent joins the rendezvous meanwhile
		return a.result(), err
	}
	reports := a.reaper.reports
	for a.core.phase != finished {
		var ev event
		select {
		case o := <-a.rendezvous.Orders():
			if ev = a.ordered(&o); ev == nil {
				continue
			}
		case r, ok := <-reports:
			if ok {
				ev = a.reported(&r)
			} else {
				reports, a.lost = nil, a.reaper.lost()
				ev = reaperLost{a.lost}
			}
			if ev == nil {
				continue
			}
		case sig, ok := <-signals:
			n, isNumber := sig.(syscall.Signal)
			if !ok || !isNumber {
				signals = nil
				continue
			}
			ev = signalReceived{n, time.Now(), a.canLeave()}
		case <-done:
			done = nil
			canceled = a.core.signal == 0
			ev = signalReceived{syscall.SIGTERM, time.Now(), a.canLeave()}
		case <-a.timeout:
			a.timeout = nil
			ev = timerFired{}
		case left := <-a.orphans:
			if len(left.Survivors) > 0 {
				a.console.logf("processes %v survive SIGKILL and are left behind", left.Survivors)
			}
			if left.Error != "" {
				a.console.logf("processes that the workers started may be left behind: %s", left.Error)
			}
			a.end()
			ev = orphansGone{}
		}
		acts := a.core.Step(ev)
		if a.attempt != nil && (a.core.verdict == failed || a.core.verdict == stopped && a.stopped != nil && a.stopped.Failure != nil) {
			a.takeRecords() // before the other workers are stopped
		}
		a.perform(acts)
	}
	if a.lost != nil && (a.core.verdict != broken || a.core.err != a.lost) {
		a.console.logf("%v", a.lost)
	}

	if path := a.cfg.ErrorFile; path != "" && a.core.verdict == failed {
		if err := failure.CopyErrorFile(&a.err.root, path); err != nil {
			a.console.logf("copying the error file: %v", err)
		}
	}
	result := a.result()
	switch a.core.verdict {
	case failed:
		return result, a.err
	case signalled:
		if canceled {
			return result, context.Cause(ctx)
		}
		return result, &SignalError{cmp.Or(a.core.asked, a.core.signal, syscall.SIGTERM)}
	case broken:
		return result, a.core.err
	}
	return result, nil
}

// startReaper starts the parent of the workers. If this process is dedicated to the job,
// both this process and the reaper are subreapers. Orphans then stay below this process
// even after the reaper's death.
func (a *agent) startReaper() (err error) {
	a.subreaper = a.cfg.Dedicated && setSubreaper(true) == nil
	if a.reaper, err = startReaper(); err != nil {
		return fmt.Errorf("starting the reaper: %w", err)
	}
	if a.cfg.Scratch != "" {
		a.hold(a.cfg.Scratch)
		err = a.reaper.discard(a.cfg.Scratch)
	}
	return err
}

// hold locks a folder while this process runs, because systemd-tmpfiles removes old files only from folders
// that are not locked. On file systems without locks, such as some network file systems, hold has no effect.
func (a *agent) hold(dir string) {
	f, err := os.Open(dir)
	if err != nil {
		return
	}
	_ = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	a.held = append(a.held, f)
}

// reported handles a report of the reaper. It returns nil if the report is not an event for the core.
func (a *agent) reported(r *report) event {
	switch {
	case r.Started != nil:
		p := a.procs[r.Started.Local]
		if r.Started.PID == 0 {
			err := &startError{Rank: p.Rank, Program: a.cfg.Args[0], Err: r.Started.err()}
			if p.order != nil {
				return a.notReplaced(p, err)
			}
			return startFailed{p.LocalRank, err}
		}
		p.PID = r.Started.PID
		a.showWorker(p)
		if o := p.order; o != nil {
			a.console.logf("worker %d started in place of worker %d (attempt %d of %d)", o.Worker, o.InPlaceOf, o.Try, rendezvous.MaxTries)
		}
		if a.cfg.OnStart != nil {
			a.cfg.OnStart(p.Worker)
		}
	case r.Exited != nil:
		for _, p := range a.procs { // a worker that an earlier attempt abandoned is not in a.procs
			if p.PID == r.Exited.PID && p.end == nil {
				return a.exited(p, r.Exited)
			}
		}
	case r.Orphans != nil:
		if r.Orphans.Attempt == a.attempt.number {
			a.complete(func() orphanReport { return *r.Orphans })
		}
	}
	return nil
}

// exited handles the end of a worker.
func (a *agent) exited(p *process, end *failure.Failure) event {
	p.end = end
	end.Node, end.Host, end.ErrorPath = a.round.Node, hostname(), p.errorFile
	end.Rank, end.LocalRank, end.Attempt, end.Why = p.Rank, p.LocalRank, p.Attempt, p.expelled
	a.showWorker(p)
	ev := p.exit()
	if p.isUndecided = a.cfg.OnFailure != Restart && a.core.canLose(ev); p.isUndecided && p.PID != 0 {
		// The worker may have been a shell whose child still is a member of the epoch.
		_ = a.reaper.request(request{Group: p.PID}) // the loss of the reaper is a separate event
	}
	a.rendezvous.Exited(rendezvous.Exit{
		Rank: a.round.FirstRank + p.LocalRank, How: end.Status.String(), Worker: p.number, Done: end.Status.IsSuccess(),
		Killed: end.Status.Signal == syscall.SIGKILL,
	})
	if p.isUndecided {
		return nil // the host of the rendezvous answers: see judged
	}
	return ev
}

// perform carries out actions. An action that takes time ends with an event.
func (a *agent) perform(actions []action) {
	for _, act := range actions {
		switch act.verb {
		case doStart:
			if local, err := a.requestWorkers(); err != nil {
				a.perform(a.core.Step(startFailed{local, err}))
			}
		case doReplace:
			a.replace(a.replacement)
		case doSignal:
			a.stopWorkers(act.locals, act.signal)
		case doAbort:
			for _, local := range act.locals {
				p := a.procs[local]
				state, err := jobenv.RefuseStops(p.stopFile)
				if err != nil {
					a.console.logf("rank %d may finish its step before it ends: %v", p.Rank, err)
				}
				p.stopped = p.stopped || state == jobenv.StopDone
			}
			a.stopWorkers(act.locals, act.signal)
		case doKill:
			a.signalWorkers(act.locals, syscall.SIGKILL)
			a.console.logf("killing %s", a.names(act.locals))
		case doArmShutdown:
			a.arm(a.cfg.ShutdownTimeout)
		case doArmAbandon:
			a.arm(abandonAfter)
		case doStopOrphans:
			a.removeOrphans(false)
		case doKillOrphans:
			a.removeOrphans(true)
		case doHurry:
			a.hurry()
		case doTellFailure:
			a.rendezvous.Failed(a.firstFailure(act.locals))
		case doTellLeave:
			a.rendezvous.Leave(failure.SignalName(act.signal), false)
		case doAskToLeave:
			a.rendezvous.AskToLeave(failure.SignalName(act.signal))
		case doReportLeave:
			a.console.logf("%s: leaving the job after this step, which the other nodes go on with: waiting up to %v for %s; again to kill",
				failure.SignalName(act.signal), a.cfg.ShutdownTimeout, a.ranks(act.locals))
		case doTellLeaveNow:
			a.rendezvous.Leave(a.core.err.Error(), true)
		case doTellEnd:
			a.disarm()
			a.rendezvous.Ended(a.round.Number, act.signal != 0, a.tellableFailures())
		case doReportLoss:
			a.lose(a.procs[act.locals[0]])
		case doReportFailure:
			a.logFailure(a.procs[act.locals[0]])
		case doReportSignal:
			if a.heedStop(act) {
				a.console.logf("%s: stopping: waiting up to %v for %s to finish the step; again to abort",
					failure.SignalName(act.signal), a.cfg.ShutdownTimeout/2, a.ranks(act.locals))
			} else {
				a.console.logf("%s: stopping %s (shutdown timeout %v; another SIGINT or SIGTERM kills)", failure.SignalName(act.signal), a.names(act.locals), a.cfg.ShutdownTimeout)
			}
		case doReportStop:
			if len(act.locals) > 0 {
				a.console.logf("the ranks were asked to stop by %s: waiting up to %v for %s", failure.SignalName(act.signal), a.cfg.ShutdownTimeout, a.ranks(act.locals))
			}
		case doReportAbandoned:
			a.console.logf("%s survived SIGKILL for %v and is left behind: it is stuck in the kernel",
				a.names(act.locals), abandonAfter)
		case doFinish:
			a.disarm()
		}
	}
}

// arm makes the timer fire after this process has run for d. There is one timer: a new deadline replaces
// the previous one. Time during which the whole job is suspended does not count, so workers that are
// stopping do not lose it.
func (a *agent) arm(d time.Duration) {
	a.disarm()
	fired := make(chan struct{})
	a.timeout, a.timer = fired, awake.AfterFunc(d, func() { close(fired) })
}

func (a *agent) disarm() {
	if a.timer != nil {
		a.timer.Stop()
	}
	a.timeout = nil
}

// result returns the result of the job. It removes the run's folder, except for logs that
// the user asked for and for flight records.
func (a *agent) result() *Result {
	result := &Result{}
	if a.attempt != nil {
		result.Restarts = a.round.Restarts
	}
	if a.runDir == "" {
		return result
	}
	if err := a.guard.withdraw(a.runDir); err != nil && !errors.Is(err, os.ErrNotExist) {
		a.console.logf("removing the job's secret: %v", err)
	}
	var contents []string
	if a.cfg.keepsLogs() {
		contents = append(contents, "logs")
	}
	hasRecords, err := a.cleanRunDir()
	if err != nil {
		a.console.logf("removing temporary files: %v", err)
	}
	isReported := a.core.verdict == failed && a.err.records != "" && a.round.Number == 0
	if hasRecords && !isReported { // the report names the folder itself
		contents = append(contents, "flight records")
	}
	if hasRecords || a.cfg.keepsLogs() {
		result.LogDir = a.runDir
	}
	if len(contents) > 0 && a.cfg.LogDir == "" {
		a.console.logf("%s are in %s", strings.Join(contents, " and "), a.runDir)
	}
	return result
}

// cleanRunDir reports whether the run's folder holds flight records. Unless the user asked
// for logs, it removes everything else from that folder.
func (a *agent) cleanRunDir() (hasRecords bool, err error) {
	attempts, err := os.ReadDir(a.runDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	var errs []error
	for _, attempt := range attempts {
		dir := filepath.Join(a.runDir, attempt.Name())
		records, _ := os.ReadDir(filepath.Join(dir, flightFolder)) // there may be none
		isKept := len(records) > 0 && a.records.DumpOnFailure
		hasRecords = hasRecords || isKept
		if a.cfg.keepsLogs() {
			continue
		}
		if !isKept {
			errs = append(errs, os.RemoveAll(dir))
			continue
		}
		entries, _ := os.ReadDir(dir) // it was readable just now
		for _, e := range entries {
			if e.Name() != flightFolder {
				errs = append(errs, os.RemoveAll(filepath.Join(dir, e.Name())))
			}
		}
	}
	if !hasRecords && !a.cfg.keepsLogs() {
		errs = append(errs, os.RemoveAll(a.runDir))
	}
	return hasRecords, errors.Join(errs...)
}

// isHurried reports whether a signal is ending the job. If so, draining the workers' output and closing the console
// get only hurriedTime each.
func (a *agent) isHurried() bool { return a.core.signal != 0 || a.core.asked != 0 }

// close releases what outlives an attempt. It writes err to the console, unless the end
// of the caller's context is its cause. It returns why output was lost, or nil.
func (a *agent) close(err error, canceled bool) error {
	a.helper.Wait()
	if err := a.rendezvous.Close(); err != nil {
		a.console.logf("leaving the rendezvous: %v", err)
	}
	a.reaper.close()
	closeAll(a.held)
	a.unwatch()
	if a.subreaper {
		_ = setSubreaper(false)
	}
	var failed *FailureError
	switch {
	case errors.As(err, &failed) && !a.cfg.BriefReport:
		a.console.logReport(failed)
	case err != nil && !canceled:
		a.console.logf("%v", err)
	}
	if e := a.view.close(err); e != nil {
		a.console.logf("closing the page: %v", e)
	}
	grace := max(a.cfg.ShutdownTimeout, time.Second)
	if a.isHurried() {
		grace = hurriedTime
	}
	return cmp.Or(a.console.Close(grace, a.cfg.Signals), a.console.lost) // nothing copies output any more
}
