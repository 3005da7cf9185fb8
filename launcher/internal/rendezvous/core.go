package rendezvous

import (
	"fmt"
	"slices"
	"time"

	"github.com/goddp/goddp/internal/rootcause"
	"github.com/goddp/goddp/launcher/internal/failure"
)

// phase is what the agents of a job are doing together.
type phase int

const (
	gathering phase = iota // agents join the first round of this host
	saving                 // enough agents have joined, and the number of the round is being saved
	running                // a round has begun, and its workers run
	stopping               // the participants stop their workers, before the next round or the end
	resigned               // this host has left the job, and another agent becomes the host
	ended
)

// survival says what the current round does now if it loses workers: see Survival.
type survival int

const (
	fails    survival = iota // it ends
	shrinks                  // it goes on
	replaces                 // it goes on, and takes in other workers in place of the lost ones
)

// agentID identifies one connection of an agent. Two connections never have the same.
type agentID int

// agent is what the core knows of a connected agent.
type agent struct {
	id        agentID
	node      NodeInfo
	local     bool            // the agent is in the host's process, so the host leaves the job with the agent
	place     int             // the node's rank in the current round, or -1 if the agent waits
	first     int             // the rank of its first worker in the current round
	done      bool            // its workers have ended as the phase demands: see core.undone
	leaving   string          // why it leaves the job, "" if it stays
	leavingAt time.Time       // when the agent said that it leaves
	loss      failure.Failure // how a round that goes on has lost it
}

// NodeInfo is what an agent says of its node when it joins.
type NodeInfo struct {
	Host    string // for messages
	Addr    string // the address at which other nodes reach this one; "": the address that the host of the rendezvous sees
	Workers int    // number of workers
	Rank    int    // the node's rank if the user numbers the nodes
}

// Limits are the settings of a job. They are equal on all nodes.
type Limits struct {
	MinNodes, MaxNodes int
	MaxRestarts        int  // the number of failed rounds that are followed by another
	Static             bool // the user numbers the nodes
	Survival           Survival
	Command            string // the program, without its folder, and its arguments
}

// refusal returns why a node with the settings l cannot take part in the job of a host with the settings
// host. It returns "" if the node can take part.
func (l Limits) refusal(host Limits) string {
	switch {
	case l.Command != host.Command:
		return fmt.Sprintf("it was started with the program and arguments [%s], the host of the rendezvous with [%s]; "+
			"if these are two jobs, give each its own --rdzv-id, and without etcd its own --rdzv-endpoint", l.Command, host.Command)
	case l != host:
		return fmt.Sprintf("it was started with %v, the host of the rendezvous with %v", l, host)
	}
	return ""
}

// String returns the settings as the flags that set them, without the command.
func (l Limits) String() string {
	more := ""
	if l.Survival.isOn() {
		more = " " + l.Survival.String()
	}
	if l.Static {
		more += " --rdzv-backend=static"
	}
	return fmt.Sprintf("--nnodes=%d:%d --max-restarts=%d%s", l.MinNodes, l.MaxNodes, l.MaxRestarts, more)
}

// core decides which agents take part in which round, when a round ends, and how the job ends. It is a
// pure state machine: Step takes one event and returns the actions. The server performs the actions, owns
// the connections and the clock, and reports what happens as further events. Except for an event that
// starts or stops a round, the time for an event does not depend on the number of agents.
//
// Invariants: every agent is in agents, and either in waiting or, at its place, in round. No action
// concerns an agent that was lost.
type core struct {
	Limits
	phase    phase
	epoch    int // number of the current round; in phases gathering and saving, of the next one
	restarts int // number of failed rounds that were followed by another

	agents  map[agentID]*agent
	waiting []*agent       // in the order in which they joined
	ranks   map[int]*agent // by the user's node rank; static jobs only
	round   []*agent       // the participants by node rank; nil for a participant that was lost
	dying   []*agent       // participants that the round has lost and goes on without, and whose workers may not be dead yet
	free    []*agent       // participants that the round has lost and goes on without, and whose places nobody has taken

	// undone is the number of participants whose workers have not succeeded (in phase running, where it includes the
	// agents in dying), or have not ended (in phase stopping).
	undone   int
	expected int  // number of agents that will join the first round of this host; 0 if unknown
	durable  bool // a round begins when its number has been saved
	lastCall bool // whether the timer of the last call runs
	agreed   bool // the ranks of the current round have agreed to stop, because of a signal
	gentle   bool // in phase stopping: the workers can finish their step
	failures []failure.Failure
	left     *agent // the agent in the host's process, if it has left; else nil
}

