package rendezvous

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/goddp/goddp/internal/awake"
	"github.com/goddp/goddp/internal/election"
	"github.com/goddp/goddp/internal/wire"
	"github.com/goddp/goddp/launcher/internal/failure"
)

// The defaults of HostOptions. Except for the heartbeat, they are torchrun's.
const (
	DefaultJoinTimeout = 10 * time.Minute
	DefaultLastCall    = 30 * time.Second
	DefaultHeartbeat   = time.Second
)

// missedBeats is the number of heartbeats in a row after which a silent agent, or a silent host, is lost.
const missedBeats = 3

// maxWorkers is the largest number of workers of a node. The host allocates memory for each of them.
const maxWorkers = 1 << 16

// maxAllFailures bounds the total size of a round's failures in the messages to all agents, in bytes.
const maxAllFailures = 64 << 20

// HostOptions are the settings of a job's rendezvous.
type HostOptions struct {
	Limits      Limits
	Credentials Credentials // the workers' credentials
	// Addr and Port are the address that the store of each round listens on. In a job of several nodes they must
	// be "" and 0, which stand for the loopback interface and a free port.
	Addr string
	Port int
	// JoinTimeout bounds the time from the start until MinNodes agents have joined. LastCall is how long the
	// host then waits for more agents. Heartbeat is the time between two heartbeats. 0 means the default.
	JoinTimeout, LastCall, Heartbeat time.Duration
	// State is the progress of the job, and Save stores it outside this process, so that another host can
	// continue the job. If Save is nil, the job ends when its host ends.
	State election.State
	Save  func(context.Context, election.State) error
	Log   *slog.Logger // nil means no log
	// Watch reads what an agent of another process sends about its workers, until the stream ends: see Agent.Watch. If it is
	// nil, nobody looks at the job.
	Watch func(stream io.Reader)
}

// Host hosts the rendezvous of a job, and the store and the coordinator of each round. It makes the
// decisions for all agents.
type Host struct {
	ctx        context.Context // the context of the host's own actions; it never ends
	opts       HostOptions
	rejections *wire.Rejections
	wg         sync.WaitGroup
	done       chan struct{}
	left       chan struct{} // capacity 1: receives when an agent has left

	mu        sync.Mutex // guards the fields below, and is held while messages are handled
	closed    bool
	core      *core
	peers     map[agentID]*peer // the agents that have joined
	lastID    agentID
	reached   string // the host part of the address at which the latest agent of another process has reached this host
	joinTimer *awake.Timer
	lastCall  *awake.Timer // nil unless it runs
	services  *services    // the services of the latest round
	epoch     int          // the number of the latest round
	round     Round        // the latest round, without the fields of a participant
	survives  bool         // the job has ended for this host, but may go on with another one
	saving    context.CancelFunc
}

// peer is the host's end of the connection with an agent.
type peer struct {
	id         agentID // 0 before it has joined
	send       func(*toAgent) bool
	cut        func() // ends the connection
	finish     func() // ends the connection when all messages have been sent, or after flushTime; nil if local
	name       string // the name of the agent's host, for messages
	addr       string // the host part of the agent's address; "" for the agent in this process, which the others reach by Host.reached
	masterPort int
	received   bool // since the last heartbeat
	silence    int  // number of heartbeats without a message
	reported   time.Time
	local      bool // the agent is in this process, so it cannot be silent
	asks       bool // the agent leaves, and waits for a LeaveAnswer
}

