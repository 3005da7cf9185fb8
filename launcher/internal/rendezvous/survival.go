package rendezvous

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/goddp/goddp/internal/awake"
	"github.com/goddp/goddp/internal/coordinator"
)

// Survival lets a round go on when it loses workers, if their program has declared that it can: see package
// coordinator. A worker of such a round has a number, which no other worker of the round ever has. The first
// workers have the numbers of their ranks. The zero Survival is that of a round that fails.
type Survival struct {
	MinWorkers int           // the round goes on with at least so many workers
	Replace    bool          // a worker is started in place of a lost one
	Silence    time.Duration // a worker of which nothing is heard for so long is killed
}

func (s Survival) isOn() bool { return s.MinWorkers > 0 }

// String returns the settings as the flags that set them.
func (s Survival) String() string {
	what := "shrink"
	if s.Replace {
		what = "replace"
	}
	return fmt.Sprintf("--on-failure=%s --min-workers=%d --silence-limit=%g", what, s.MinWorkers, s.Silence.Seconds())
}

// Exit is the end of a worker's process.
type Exit struct {
	Rank int    // the worker's RANK
	How  string // a clause, such as "exited with code 1"

	// The host uses these fields if the round survives lost workers.
	Worker int  // the worker's number
	Done   bool // the worker succeeded
	Killed bool // by SIGKILL, which is no sign that its next replacement would fail too
}

// Verdict says what the exit of a worker means for a round that survives lost workers.
type Verdict struct {
	Epoch, Worker int
	GoesOn        bool // the others go on; otherwise the round fails
	Declared      bool // the program has declared that it can go on
	IsReplaced    bool // an order to start another worker follows
	GivenUp       bool // too many workers in a row have ended too soon, so none replaces this one
}

// StartOrder has an agent start a worker in place of a lost one, with the same RANK.
type StartOrder struct {
	Epoch, Worker, Rank int
	InPlaceOf           int // the lost worker
	Try                 int // counts the replacements, from 1, since a worker of this RANK trained for a while
}

// KillOrder has an agent kill a worker's process, also if it is suspended.
type KillOrder struct {
	Epoch, Worker int
	Why           string
}

// Members says which workers train together from now on.
type Members struct {
	Epoch   int
	Number  int   // counts the memberships of the round, from 1
	Workers []int // by rank
	Steps   int   // the last step that any of them has committed
}

// LeaveAnswer says how the workers of an agent end that leaves.
type LeaveAnswer struct {
	Epoch int
	// IsDrained says that they end by themselves, and those of the other agents go on. Otherwise the agent tells its workers
	// to stop, and the workers of all agents agree on a step after which they do.
	IsDrained bool
}

// MaxTries is the number of workers in a row that are started in place of a lost one, and end before they have
// trained with the others for SteadyTime after their start. Then no other one is started. A worker that has joined the
// others and is killed does not count.
const (
	MaxTries   = 3
	SteadyTime = time.Minute
)

// replacements chooses the workers that replace lost ones.
type replacements struct {
	next   int         // the number of the next worker
	failed map[int]int // by RANK: the number of workers in a row that have ended too soon
	latest map[int]latest
}

// latest is the latest worker that was started with a RANK in place of another.
type latest struct {
	worker int
	start  time.Time
}

func newReplacements(world int) replacements {
	return replacements{next: world, failed: map[int]int{}, latest: map[int]latest{}}
}

// choose returns the order to start a worker in place of one that has ended now, and the pause before it. It returns
// nil if too many workers of this RANK have ended too soon.
func (r *replacements) choose(e *Exit, hasJoined bool, now time.Time) (o *StartOrder, pause time.Duration) {
	last, isReplacement := r.latest[e.Rank]
	if r.failed[e.Rank]++; hasJoined && (e.Killed || !isReplacement || now.Sub(last.start) >= SteadyTime) {
		r.failed[e.Rank] = 0
	}
	n := r.failed[e.Rank]
	if n >= MaxTries {
		return nil, 0
	}
	if n > 0 {
		pause = time.Second << (n - 1)
	}
	return r.start(e.Rank, now.Add(pause)), pause
}