// Result is how a job ended. It is the same on all nodes.
type Result struct {
	Restarts int
	// Agreed says that all ranks agreed to stop because of a signal.
	Agreed bool
	// Failures are the failures of the last round, the root cause first. It is empty if the workers succeeded.
	Failures []failure.Failure
	// Reason says why no round follows, if the number of restarts is not the reason.
	Reason string
}

// newCore returns the core of a job whose next round has the number epoch. restarts is the number of rounds
// that have failed.
func newCore(l Limits, epoch, restarts int) *core {
	return &core{Limits: l, epoch: epoch, restarts: restarts, agents: map[agentID]*agent{}, ranks: map[int]*agent{}}
}

// Step applies an event and returns the actions that it leads to, in order. An event of a round that is
// over, or of an agent that is gone, leads to none.
func (c *core) Step(ev event) []action {
	switch ev := ev.(type) {
	case agentJoined:
		return c.join(ev)
	case agentLost:
		return c.lose(c.agents[ev.id], nodeFailure(failure.Lost, "lost: "+ev.how, ev.at), ev.now, false)
	case workersDied:
		return c.workersDied(ev)
	case agentLeaves:
		a := c.agents[ev.id]
		if a == nil || c.phase >= resigned {
			return nil
		}
		a.leaving, a.leavingAt = ev.why, ev.at
		if ev.now && a.local {
			return c.leave(a, true)
		}
		if ev.now {
			return append([]action{release{a.id}}, c.lose(a, failure.Failure{}, ev.survival, true)...)
		}
		if a.place < 0 {
			return c.lose(a, failure.Failure{}, ev.survival, true)
		}
		return nil
	case workerFailed:
		if a := c.participant(ev.id, ev.epoch); a != nil {
			return c.fail(a, ev.failure)
		}
		return nil
	case workersEnded:
		a := c.participant(ev.id, ev.epoch)
		if a == nil || a.done {
			return nil
		}
		a.done = true
		c.undone--
		c.agreed = c.agreed || ev.agreed
		if c.phase == stopping && !c.gentle {
			c.replaceFailures(a, ev.failures)
		}
		return c.endRound()
	case saved:
		if c.phase != saving {
			return nil
		}
		switch {
		case len(c.agents) >= c.MinNodes:
			return c.beginNow()
		case c.round == nil:
			c.phase = gathering // agents were lost meanwhile, and others can still come
			return nil
		}
		return c.end(c.tooFew(len(c.agents)))
	case joinTimeout:
		if c.phase != gathering {
			return nil
		}
		if len(c.agents) >= c.MinNodes {
			return c.begin() // although the last call is not over
		}
		seconds := ev.after.Seconds()
		return c.end(Result{Reason: fmt.Sprintf("too few nodes joined: %d of at least %d within %g s (--rdzv-conf join_timeout=%g)", len(c.agents), c.MinNodes, seconds, seconds)})
	case hostFailed:
		return c.end(Result{Failures: c.sortedFailures(), Reason: ev.err.Error()})
	case hostDeposed:
		if c.phase >= resigned {
			return nil
		}
		c.phase = resigned
		return append(c.cancelLastCall(), resign{"it is not elected any more"})
	case lastCallElapsed:
		if !c.lastCall {
			return nil
		}
		c.lastCall = false
		if c.phase == gathering {
			return c.begin()
		}
		return c.stopFor(fmt.Sprintf("%s joined", count(len(c.waiting), "node")), nil)
	}
	panic(fmt.Sprintf("rendezvous: unknown event %T", ev))
}