// NewHost returns the host of a new job. Close ends it, ctx does not.
func NewHost(ctx context.Context, o HostOptions) *Host {
	o.JoinTimeout = cmp.Or(o.JoinTimeout, DefaultJoinTimeout)
	o.LastCall = cmp.Or(o.LastCall, DefaultLastCall)
	o.Heartbeat = cmp.Or(o.Heartbeat, DefaultHeartbeat)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	core := newCore(o.Limits, o.State.Epoch, o.State.Restarts)
	core.durable, core.expected = o.Save != nil, o.State.Nodes
	h := &Host{ctx: context.WithoutCancel(ctx), opts: o, rejections: wire.NewRejections(o.Log, "rendezvous: connection rejected"), done: make(chan struct{}), left: make(chan struct{}, 1), core: core, peers: map[agentID]*peer{}}
	h.joinTimer = awake.AfterFunc(o.JoinTimeout, func() { h.lockAndStep(joinTimeout{o.JoinTimeout}) })
	h.wg.Go(h.tick)
	return h
}

// Close ends the rendezvous: the connections with the agents, and the services of the latest round.
func (h *Host) Close() error {
	h.mu.Lock()
	if h.closed {
		h.mu.Unlock()
		return nil
	}
	h.closed = true
	h.joinTimer.Stop()
	if h.lastCall != nil {
		h.lastCall.Stop()
	}
	if h.saving != nil {
		h.saving()
	}
	for _, p := range h.peers {
		p.cut()
	}
	services := h.services
	h.services = nil
	h.mu.Unlock()
	close(h.done)
	h.wg.Wait()
	h.rejections.Close()
	return services.close()
}

// receive handles a message of an agent. An error ends the connection.
func (h *Host) receive(p *peer, m *toHost) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	p.received, p.reported = true, time.Now()
	if h.closed {
		return fmt.Errorf("the rendezvous is closed")
	}
	if p.id == 0 && m.Join == nil {
		return fmt.Errorf("the first message is not Join")
	}
	switch {
	case m.Join != nil && p.id != 0:
		return fmt.Errorf("the agent joined twice")
	case m.Join != nil:
		return h.join(p, m.Join)
	case m.Beat != nil:
		m.Beat.Host = p.reported
		p.send(&toAgent{Beat: m.Beat})
	case m.Failed != nil:
		h.step(workerFailed{p.id, m.Failed.Epoch, m.Failed.Failure})
	case m.Ended != nil:
		p.masterPort = m.Ended.MasterPort
		h.step(workersEnded{p.id, m.Ended.Epoch, m.Ended.Agreed, m.Ended.Failures})
	case m.Leaves != nil:
		h.step(agentLeaves{p.id, m.Leaves.Why, p.reported, m.Leaves.Now, h.survival()})
		if m.Leaves.Asks {
			p.asks = true
			h.askedToLeave()
		}
	case m.Exited != nil && m.Exited.Epoch == h.epoch:
		h.exited(p, &m.Exited.Exit)
	}
	return nil
}

func (h *Host) join(p *peer, m *joinMessage) error {
	if h.core.phase == resigned {
		return fmt.Errorf("this host has resigned") // the agent looks for the next one
	}
	p.name = m.Node.Host
	if why := m.Limits.refusal(h.opts.Limits); why != "" {
		h.refuse(p, why)
		return errors.New(why)
	}
	if m.Node.Workers < 1 || m.Node.Workers > maxWorkers {
		why := fmt.Sprintf("it has %d workers, want 1 to %d", m.Node.Workers, maxWorkers)
		h.refuse(p, why)
		return errors.New(why)
	}
	if m.Node.Addr != "" {
		p.addr = m.Node.Addr
	}
	h.lastID++
	p.id, p.masterPort = h.lastID, m.MasterPort
	h.peers[p.id] = p
	h.step(agentJoined{p.id, m.Node, p.local, h.survival()})
	return nil
}

// refuse tells an agent why it cannot join, and logs the reason. The caller must hold mu.
func (h *Host) refuse(p *peer, reason string) {
	h.opts.Log.Warn("rendezvous: node refused", "host", p.name, "reason", reason)
	p.send(&toAgent{Refused: &textMessage{reason}})
}

// detach handles the end of the connection with an agent.
func (h *Host) detach(p *peer, how string, at time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.peers[p.id] == p {
		h.lose(p, how, at)
	}
}