// start returns the order to start a worker in place of the latest one of a RANK.
func (r *replacements) start(rank int, at time.Time) *StartOrder {
	lost := rank
	if last, isReplacement := r.latest[rank]; isReplacement {
		lost = last.worker
	}
	r.latest[rank] = latest{r.next, at}
	r.next++
	return &StartOrder{Worker: r.next - 1, Rank: rank, InPlaceOf: lost, Try: r.failed[rank] + 1}
}

// roster knows the agents of a round, and which one has which worker. Its methods may be called while the
// coordinator holds its lock, and do not block.
type roster struct {
	mu     sync.Mutex
	agents map[*peer]bool
	owners map[int]*peer // by worker
}

func (r *roster) add(p *peer, workers ...int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.agents[p] = true
	for _, w := range workers {
		r.owners[w] = p
	}
}

// removeAgent removes an agent, but not its workers.
func (r *roster) removeAgent(id agentID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.agents, func(p *peer, _ bool) bool { return p.id == id })
}

func (r *roster) removeWorker(worker int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.owners, worker)
}

// workers returns the workers of the agents for which the function returns true.
func (r *roster) workers(isOwner func(agentID) bool) (workers []int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for w, p := range r.owners {
		if isOwner(p.id) {
			workers = append(workers, w)
		}
	}
	slices.Sort(workers)
	return workers
}

// tellAll sends a message to all agents but one, which may be nil.
func (r *roster) tellAll(m *toAgent, but *peer) {
	r.mu.Lock()
	agents := slices.Collect(maps.Keys(r.agents))
	r.mu.Unlock()
	for _, p := range agents {
		if p != but {
			p.tell(m)
		}
	}
}

// tellOwner sends a message to the agent that has a worker.
func (r *roster) tellOwner(worker int, m *toAgent) {
	r.mu.Lock()
	p := r.owners[worker]
	r.mu.Unlock()
	if p != nil {
		p.tell(m)
	}
}

// elastic returns the settings of the coordinator of a round that survives lost workers, else nil. The coordinator
// holds its lock when it calls the functions.
func (h *Host) elastic(r *roster) *coordinator.Elastic {
	if !h.opts.Limits.Survival.isOn() {
		return nil
	}
	epoch := h.epoch
	return &coordinator.Elastic{
		Min:  h.opts.Limits.Survival.MinWorkers,
		Kill: func(worker int, why string) { r.tellOwner(worker, &toAgent{Kill: &KillOrder{epoch, worker, why}}) },
		Log: func(o coordinator.Order) {
			if o.Verb == coordinator.Begin {
				r.tellAll(&toAgent{Members: &Members{epoch, o.Epoch, o.Workers, o.Steps}}, nil)
			}
		},
	}
}

// tell sends a message, or ends the connection if the agent does not read. It needs no lock.
func (p *peer) tell(m *toAgent) {
	if !p.send(m) {
		p.cut()
	}
}

// survival returns what the round does if it loses workers now.
func (h *Host) survival() survival {
	if !h.opts.Limits.Survival.isOn() || h.services == nil {
		return fails
	}
	switch current, _ := h.services.coordinator.Epoch(0); {
	case current == 0: // the program has not declared that it can go on
		return fails
	case h.opts.Limits.Survival.Replace && !h.services.finishing:
		return replaces
	}
	return shrinks
}

// exited handles the end of a worker's process. The caller must hold mu.
func (h *Host) exited(p *peer, e *Exit) {
	s := h.services
	if !h.opts.Limits.Survival.isOn() || s == nil {
		s.exited(e.Rank, e.How)
		return
	}
	v := &Verdict{Epoch: h.epoch, Worker: e.Worker}
	current, hasJoined := s.coordinator.Epoch(e.Worker)
	v.Declared = current > 0
	var start *StartOrder
	var pause time.Duration
	s.finishing = s.finishing || e.Done && hasJoined
	stays := h.core.stays(p.id)
	if h.survival() == replaces && stays && !e.Done {
		if start, pause = s.replacements.choose(e, hasJoined, time.Now()); start != nil {
			start.Epoch = h.epoch
			h.started(p, start.Worker) // before the call of Gone, which counts it
		}
		v.GivenUp = start == nil
	}
	s.roster.removeWorker(e.Worker)
	v.GoesOn = s.coordinator.Gone(e.Worker, e.How, e.Done)
	if e.Done {
		return
	}
	s.goesOn = v.GoesOn
	v.IsReplaced = start != nil && v.GoesOn
	p.tell(&toAgent{Verdict: v})
	if v.IsReplaced {
		s.timers = append(s.timers, awake.AfterFunc(pause, func() { p.tell(&toAgent{Start: start}) }))
	}
	if v.GoesOn && stays {
		h.notify(p, "worker %d of %s %s", e.Worker, p.name, e.How)
	}
}

