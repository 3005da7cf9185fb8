package launcher

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/goddp/goddp/launcher/internal/failure"
	"github.com/goddp/goddp/launcher/internal/rendezvous"
)

// worker returns the worker with a number in the round of the number epoch. It returns nil if the attempt has no such
// worker, or another one has replaced it.
func (a *agent) worker(epoch, number int) *process {
	if a.attempt == nil || epoch != a.round.Number {
		return nil
	}
	if i := slices.IndexFunc(a.procs, func(p *process) bool { return p.number == number }); i >= 0 {
		return a.procs[i]
	}
	return nil
}

// judged handles the answer of the host to the exit of a worker.
func (a *agent) judged(v *rendezvous.Verdict) event {
	p := a.worker(v.Epoch, v.Worker)
	if p == nil || !p.isUndecided {
		return nil
	}
	p.isUndecided = false
	p.end.Rank = p.Rank // the order Members of the epoch in which it ended may have come meanwhile
	if v.GivenUp {
		a.console.logf("local rank %d gets no other worker: %d in a row have ended within %v of their start",
			p.LocalRank, rendezvous.MaxTries, rendezvous.SteadyTime)
	}
	if v.GoesOn {
		return workerLost{p.LocalRank, v.IsReplaced}
	}
	if a.core.phase == running {
		a.logWhyNot(v)
	}
	return p.exit()
}

// logWhyNot says why the others do not go on without a worker that has ended.
func (a *agent) logWhyNot(v *rendezvous.Verdict) {
	left, then := len(a.core.alive)-1, "ending" // left is the number on this node
	if a.round.Restarts < a.cfg.MaxRestarts {
		then = "restarting"
	}
	switch {
	case !v.Declared:
		a.console.logf("the program has not declared that it can go on without a worker (elastic.Run): %s", then)
	case a.round.Nodes > 1:
		a.console.logf("too few workers are left (--min-workers %d), or too many were lost without a step between: %s", a.cfg.MinWorkers, then)
	case left == 0:
	case left < a.cfg.MinWorkers:
		a.console.logf("%s left, want at least %d (--min-workers): %s", count(left), a.cfg.MinWorkers, then)
	default:
		a.console.logf("too many workers were lost without a step between: %s", then)
	}
}

// maxLosses is the number of lost workers that a report names.
const maxLosses = 10

// lose says that a worker was lost and the others go on, and releases what belongs to the worker.
func (a *agent) lose(p *process) {
	a.change(p, p.end.Exited)
	f, err := failureOf(p)
	if err != nil {
		a.console.logf("error file of worker %d: %v", p.number, err)
	}
	why := reason(&f)
	if why != "" {
		why = ": " + why
	}
	others := "the others go on"
	switch n := len(a.core.alive); {
	case a.round.Nodes > 1: // this node does not know their number
	case n == 1:
		others = "1 worker goes on"
	default:
		others = count(n) + " go on"
	}
	a.console.logf("%s %s%s; %s", p.name(), p.end.Status, why, others)
	f.Time = f.Exited
	a.losses = append(a.losses[max(0, len(a.losses)+1-maxLosses):], f)
	p.closeRecord()
	p.endSoon()
	a.retiring.Go(func() {
		p.copying.Wait()
		for _, st := range p.streams {
			st.showStack()
		}
	})
	if a.next != nil {
		a.regrouped(a.next)
	}
}

// change notes when the first of the workers that train together was lost.
func (a *agent) change(p *process, at time.Time) {
	if a.changed.IsZero() && slices.Contains(a.members, p.number) {
		a.changed = at
	}
}

// name returns "worker 2 (rank 2, pid 4711)".
func (p *process) name() string {
	return fmt.Sprintf("worker %d (rank %d, pid %d)", p.number, p.Rank, p.PID)
}

// replacing handles the order to start a worker in place of a lost one.
func (a *agent) replacing(o *rendezvous.StartOrder) event {
	if a.attempt == nil || o.Epoch != a.round.Number {
		return nil
	}
	a.replacement = o
	return workerReplaced{o.Rank - a.round.FirstRank}
}

// replace starts a worker in place of a lost one.
func (a *agent) replace(o *rendezvous.StartOrder) {
	local := o.Rank - a.round.FirstRank
	p, err := a.spawner.spawn(local, o)
	a.procs[local] = p
	if err != nil {
		if ev := a.notReplaced(p, err); ev != nil {
			a.perform(a.core.Step(ev))
		}
	}
}

// notReplaced handles the error of the start of a worker that replaces another. Such a worker counts as lost.
func (a *agent) notReplaced(p *process, err error) event {
	a.console.logf("worker %d: %v", p.number, err)
	return a.exited(p, &failure.Failure{Status: failure.Status{Code: ExitCode(err)}, Exited: time.Now()})
}

// expel kills a worker by order of the host.
func (a *agent) expel(o *rendezvous.KillOrder) {
	p := a.worker(o.Epoch, o.Worker)
	if p == nil || p.end != nil || exiting(p.PID) { // the coordinator may notice the end of a connection before the reaper reports the exit
		return
	}
	a.change(p, time.Now())
	a.console.logf("%s is killed: %s", p.name(), o.Why)
	p.expelled = o.Why
	a.signalWorkers([]int{p.LocalRank}, syscall.SIGKILL)
}

// regrouped notes the ranks of the workers that train together from now on, and says what has changed.
func (a *agent) regrouped(m *rendezvous.Members) {
	if a.attempt == nil || m.Epoch != a.round.Number {
		return
	}
	isPending := func(p *process) bool { return p.isUndecided && !slices.Contains(m.Workers, p.number) }
	if a.next = m; slices.ContainsFunc(a.procs, isPending) {
		return // lose calls regrouped again
	}
	a.next = nil
	var text strings.Builder
	for rank, number := range m.Workers {
		if p := a.worker(m.Epoch, number); p != nil {
			p.Rank = rank
		}
		if isKnown := a.members != nil || a.worker(m.Epoch, number) != nil; isKnown && !slices.Contains(a.members, number) {
			fmt.Fprintf(&text, "worker %d joined as rank %d; ", number, rank)
		}
	}
	fmt.Fprintf(&text, "%s at step %d", count(len(m.Workers)), m.Steps)
	if !a.changed.IsZero() {
		fmt.Fprintf(&text, " after %.2f s", time.Since(a.changed).Seconds())
	}
	if m.Number > 1 {
		a.console.logf("epoch %d: %s", m.Number, &text)
	}
	a.members, a.changed = m.Workers, time.Time{}
	a.showMembers(len(m.Workers))
}

// canLeave reports whether the other nodes may go on in this round if this one leaves.
func (a *agent) canLeave() bool { return a.attempt != nil && a.members != nil && a.round.Nodes > 1 }

// leaveAnswered handles the host's answer to the announcement that this node leaves.
func (a *agent) leaveAnswered(l *rendezvous.LeaveAnswer) event {
	if a.attempt == nil || l.Epoch != a.round.Number {
		return nil
	}
	return leaveAnswered{l.IsDrained}
}

// count returns "1 worker", "2 workers" and so on.
func count(n int) string {
	if n == 1 {
		return "1 worker"
	}
	return fmt.Sprintf("%d workers", n)
}