// lose handles the loss of an agent at a time. The caller must hold mu.
func (h *Host) lose(p *peer, how string, at time.Time) {
	delete(h.peers, p.id)
	select {
	case h.left <- struct{}{}:
	default:
	}
	if !h.closed {
		h.step(agentLost{p.id, how, at, h.survival()})
	}
}

// tick finds silent agents.
func (h *Host) tick() {
	ticker := time.NewTicker(h.opts.Heartbeat)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-h.done:
			return
		}
		h.mu.Lock()
		for _, p := range h.peers {
			if p.silence++; p.received || p.local {
				p.silence = 0
			}
			if p.received = false; p.silence >= missedBeats {
				silence := missedBeats * h.opts.Heartbeat
				// If the agent was suspended, it reads this message when it resumes. Without the message it would report
				// that the host is lost. With etcd the agent needs no message: it looks for the host again, and joins.
				if !h.core.durable {
					p.send(&toAgent{Refused: &textMessage{fmt.Sprintf("it was silent for %v, so the host of the rendezvous gave it up: start it again", silence)}})
				}
				p.finish()
				h.lose(p, fmt.Sprintf("no heartbeat for %v", silence), p.reported)
			}
		}
		h.mu.Unlock()
	}
}

func (h *Host) lockAndStep(ev event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.closed {
		h.step(ev)
	}
}

// step has the core handle an event, and performs the actions. The caller must hold mu.
func (h *Host) step(ev event) {
	for _, act := range h.core.Step(ev) {
		h.perform(act)
	}
}

func (h *Host) perform(act action) {
	switch act := act.(type) {
	case refuse:
		h.refuse(h.peers[act.id], act.reason)
		delete(h.peers, act.id)
	case hold:
		h.send(act.id, &toAgent{Hold: &textMessage{act.reason}})
	case save:
		h.save(act)
	case begin:
		h.joinTimer.Stop()
		if err := h.begin(act); err != nil {
			h.step(hostFailed{err})
		}
	case admit:
		h.admit(act.agent)
	case awaitDeaths:
		h.awaitDeaths(act)
	case stop:
		for _, a := range h.core.round {
			if a != nil {
				h.send(a.id, &toAgent{Stop: &StopOrder{Epoch: act.epoch, Gently: act.gently, Reason: act.reason, Failure: act.failure}})
			}
		}
	case startLastCall:
		h.lastCall = awake.AfterFunc(h.opts.LastCall, func() { h.lockAndStep(lastCallElapsed{}) })
	case cancelLastCall:
		h.lastCall.Stop()
		h.lastCall = nil
	case release:
		h.send(act.id, &toAgent{End: &Result{Agreed: true, Restarts: h.core.restarts}})
	case resign:
		for id, p := range h.peers {
			if !p.local {
				h.send(id, &toAgent{Resign: &textMessage{act.reason}})
			}
		}
	case end:
		h.survives = h.core.durable && act.result.Reason != "" && countLost(act.result.Failures) >= h.opts.Limits.MinNodes
		act.result.Failures = failure.Bound(act.result.Failures, failureBytes(len(h.peers)))
		for id := range h.peers {
			h.send(id, &toAgent{End: &act.result})
		}
	}
}

// save saves the state of the job. If this agent may not host the rendezvous any more, save ends the host.
// The caller must hold mu.
func (h *Host) save(act save) {
	state := election.State{Epoch: act.epoch + 1, Restarts: act.restarts, Nodes: min(len(h.core.agents), h.opts.Limits.MaxNodes) - 1}
	ctx, cancel := context.WithCancel(h.ctx)
	h.saving = cancel
	h.wg.Go(func() {
		err := h.opts.Save(ctx, state)
		cancel()
		if err == nil {
			h.lockAndStep(saved{})
			return
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		for _, p := range h.peers {
			p.cut()
		}
		h.opts.Log.Error("rendezvous: the state of the job cannot be saved", "error", err)
	})
}

// depose tells the agents that this host is not elected any more, so that they look for another one.
func (h *Host) depose() {
	h.lockAndStep(hostDeposed{})
	h.awaitAgents(flushTime)
}

// isOver reports whether the job has ended, or this host has resigned.
func (h *Host) isOver() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.core.phase >= resigned
}