// notify has the agents of the round, except one, say something to their users.
func (h *Host) notify(but *peer, format string, args ...any) {
	h.services.roster.tellAll(&toAgent{Notice: &textMessage{fmt.Sprintf(format, args...)}}, but)
}

// started notes workers that an agent starts. The caller must hold mu.
func (h *Host) started(p *peer, workers ...int) {
	h.services.roster.add(p, workers...)
	for _, w := range workers {
		h.services.coordinator.Started(w)
	}
}

// admit has an agent take part in the current round, with workers in place of lost ones. The caller must hold mu.
func (h *Host) admit(a *agent) {
	p, r := h.peers[a.id], h.roundOf(a)
	for rank := a.first; rank < a.first+a.node.Workers; rank++ {
		delete(h.services.replacements.failed, rank) // the tries were another node's
		o := h.services.replacements.start(rank, time.Now())
		o.Epoch = h.epoch
		r.Starts = append(r.Starts, o)
		h.started(p, o.Worker)
	}
	h.send(a.id, &toAgent{Begin: r})
	h.notify(p, "node %d (%s) joined, and starts %s", a.place, a.node.Host, count(a.node.Workers, "worker"))
}

// lease is the time after which an agent that has lost the host kills its workers.
func (h *Host) lease() time.Duration { return missedBeats * h.opts.Heartbeat }

// awaitDeaths waits until the workers of a lost agent are dead for certain. They end with their agent, or it kills them
// when it has not heard of the host for the time of the lease. The host waits for twice that time since it heard of the
// agent. The caller must hold mu.
func (h *Host) awaitDeaths(act awaitDeaths) {
	s, a := h.services, act.agent
	s.roster.removeAgent(a.id)
	workers := s.roster.workers(func(id agentID) bool { return id == a.id })
	wait, text := time.Duration(0), ""
	if len(workers) > 0 && !act.areDead {
		wait = max(0, 2*h.lease()-time.Since(a.loss.Time))
		text = fmt.Sprintf("; its workers are dead for certain in %v", wait.Round(100*time.Millisecond))
	}
	h.notify(nil, "node %d (%s) %s%s", a.place, a.node.Host, &a.loss, text)
	s.timers = append(s.timers, awake.AfterFunc(wait, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.closed || h.services != s {
			return
		}
		for _, w := range workers {
			s.roster.removeWorker(w)
			s.goesOn = s.coordinator.Gone(w, "its node was lost", false)
		}
		h.step(workersDied{a.id, s.goesOn})
	}))
}

// askedToLeave handles the announcement of an agent that it leaves, if it waits for an answer. A signal to all nodes
// ends the job, so the host answers a heartbeat later, or when all have announced it. The caller must hold mu.
func (h *Host) askedToLeave() {
	s := h.services
	if h.survival() == fails || h.core.staying() == 0 {
		h.answerLeaves()
		return
	}
	s.timers = append(s.timers, awake.AfterFunc(h.opts.Heartbeat, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if !h.closed && h.services == s {
			h.answerLeaves()
		}
	}))
}

// answerLeaves tells the agents that leave how their workers end. The job goes on without them, unless the host itself
// leaves or too few workers stay. The caller must hold mu.
func (h *Host) answerLeaves() {
	s := h.services
	isDrained := h.survival() != fails && h.core.phase == running && len(s.roster.workers(h.core.stays)) >= h.opts.Limits.Survival.MinWorkers
	for _, a := range h.core.round {
		isDrained = isDrained && (a == nil || !a.local || a.leaving == "")
	}
	for _, a := range h.core.round {
		if a == nil || h.peers[a.id] == nil || !h.peers[a.id].asks { // no peer is left when the job has ended
			continue
		}
		h.peers[a.id].asks = false
		h.send(a.id, &toAgent{Leave: &LeaveAnswer{h.epoch, isDrained}})
		if isDrained {
			for _, w := range s.roster.workers(func(id agentID) bool { return id == a.id }) {
				s.coordinator.Drain(w)
			}
		}
	}
}