// join takes an agent in, or refuses it.
func (c *core) join(ev agentJoined) []action {
	if c.phase == ended {
		return []action{refuse{ev.id, "the job has ended"}}
	}
	a := &agent{id: ev.id, node: ev.node, local: ev.local, place: -1}
	if c.Static {
		rank := ev.node.Rank
		if rank < 0 || rank >= c.MaxNodes {
			return []action{refuse{ev.id, fmt.Sprintf("node rank %d is out of range for a job of %s", rank, count(c.MaxNodes, "node"))}}
		}
		if other := c.ranks[rank]; other != nil {
			return []action{refuse{ev.id, fmt.Sprintf("node rank %d is taken, by %s", rank, other.node.Host)}}
		}
		c.ranks[rank] = a
	}
	c.agents[a.id] = a
	if acts := c.takePlace(a, ev.now); acts != nil {
		return acts
	}
	c.waiting = append(c.waiting, a)
	switch {
	case c.phase == saving:
		return nil
	case c.phase == stopping:
		return []action{hold{a.id, fmt.Sprintf("round %d is being stopped", c.epoch)}}
	case c.phase == running && c.live() >= c.MaxNodes:
		return []action{c.reserve(a)}
	case c.phase == running && len(c.free) > 0:
		return []action{hold{a.id, fmt.Sprintf("in reserve: round %d goes on without the nodes that it has lost", c.epoch)}}
	case c.phase == running:
		acts := []action{hold{a.id, fmt.Sprintf("round %d runs; the next one begins soon", c.epoch)}}
		if len(c.agents) >= c.MaxNodes {
			return append(acts, c.stopFor(fmt.Sprintf("%s joined", count(len(c.waiting), "node")), nil)...)
		}
		return append(acts, c.startLastCall()...)
	case len(c.agents) >= c.MaxNodes, c.expected > 0 && len(c.agents) >= max(c.expected, c.MinNodes):
		return c.begin()
	case len(c.agents) >= c.MinNodes:
		return c.startLastCall()
	}
	return nil
}

func (c *core) reserve(a *agent) hold {
	return hold{a.id, fmt.Sprintf("in reserve: round %d has %s, the maximum", c.epoch, count(c.MaxNodes, "node"))}
}

// lose removes an agent that is lost or leaves. f is the failure of a participant that does not leave. now says what the
// round does without its workers, and areDead that they are dead for certain.
func (c *core) lose(a *agent, f failure.Failure, now survival, areDead bool) []action {
	if a == nil || c.phase >= resigned {
		return nil
	}
	if a.local && a.leaving != "" {
		return c.leave(a, false) // the process ends
	}
	delete(c.agents, a.id)
	delete(c.ranks, a.node.Rank)
	if a.place < 0 {
		c.waiting = slices.DeleteFunc(c.waiting, func(other *agent) bool { return other == a })
		if c.phase == gathering && len(c.agents) < c.MinNodes || c.phase == running && len(c.waiting) == 0 {
			return c.cancelLastCall()
		}
		return nil
	}
	c.round[a.place] = nil
	if a.leaving != "" {
		f = a.left()
	}
	if c.phase == saving {
		c.note(a, f)
		return nil
	}
	if a.done && (c.phase == running || a.leaving != "") {
		return c.endRound() // its part of the round is complete
	}
	if c.phase == running && now != fails {
		a.loss = f
		c.dying, c.free = append(c.dying, a), append(c.free, a)
		return append([]action{awaitDeaths{a, areDead}}, c.takePlaces(now)...)
	}
	if !a.done {
		c.undone--
	}
	return c.fail(a, f)
}

// takePlaces lets agents in reserve take the places of lost ones.
func (c *core) takePlaces(now survival) (acts []action) {
	for _, a := range slices.Clone(c.waiting) {
		if taken := c.takePlace(a, now); taken != nil {
			c.waiting = slices.DeleteFunc(c.waiting, func(other *agent) bool { return other == a })
			acts = append(acts, taken...)
		}
	}
	return acts
}

// takePlace lets an agent take the place of a lost one, if there is one for its workers.
func (c *core) takePlace(a *agent, now survival) []action {
	i := slices.IndexFunc(c.free, func(lost *agent) bool {
		return a.node.Workers <= lost.node.Workers && (!c.Static || a.node.Rank == lost.node.Rank)
	})
	if i < 0 || c.phase != running || now != replaces {
		return nil
	}
	a.place, a.first = c.free[i].place, c.free[i].first
	c.free = slices.Delete(c.free, i, i+1)
	c.round[a.place] = a
	c.undone++
	return []action{admit{a}}
}

// workersDied handles the certain death of the workers of a lost agent.
func (c *core) workersDied(ev workersDied) []action {
	i := slices.IndexFunc(c.dying, func(a *agent) bool { return a.id == ev.id })
	if i < 0 || c.phase != running {
		return nil
	}
	a := c.dying[i]
	c.dying = slices.Delete(c.dying, i, i+1)
	if !ev.goesOn {
		return c.fail(a, a.loss)
	}
	c.undone--
	return c.endRound()
}