// jobEnded reports whether the job has ended on all nodes. A host that has lost MIN nodes or more cannot know that:
// perhaps the network has cut off only this node, and the others go on with another host.
func (h *Host) jobEnded() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.core.phase == ended && !h.survives
}

// countLost returns the number of nodes that were lost. Nodes that left do not count.
func countLost(failures []failure.Failure) (n int) {
	for _, f := range failures {
		if f.Kind == failure.Lost {
			n++
		}
	}
	return n
}

// failureBytes returns the maximum size of a round's failures in a message to each of n agents.
func failureBytes(n int) int { return min(maxMessage/2, maxAllFailures/max(n, 1)) }

// awaitAgents waits until the agents of other processes have left, at most for a time.
func (h *Host) awaitAgents(most time.Duration) {
	timer := time.NewTimer(most)
	defer timer.Stop()
	for {
		h.mu.Lock()
		n := 0
		for _, p := range h.peers {
			if !p.local {
				n++
			}
		}
		h.mu.Unlock()
		if n == 0 {
			return
		}
		select {
		case <-h.left:
		case <-timer.C:
			return
		}
	}
}

// begin opens the services of a round, and tells the participants their places.
func (h *Host) begin(act begin) error {
	world := 0
	for _, a := range act.participants {
		world += a.node.Workers
	}
	if least := h.opts.Limits.Survival.MinWorkers; least > world {
		return fmt.Errorf("--min-workers %d, but the %s have %d", least, count(len(act.participants), "node"), world)
	}
	if err := h.services.close(); err != nil {
		return fmt.Errorf("closing the store of round %d: %w", h.epoch, err)
	}
	var err error
	h.epoch = act.epoch
	members := &roster{agents: map[*peer]bool{}, owners: map[int]*peer{}}
	if h.services, err = openServices(h.ctx, h.opts, world, h.elastic(members)); err != nil {
		return err
	}
	h.services.roster = members
	first := h.peers[act.participants[0].id]
	master, masterPort := h.services.host, int(h.services.addr.Port())
	if h.opts.Limits.MaxNodes > 1 { // the store is for the agents alone
		master, masterPort = h.addr(first), first.masterPort
	}
	h.round = Round{
		Number: act.epoch, Nodes: len(act.participants), WorldSize: world,
		MasterAddr: master, MasterPort: masterPort, Restarts: h.core.restarts,
		Failures: failure.Bound(act.failures, failureBytes(len(act.participants))), Credentials: h.opts.Credentials,
		Watched: h.opts.Watch != nil, StoreAddr: h.services.addr.String(), CoordinatorAddr: h.services.coordinator.Addr().String(),
	}
	if h.opts.Limits.Survival.isOn() {
		for _, a := range act.participants { // before any worker can connect
			for local := range a.node.Workers {
				h.started(h.peers[a.id], a.first+local)
			}
		}
	}
	for _, a := range act.participants {
		h.send(a.id, &toAgent{Begin: h.roundOf(a)})
	}
	return nil
}

// roundOf describes the current round to a participant. The caller must hold mu.
func (h *Host) roundOf(a *agent) *Round {
	r := h.round
	r.Node, r.FirstRank, r.Addr = a.place, a.first, h.addr(h.peers[a.id])
	return &r
}

// addr returns the address at which other nodes reach an agent's. The caller must hold mu.
func (h *Host) addr(p *peer) string { return cmp.Or(p.addr, h.reached, wire.Loopback()) }

// send sends a message to an agent. If the agent does not read, send ends its connection.
func (h *Host) send(id agentID, m *toAgent) {
	if p := h.peers[id]; p != nil {
		p.tell(m)
	}
}
