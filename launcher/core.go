package launcher

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/goddp/goddp/launcher/internal/failure"
)

// phase is the phase of an attempt.
type phase int

const (
	waiting         phase = iota // no attempt runs: the rendezvous begins the next one, or ends the job
	running                      // each worker runs or has exited with code 0
	stopping                     // the workers were told to stop, and some still run
	removingOrphans              // all workers have ended; processes that they left behind are being removed
	finished
)

// verdict says how an attempt ended on this node, and in the end how the job ended. The
// first event that ends the attempt decides it.
type verdict int

const (
	succeeded verdict = iota
	failed            // a worker failed
	signalled         // the agent received a signal, or all ranks agreed to stop because a worker did
	stopped           // the rendezvous ended the attempt, because of another node
	broken            // the attempt could not begin, or the agent can no longer watch its workers
)

// core is the pure state machine that makes the agent's decisions. It uses no processes,
// no clock and no signals. Step takes one event and returns the actions to perform, in
// order. The agent performs them and reports their outcome as further events.
//
// The core decides how an attempt on this node ends. The rendezvous decides whether another attempt follows,
// and on which nodes.
//
// Invariants: alive is empty unless the phase is running or stopping. exits holds the
// event of each worker of the attempt that has ended, in the order in which the exits
// were observed.
type core struct {
	workers int
	alone   bool // the job has one node, and ends with it

	phase     phase
	attempted bool // an attempt has been made
	verdict   verdict
	err       error          // why the attempt is broken, or why this node can begin no other one
	left      bool           // this node has left the job, and waits for the last order of the rendezvous
	ending    *jobEnded      // the end of the job, if it came before the end of the attempt; else nil
	asking    bool           // the agent has asked to leave, and has sent no signal to the workers
	gentle    bool           // in phase stopping, if the verdict is stopped: the workers can finish their step
	signal    syscall.Signal // the first signal that the agent received; 0 if none
	signalAt  time.Time      // when this signal came
	asked     syscall.Signal // the signal because of which the ranks agreed to stop before the agent received one; 0 if none
	killing   bool           // SIGKILL has been sent
	alive     []int          // local ranks still running, ascending
	awaited   int            // in phase running: the number of orders workerReplaced that will come
	exits     []workerExited
}

// The events.
type (
	event interface{ isEvent() }

	roundBegan  struct{}
	stopOrdered struct { // the rendezvous ends the attempt
		gently bool // the workers can finish their step and save a checkpoint
		kills  bool // the workers are killed at once
	}
	jobEnded struct {
		verdict verdict
		err     error // why the job is broken, if the verdict is broken
		kills   bool  // SIGKILL, because workers of other nodes may count those of this node as dead
	}
	startFailed struct { // worker local could not be started; workers of higher local ranks are not started
		local int
		err   error
	}
	reaperLost   struct{ err error } // the parent of the workers is dead, so they die too
	workerExited struct {
		local  int
		status failure.Status
		// asked is the signal because of which the ranks agreed to stop; 0 if they did
		// not agree.
		asked syscall.Signal
		// The core sets late if the workers were told to stop before this exit was observed, and
		// killed if they were sent SIGKILL.
		late, killed bool
	}
	// workerLost says that a worker has failed, and the others go on. The attempt is not ended by it.
	workerLost struct {
		local      int
		isReplaced bool // workerReplaced follows
	}
	// workerReplaced says that a worker is to be started in place of a lost one.
	workerReplaced struct{ local int }
	signalReceived struct {
		signal   syscall.Signal
		at       time.Time
		canLeave bool // the other nodes may go on in the same round: leaveAnswered says whether they do
	}
	leaveAnswered struct {
		isDrained bool // the workers end by themselves, and those of other nodes go on
	}
	timerFired  struct{} // the timer that was armed last has fired
	orphansGone struct{} // no process of the attempt is left
)

func (roundBegan) isEvent()     {}
func (stopOrdered) isEvent()    {}
func (jobEnded) isEvent()       {}
func (startFailed) isEvent()    {}
func (reaperLost) isEvent()     {}
func (workerExited) isEvent()   {}
func (workerLost) isEvent()     {}
func (workerReplaced) isEvent() {}
func (signalReceived) isEvent() {}
func (leaveAnswered) isEvent()  {}
func (timerFired) isEvent()     {}
func (orphansGone) isEvent()    {}

// verb is the kind of an action.
type verb int