// nodeFailure returns the failure of a node, which note completes.
func nodeFailure(kind failure.Kind, why string, at time.Time) failure.Failure {
	return failure.Failure{Kind: kind, Why: why, Time: at, Exited: at, Seen: rootcause.Crashed}
}

// left returns the failure that the agent leaves.
func (a *agent) left() failure.Failure {
	return nodeFailure(failure.Left, "left: "+a.leaving, a.leavingAt)
}

// note adds a failure of a participant to the round's failures.
func (c *core) note(a *agent, f failure.Failure) failure.Failure {
	f.Node, f.Host = a.place, a.node.Host
	if f.Kind != failure.Worker {
		f.Rank, f.Ranks = a.first, a.node.Workers
	}
	c.failures = append(c.failures, f)
	return f
}

// replaceFailures replaces the known failures of a participant's workers by the failures that the participant
// reports now.
func (c *core) replaceFailures(a *agent, failures []failure.Failure) {
	if len(failures) == 0 {
		return
	}
	c.failures = slices.DeleteFunc(c.failures, func(f failure.Failure) bool { return f.Node == a.place })
	for _, f := range failures {
		c.note(a, f)
	}
}

// fail stops the round because of a failure of a participant.
func (c *core) fail(a *agent, f failure.Failure) []action {
	f = c.note(a, f)
	if c.phase == stopping && !c.gentle {
		return c.endRound()
	}
	brief := f.Brief()
	return c.stopFor(fmt.Sprintf("node %d (%s) %s", f.Node, f.Host, &f), &brief)
}

// stopFor has all nodes stop the current round. Without a failure the stop is gentle: the workers may finish
// their step and save. If a failure follows during a gentle stop, the stop is no longer gentle.
func (c *core) stopFor(reason string, failure *failure.Failure) []action {
	acts, gently := c.cancelLastCall(), failure == nil
	if c.phase == running {
		c.undone = 0
		for _, a := range c.round {
			if a != nil {
				a.done = false
				c.undone++
			}
		}
	}
	c.phase, c.gentle = stopping, gently
	if c.undone > 0 {
		acts = append(acts, stop{c.epoch, gently, reason, failure})
	}
	return append(acts, c.endRound()...)
}

// begin starts a round, or first saves its number.
func (c *core) begin() []action {
	if !c.durable {
		return c.beginNow()
	}
	c.phase = saving
	return append(c.cancelLastCall(), save{c.epoch, c.restarts})
}

// beginNow starts a round with as many agents as it can have. The participants of the previous round come
// first, in their order. The other agents follow in the order in which they joined.
func (c *core) beginNow() []action {
	acts := c.cancelLastCall()
	failures := c.sortedFailures()
	var candidates []*agent
	for _, a := range append(c.round, c.waiting...) {
		if a != nil {
			candidates = append(candidates, a)
		}
	}
	if c.Static {
		slices.SortFunc(candidates, func(a, b *agent) int { return a.node.Rank - b.node.Rank })
	}
	n := min(len(candidates), c.MaxNodes)
	c.round, c.waiting = candidates[:n:n], candidates[n:]
	c.phase, c.undone, c.agreed, c.failures, c.expected, c.dying, c.free = running, n, false, nil, 0, nil, nil
	rank := 0
	for place, a := range c.round {
		a.place, a.first, a.done = place, rank, false
		rank += a.node.Workers
	}
	for _, a := range c.waiting {
		acts = append(acts, c.reserve(a))
	}
	return append(acts, begin{c.epoch, c.round, failures})
}

// endRound begins the next round, or ends the job, if the workers of all participants have ended as the
// phase demands.
func (c *core) endRound() []action {
	if c.undone > 0 {
		return nil
	}
	if c.left != nil {
		return c.abdicate()
	}
	staying := c.staying()
	switch {
	case c.phase == running && (!c.agreed || staying < c.MinNodes || staying == len(c.agents)):
		return c.end(Result{Agreed: c.agreed})
	case c.phase == running: // the ranks stopped because some nodes leave, and the others go on
	case c.failed():
		if c.restarts >= c.MaxRestarts || slices.ContainsFunc(c.failures, func(f failure.Failure) bool { return f.Kind == failure.Unable }) {
			return c.end(Result{Failures: c.sortedFailures()})
		}
		c.restarts++
	}
	if staying < c.MinNodes {
		return c.end(c.tooFew(staying))
	}
	var acts []action
	var host *agent
	for i, a := range c.round {
		if a != nil && a.leaving != "" {
			if a.local {
				host = a
				continue
			}
			if c.phase == running { // nothing else tells the others why the next round begins
				c.note(a, a.left())
			}
			acts = append(acts, release{a.id})
			delete(c.agents, a.id)
			delete(c.ranks, a.node.Rank)
			c.round[i] = nil
		}
	}
	if host != nil {
		return append(acts, c.leave(host, false)...)
	}
	c.epoch++
	return append(acts, c.begin()...)
}

