package launcher

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
)

// phase is where an attempt stands.
type phase int

const (
	joining         phase = iota // waiting for the rendezvous
	running                      // all workers are up, or have exited with 0
	stopping                     // the workers were told to stop and some still run
	removingOrphans              // all workers have ended; what they left behind is being removed
	finished
)

// verdict is how an attempt ended, decided by the first event that ends it.
type verdict int

const (
	succeeded verdict = iota
	failed            // a worker failed
	signalled         // the agent was told to stop, or a worker was, and its ranks agreed
	broken            // the attempt could not begin, or its workers cannot be watched any more
)

// core holds the supervisor's decisions and nothing else: no processes, no
// clock, no signals. Step takes one event and returns what is to be done, in
// order. The agent performs the actions and feeds back what comes of them.
//
// Invariants: alive is non-zero only while running or stopping; exits holds one
// record for each worker of the attempt that has ended, in the order observed.
type core struct {
	workers     int
	maxRestarts int

	phase    phase
	restarts int
	verdict  verdict
	err      error          // why the attempt is broken, or why no other can follow it
	signal   syscall.Signal // the first signal the agent received, 0 if none
	asked    syscall.Signal // that because of which the ranks agreed to stop while the agent knew of none, 0 if they did not
	killing  bool           // SIGKILL has been sent
	alive    []int          // local ranks still running, ascending
	exits    []exitRecord
}

// exitRecord is the end of one worker.
type exitRecord struct {
	local  int
	status Status
	// late: the workers had been told to stop before this exit was observed.
	late bool
	// killed: they had even been sent SIGKILL.
	killed bool
	// asked: it ended because its ranks agreed to stop.
	asked bool
}

// The events.
type (
	event interface{ isEvent() }

	joined      struct{}
	joinFailed  struct{ err error }
	startFailed struct { // worker local could not be started; the ones after it are not tried
		local int
		err   error
	}
	reaperLost   struct{ err error } // the workers' parent is dead, and they are being killed
	workerExited struct {
		local  int
		status Status
		// asked is the signal because of which the worker's ranks agreed to stop, 0 if
		// they did not.
		asked syscall.Signal
	}
	signalReceived struct{ signal syscall.Signal }
	timerFired     struct{} // the timer last armed
	orphansGone    struct{} // nothing of the attempt is left
)

func (joined) isEvent()         {}
func (joinFailed) isEvent()     {}
func (startFailed) isEvent()    {}
func (reaperLost) isEvent()     {}
func (workerExited) isEvent()   {}
func (signalReceived) isEvent() {}
func (timerFired) isEvent()     {}
func (orphansGone) isEvent()    {}

// verb is what an action asks of the agent.
type verb int

const (
	doJoin            verb = iota // join the next round
	doStart                       // start the workers
	doSignal                      // send signal, then SIGCONT, to the groups of locals
	doAbort                       // the same, and let no worker take it for a request
	doKill                        // send SIGKILL to the groups of locals
	doArmShutdown                 // fire the timer after the shutdown timeout
	doArmAbandon                  // fire the timer when even SIGKILL must have worked
	doStopOrphans                 // remove leftovers, asking them first
	doKillOrphans                 // remove leftovers with SIGKILL, also if they are being asked
	doHide                        // wait no longer until the console has taken the workers' output
	doReportFailure               // tell the user that worker locals[0] failed and the others are stopped
	doReportSignal                // tell the user that locals are stopped because the agent received signal
	doReportStop                  // tell the user that the ranks stop because of signal, which the agent did not receive, and locals still run
	doReportRestart               // tell the user that another attempt begins
	doReportAbandoned             // tell the user that locals survive SIGKILL and are left behind
	doFinish                      // the job is over; the verdict stands
)

var verbNames = [...]string{"join", "start", "signal", "abort", "kill", "arm-shutdown", "arm-abandon", "stop-orphans",
	"kill-orphans", "hide", "report-failure", "report-signal", "report-stop", "report-restart", "report-abandoned", "finish"}

type action struct {
	verb   verb
	signal syscall.Signal // of doSignal, doAbort, doReportSignal and doReportStop
	locals []int          // of doSignal, doAbort, doKill, doReportFailure, doReportSignal, doReportStop and doReportAbandoned
}

func (a action) String() string {
	var b strings.Builder
	b.WriteString(verbNames[a.verb])
	if a.signal != 0 {
		fmt.Fprintf(&b, " %s", signalName(a.signal))
	}
	if a.locals != nil {
		fmt.Fprintf(&b, " %v", a.locals)
	}
	return b.String()
}

// newCore returns a core that waits for the first round, which the agent joins
// unasked.
func newCore(workers, maxRestarts int) *core {
	return &core{workers: workers, maxRestarts: maxRestarts}
}