const (
	doStart           verb = iota // start the workers
	doReplace                     // start worker locals[0] again
	doSignal                      // send signal, then SIGCONT, to the process groups of locals
	doAbort                       // like doSignal; no worker may take the signal as a request to stop after the step
	doKill                        // send SIGKILL to the process groups of locals
	doArmShutdown                 // fire the timer after the shutdown timeout
	doArmAbandon                  // fire the timer when SIGKILL must have had its effect
	doStopOrphans                 // remove orphans by SIGTERM
	doKillOrphans                 // remove orphans by SIGKILL, also while doStopOrphans is in progress
	doHurry                       // stop waiting for room for the workers' output on the console
	doTellFailure                 // tell the rendezvous that worker locals[0] failed, or without locals, that this node cannot go on
	doTellLeave                   // tell the rendezvous that this node leaves when its workers have ended
	doAskToLeave                  // the same, and ask whether the others go on in this round; leaveAnswered answers
	doReportLeave                 // tell the user that locals leave and those of other nodes go on
	doTellLeaveNow                // tell the rendezvous that this node leaves at once, and why: it has no workers
	doTellEnd                     // tell the rendezvous that the attempt has ended here; with signal, that the ranks agreed to stop
	doReportLoss                  // tell the user that worker locals[0] failed and the others go on
	doReportFailure               // tell the user that worker locals[0] failed and the others are stopped
	doReportSignal                // tell the user that locals are stopped because the agent received signal
	doReportStop                  // tell the user that locals still run after the ranks agreed to stop because a worker received signal
	doReportAbandoned             // tell the user that locals survive SIGKILL and are left behind
	doFinish                      // the job is over, and the verdict is final
)

var verbNames = [...]string{"start", "replace", "signal", "abort", "kill", "arm-shutdown", "arm-abandon", "stop-orphans", "kill-orphans", "hurry",
	"tell-failure", "tell-leave", "ask-to-leave", "report-leave", "tell-leave-now", "tell-end", "report-loss", "report-failure", "report-signal", "report-stop", "report-abandoned", "finish"}

type action struct {
	verb   verb
	signal syscall.Signal // used by doSignal, doAbort, doTellLeave, doAskToLeave, doTellEnd, doReportLeave, doReportSignal and doReportStop
	locals []int          // used by doReplace, doSignal, doAbort, doKill, doTellFailure, doReportLoss, doReportFailure, doReportLeave, doReportSignal, doReportStop and doReportAbandoned
}

func (a action) String() string {
	var b strings.Builder
	b.WriteString(verbNames[a.verb])
	if a.signal != 0 {
		fmt.Fprintf(&b, " %s", failure.SignalName(a.signal))
	}
	if a.locals != nil {
		fmt.Fprintf(&b, " %v", a.locals)
	}
	return b.String()
}

// newCore returns a core in phase waiting.
func newCore(workers int, alone bool) *core { return &core{workers: workers, alone: alone} }

// Step applies an event and returns the actions to perform. It returns none for an event that
// comes too late to matter.
func (c *core) Step(ev event) []action {
	switch ev := ev.(type) {
	case roundBegan:
		if c.phase != waiting {
			return nil
		}
		if c.err != nil {
			c.verdict, c.left, c.exits = broken, true, nil
			return []action{{verb: doTellLeaveNow}}
		}
		c.phase, c.attempted, c.verdict, c.gentle, c.killing, c.asked, c.exits, c.awaited = running, true, succeeded, false, false, 0, nil, 0
		for local := range c.workers {
			c.alive = append(c.alive, local)
		}
		return []action{{verb: doStart}}

	case stopOrdered:
		return c.stopOrdered(ev.gently, ev.kills)

	case jobEnded:
		if c.phase == waiting {
			return c.end(ev)
		}
		c.ending = &ev
		return c.stopOrdered(false, ev.kills)

	case startFailed:
		c.alive = slices.DeleteFunc(c.alive, func(local int) bool { return local >= ev.local })
		switch c.phase {
		case running:
			c.verdict, c.err = broken, ev.err
			return append([]action{{verb: doTellFailure}}, c.stop(doAbort, syscall.SIGTERM)...)
		case stopping:
			return c.removeOrphansWhenAllEnded()
		}
		return nil // the core has already abandoned the workers

	case reaperLost:
		return c.reaperLost(ev.err)

	case workerExited:
		return c.exited(ev)

	case workerLost:
		i := slices.Index(c.alive, ev.local)
		if i < 0 {
			return nil
		}
		c.alive = slices.Delete(c.alive, i, i+1)
		report := []action{{verb: doReportLoss, locals: []int{ev.local}}}
		if ev.isReplaced && c.phase == running {
			c.awaited++
			return report
		}
		return append(report, c.removeOrphansWhenAllEnded()...)

	case workerReplaced:
		i, isAlive := slices.BinarySearch(c.alive, ev.local)
		if c.phase != running || isAlive {
			return nil
		}
		c.awaited--
		c.alive = slices.Insert(c.alive, i, ev.local)
		return []action{{verb: doReplace, locals: []int{ev.local}}}

	case signalReceived:
		return c.signalled(ev)

	case leaveAnswered:
		switch {
		case c.phase != stopping || !c.asking || c.killing || len(c.alive) == 0:
			return nil
		case ev.isDrained:
			return []action{c.toAlive(doReportLeave, c.signal)}
		}
		c.asking = false
		return []action{{verb: doArmShutdown}, c.toAlive(doSignal, c.signal), c.toAlive(doReportSignal, c.signal)}

	case timerFired:
		if c.phase == stopping && c.killing {
			// A process that survives SIGKILL is stuck in the kernel. If the core waited
			// longer, the agent would hang as well.
			act := action{verb: doReportAbandoned, locals: c.alive}
			c.alive = nil
			return append([]action{act}, c.removeOrphansWhenAllEnded()...)
		}
		return c.kill()

	case orphansGone:
		if c.phase != removingOrphans {
			return nil
		}
		c.phase = waiting
		if c.ending != nil {
			return c.end(*c.ending)
		}
		if c.left {
			return nil
		}
		if c.verdict == signalled && !c.agreed() {
			return c.finish() // the rendezvous finds that this node left
		}
		return []action{c.tellEnd()}
	}
	panic(fmt.Sprintf("launcher: unknown event %T", ev))
}