// leave removes the agent in the host's process. The agent leaves the job, and the host leaves with it. canHost
// says that the process goes on for as long as it is needed. In that case, if no other agent can host, the other
// agents stop their workers before the job ends, so that all their failures are known.
func (c *core) leave(self *agent, canHost bool) []action {
	delete(c.agents, self.id)
	delete(c.ranks, self.node.Rank)
	c.waiting = slices.DeleteFunc(c.waiting, func(other *agent) bool { return other == self })
	c.left = self
	if self.place < 0 {
		return c.abdicate()
	}
	c.round[self.place] = nil
	if canHost && !c.isReplaceable() && (c.phase == running || c.phase == stopping) {
		if !self.done {
			c.undone--
		}
		return c.fail(self, self.left())
	}
	c.note(self, self.left())
	return c.abdicate()
}

// abdicate ends the part of this host, whose own agent has left the job. Another agent becomes the host, or the
// job ends.
func (c *core) abdicate() []action {
	self := c.left
	acts := append(c.cancelLastCall(), release{self.id})
	if c.isReplaceable() {
		c.phase = resigned
		return append(acts, resign{fmt.Sprintf("%s left: %s", self.node.Host, self.leaving)})
	}
	r := c.tooFew(c.staying())
	if !c.durable {
		r.Reason = fmt.Sprintf("the host of the rendezvous (%s) left: %s; only --rdzv-backend=etcd can replace it", self.node.Host, self.leaving)
	}
	return append(acts, c.end(r)...)
}

// isReplaceable reports whether the job can go on with another host.
func (c *core) isReplaceable() bool {
	return c.durable && (c.round == nil || c.staying() >= c.MinNodes)
}

// staying returns the number of agents that do not leave the job.
func (c *core) staying() int {
	n := len(c.waiting)
	for _, a := range c.round {
		if a != nil && a.leaving == "" {
			n++
		}
	}
	return n
}

// failed reports whether the round that stops counts as a restart: a worker failed, and no node was lost. If a
// node was lost, the loss is the cause.
func (c *core) failed() bool {
	return !c.gentle && !slices.ContainsFunc(c.failures, func(f failure.Failure) bool { return f.Kind == failure.Lost || f.Kind == failure.Left })
}

// tooFew returns the result of a job that ends because too few nodes are left: n.
func (c *core) tooFew(n int) Result {
	return Result{Failures: c.sortedFailures(), Reason: fmt.Sprintf("too few nodes are left: %d of at least %d", n, c.MinNodes)}
}

func (c *core) end(r Result) []action {
	acts := c.cancelLastCall()
	c.phase, r.Restarts = ended, c.restarts
	return append(acts, end{r})
}

func (c *core) startLastCall() []action {
	if c.lastCall {
		return nil
	}
	c.lastCall = true
	return []action{startLastCall{}}
}

func (c *core) cancelLastCall() []action {
	if !c.lastCall {
		return nil
	}
	c.lastCall = false
	return []action{cancelLastCall{}}
}

// sortedFailures returns the failures of the round, the root cause first.
func (c *core) sortedFailures() []failure.Failure {
	failures := slices.Clone(c.failures)
	failure.Sort(failures)
	return failures
}

// participant returns the agent with an id if it takes part in the round of number epoch, else nil.
func (c *core) participant(id agentID, epoch int) *agent {
	a := c.agents[id]
	if a == nil || a.place < 0 || epoch != c.epoch || c.phase != running && c.phase != stopping {
		return nil
	}
	return a
}

// stays reports whether an agent takes part in the current round, and does not leave the job.
func (c *core) stays(id agentID) bool {
	a := c.agents[id]
	return a != nil && a.place >= 0 && a.leaving == ""
}

// live returns the number of participants that are not lost.
func (c *core) live() int { return len(c.agents) - len(c.waiting) }

// count returns "1 node", "2 nodes" and so on.
func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