// Step applies ev and returns the actions it calls for. Events that come too
// late to matter return none.
func (c *core) Step(ev event) []action {
	switch ev := ev.(type) {
	case joined:
		if c.phase != joining {
			return nil
		}
		c.phase = running
		for local := range c.workers {
			c.alive = append(c.alive, local)
		}
		return []action{{verb: doStart}}

	case joinFailed:
		if c.phase != joining {
			return nil
		}
		c.verdict, c.err = broken, ev.err
		return c.finish()

	case startFailed:
		c.alive = slices.DeleteFunc(c.alive, func(local int) bool { return local >= ev.local })
		switch c.phase {
		case running:
			c.verdict, c.err = broken, ev.err
			return c.stop(doAbort, syscall.SIGTERM)
		case stopping:
			return c.removeOrphansWhenAllEnded()
		}
		return nil // abandoned before

	case reaperLost:
		return c.reaperLost(ev.err)

	case workerExited:
		return c.exited(ev)

	case signalReceived:
		return c.signalled(ev.signal)

	case timerFired:
		if c.phase == stopping && c.killing {
			// A process that outlives SIGKILL is stuck in the kernel. Waiting
			// longer would hang the agent as well.
			act := action{verb: doReportAbandoned, locals: c.alive}
			c.alive = nil
			return append([]action{act}, c.removeOrphansWhenAllEnded()...)
		}
		return c.kill()

	case orphansGone:
		if c.phase != removingOrphans {
			return nil
		}
		if c.verdict == failed && c.restarts < c.maxRestarts && c.signal == 0 && c.err == nil {
			c.restarts++
			c.phase, c.verdict, c.killing, c.exits = joining, succeeded, false, nil
			return []action{{verb: doReportRestart}, {verb: doJoin}}
		}
		return c.finish()
	}
	panic(fmt.Sprintf("launcher: unknown event %T", ev))
}

func (c *core) exited(ev workerExited) []action {
	i := slices.Index(c.alive, ev.local)
	if i < 0 {
		return nil // abandoned before
	}
	c.alive = slices.Delete(c.alive, i, i+1)
	c.exits = append(c.exits, exitRecord{local: ev.local, status: ev.status, late: c.phase == stopping, killed: c.killing, asked: ev.asked != 0})
	if c.phase == running && ev.asked != 0 {
		// The other ranks stop by themselves. A signal to those that have received one
		// would abort them.
		c.verdict, c.asked, c.phase = signalled, ev.asked, stopping
		return append([]action{{verb: doArmShutdown}, c.toAlive(doReportStop, ev.asked)}, c.removeOrphansWhenAllEnded()...)
	}
	if c.asked != 0 && c.signal == 0 && c.verdict == signalled && !c.killing && ev.asked == 0 && !ev.status.isSuccess() {
		// It failed at what the ranks agreed to do before they stop.
		c.verdict = failed
		return append([]action{{verb: doReportFailure, locals: []int{ev.local}}}, c.removeOrphansWhenAllEnded()...)
	}
	if c.phase == running && !ev.status.isSuccess() {
		c.verdict = failed
		// Reported after the stop: a console that blocks must not keep the
		// other workers running.
		return append(c.stop(doAbort, syscall.SIGTERM), action{verb: doReportFailure, locals: []int{ev.local}})
	}
	return c.removeOrphansWhenAllEnded()
}

// reaperLost ends the job, in which no worker can be started or waited for any more.
// What was decided before stands.
func (c *core) reaperLost(err error) []action {
	c.err, c.alive, c.killing = err, nil, true
	switch c.phase {
	case joining:
		c.verdict = broken
		return c.finish()
	case running:
		c.verdict = broken
	}
	c.phase = removingOrphans
	return []action{{verb: doKillOrphans}}
}

// signalled passes a first signal on; a second one that means "end" kills, and where
// all is killed that was left, ends the wait for the console.
func (c *core) signalled(sig syscall.Signal) []action {
	first := c.signal == 0
	if first {
		c.signal = sig
	}
	switch c.phase {
	case joining:
		c.verdict = signalled
		return c.finish()
	case running:
		c.verdict = signalled
		report := c.toAlive(doReportSignal, sig)
		return append(c.stop(doSignal, sig), report)
	case stopping, removingOrphans:
		switch ends := sig == syscall.SIGINT || sig == syscall.SIGTERM; {
		case ends && c.phase == removingOrphans && c.killing:
			return []action{{verb: doHide}}
		case ends && !first:
			return c.kill()
		case c.asked != 0:
			return []action{c.toAlive(doReportStop, sig)}
		}
		if len(c.alive) > 0 {
			acts := []action{c.toAlive(doSignal, sig)}
			if first {
				acts = append(acts, c.toAlive(doReportSignal, sig))
			}
			return acts
		}
	}
	return nil
}

// stop begins to end the attempt. v is doAbort where the ranks cannot agree on anything any
// more.
func (c *core) stop(v verb, sig syscall.Signal) []action {
	c.phase = stopping
	acts := []action{{verb: doArmShutdown}}
	if len(c.alive) > 0 {
		acts = append(acts, c.toAlive(v, sig))
	}
	return append(acts, c.removeOrphansWhenAllEnded()...)
}

// kill ends what is left of the attempt, once.
func (c *core) kill() []action {
	if c.killing {
		return nil
	}
	switch c.phase {
	case stopping:
		c.killing = true
		return []action{{verb: doArmAbandon}, c.toAlive(doKill, 0)}
	case removingOrphans:
		c.killing = true
		return []action{{verb: doKillOrphans}}
	}
	return nil
}

// removeOrphansWhenAllEnded moves on when no worker runs any more. Leftovers of a job
// that succeeded have no claim to time; those of one that is being stopped have
// the rest of the shutdown timeout, as a worker may be a shell whose child is
// saving a checkpoint.
func (c *core) removeOrphansWhenAllEnded() []action {
	if len(c.alive) > 0 {
		return nil
	}
	c.phase = removingOrphans
	if c.verdict == succeeded || c.killing {
		c.killing = true
		return []action{{verb: doKillOrphans}}
	}
	return []action{{verb: doStopOrphans}}
}

func (c *core) finish() []action {
	c.phase = finished
	return []action{{verb: doFinish}}
}

func (c *core) toAlive(v verb, sig syscall.Signal) action {
	return action{verb: v, signal: sig, locals: slices.Clone(c.alive)}
}