// stopOrdered ends the attempt because of another node.
func (c *core) stopOrdered(gently, kills bool) []action {
	switch {
	case kills && (c.phase == running || c.phase == stopping):
		if c.phase == running {
			c.verdict = stopped
		}
		if c.phase = stopping; len(c.alive) == 0 {
			return c.removeOrphansWhenAllEnded()
		}
		return c.kill()
	case c.phase == running:
		c.verdict, c.gentle = stopped, gently
		if gently {
			return c.stop(doSignal, syscall.SIGTERM)
		}
		return c.stop(doAbort, syscall.SIGTERM)
	case c.phase == stopping && (c.gentle || c.asking) && !gently && len(c.alive) > 0:
		c.gentle, c.asking = false, false
		return []action{c.toAlive(doAbort, syscall.SIGTERM)}
	case c.phase == waiting && c.attempted && c.verdict == succeeded: // the rendezvous may have known of the success before it ordered the stop
		return []action{c.tellEnd()}
	}
	return nil
}

// end ends the job. An error of this node takes precedence over what happened to the others.
func (c *core) end(ev jobEnded) []action {
	if c.verdict != broken && !c.left {
		c.verdict, c.err = ev.verdict, cmp.Or(ev.err, c.err)
	}
	return c.finish()
}

// agreed reports whether all workers ended because the ranks agreed to stop.
func (c *core) agreed() bool {
	return !slices.ContainsFunc(c.exits, func(e workerExited) bool { return e.asked == 0 })
}

func (c *core) tellEnd() action {
	if c.verdict == signalled {
		return action{verb: doTellEnd, signal: cmp.Or(c.asked, c.signal)}
	}
	return action{verb: doTellEnd}
}

// canLose reports whether the attempt may go on without a worker that ended in this way. It may not if the worker
// ended because it was told to, or if the workers are being stopped because of a failure.
func (c *core) canLose(ev workerExited) bool {
	switch {
	case ev.asked != 0 || ev.status.IsSuccess():
		return false
	case c.phase == stopping:
		return c.verdict == signalled && !c.killing && (c.signal == 0 || !ev.status.IsEffectOf(c.signal, false))
	}
	return c.phase == running
}

func (c *core) exited(ev workerExited) []action {
	i := slices.Index(c.alive, ev.local)
	if i < 0 {
		return nil // the core has already abandoned this worker
	}
	c.alive = slices.Delete(c.alive, i, i+1)
	ev.late, ev.killed = c.phase == stopping, c.killing
	c.exits = append(c.exits, ev)
	if c.phase == running && ev.asked != 0 {
		// The other ranks stop by themselves. A rank that has received a signal already
		// would take a second one as an abort.
		c.verdict, c.asked, c.phase = signalled, ev.asked, stopping
		return append([]action{{verb: doArmShutdown}, c.toAlive(doReportStop, ev.asked)}, c.removeOrphansWhenAllEnded()...)
	}
	if c.asked != 0 && c.signal == 0 && c.verdict == signalled && !c.killing && ev.asked == 0 && !ev.status.IsSuccess() {
		// The worker failed at its work between the ranks' agreement and the stop.
		c.verdict = failed
		return append([]action{{verb: doTellFailure, locals: []int{ev.local}}, {verb: doReportFailure, locals: []int{ev.local}}}, c.removeOrphansWhenAllEnded()...)
	}
	if c.phase == stopping && c.gentle && ev.asked == 0 && !ev.status.IsEffectOf(syscall.SIGTERM, c.killing) {
		return append([]action{{verb: doTellFailure, locals: []int{ev.local}}}, c.removeOrphansWhenAllEnded()...)
	}
	if c.phase == running && !ev.status.IsSuccess() {
		c.verdict = failed
		// The report comes after the stop, because a console that blocks must not keep the
		// other workers running.
		failed := []int{ev.local}
		return append(c.stop(doAbort, syscall.SIGTERM), action{verb: doTellFailure, locals: failed}, action{verb: doReportFailure, locals: failed})
	}
	return c.removeOrphansWhenAllEnded()
}

// reaperLost handles the death of the workers' parent, after which this node cannot begin another attempt.
// Workers that were running are dead too, with unknown exit status. So the node leaves the job at once; a job
// of one node ends. An earlier verdict is kept.
func (c *core) reaperLost(err error) []action {
	areUnseen := len(c.alive) > 0 && c.verdict != failed
	c.err, c.alive, c.killing = err, nil, true
	switch {
	case c.phase == waiting && c.attempted && !c.alone:
		return nil // the rendezvous knows how the attempt ended
	case c.phase == waiting:
		c.verdict = broken
		return append([]action{{verb: doTellLeaveNow}}, c.finish()...)
	case c.phase == running, c.verdict == stopped && (c.alone || areUnseen):
		c.verdict = broken
	}
	c.phase = removingOrphans
	kill := action{verb: doKillOrphans}
	switch {
	case c.alone && c.verdict != succeeded:
		return []action{{verb: doTellFailure}, kill}
	case areUnseen:
		c.left = true
		return []action{{verb: doTellLeaveNow}, kill}
	}
	return []action{kill}
}

// sameRequest is the time after the first signal in which the same signal is a part of the same
// request: timeout(1) signals its child, and then the child's process group.
const sameRequest = time.Second

// signalled forwards the first signal to the workers. A second SIGINT or SIGTERM kills
// the workers. A signal that arrives after all processes have been sent SIGKILL ends the wait
// until the console has taken the output.
func (c *core) signalled(ev signalReceived) []action {
	sig, first := ev.signal, c.signal == 0
	if first {
		c.signal, c.signalAt = sig, ev.at
	} else if sig == c.signal && ev.at.Sub(c.signalAt) < sameRequest {
		return nil
	}
	switch c.phase {
	case waiting:
		c.verdict = signalled
		return c.finish()
	case running:
		c.verdict = signalled
		if ev.canLeave && len(c.alive) > 0 && (sig == syscall.SIGINT || sig == syscall.SIGTERM) {
			c.phase = stopping
			c.asking = true
			return []action{{verb: doAskToLeave, signal: sig}, {verb: doArmShutdown}}
		}
		report := c.toAlive(doReportSignal, sig)
		return append(append([]action{{verb: doTellLeave, signal: sig}}, c.stop(doSignal, sig)...), report)
	case stopping, removingOrphans:
		var acts []action
		if first {
			acts = append(acts, action{verb: doTellLeave, signal: sig})
		}
		switch ends := sig == syscall.SIGINT || sig == syscall.SIGTERM; {
		case ends && c.phase == removingOrphans && c.killing:
			return append(acts, action{verb: doHurry})
		case ends && !first:
			return c.kill()
		case c.asked != 0:
			return append(acts, c.toAlive(doReportStop, sig))
		}
		if len(c.alive) > 0 {
			acts = append(acts, c.toAlive(doSignal, sig))
			if first {
				acts = append(acts, c.toAlive(doReportSignal, sig))
			}
		}
		return acts
	}
	return nil
}

// stop begins to end the attempt. v is doSignal, or doAbort if the ranks can no longer
// agree on a common step to stop after.
func (c *core) stop(v verb, sig syscall.Signal) []action {
	c.phase = stopping
	acts := []action{{verb: doArmShutdown}}
	if len(c.alive) > 0 {
		acts = append(acts, c.toAlive(v, sig))
	}
	return append(acts, c.removeOrphansWhenAllEnded()...)
}

// kill sends SIGKILL to the remaining processes of the attempt. A second call has no
// effect.
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

// removeOrphansWhenAllEnded begins to remove orphans if no worker runs. After success or a kill, orphans are
// killed at once. During a stop they get the rest of the shutdown timeout, because a worker may be a shell
// whose child is saving a checkpoint.
func (c *core) removeOrphansWhenAllEnded() []action {
	if len(c.alive) > 0 || c.phase == running && c.awaited > 0 {
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
