package rendezvous

import (
	"time"

	"github.com/goddp/goddp/internal/awake"
	"github.com/goddp/goddp/internal/coordinator"
)

// Survival lets a round go on when it loses workers, if their program has declared that it can: see package
// coordinator. A worker of such a round has a number, which no other worker of the round ever has. The first
// workers have the numbers of their ranks.
type Survival struct {
	MinWorkers int           // the round goes on with at least so many workers
	Replace    bool          // a worker is started in place of a lost one
	Silence    time.Duration // a worker of which nothing is heard for so long is killed
}

// Exit is the end of a worker's process.
type Exit struct {
	Rank int    // the worker's RANK
	How  string // a clause, such as "exited with code 1"

	// The host uses these fields if the round survives lost workers.
	Worker int  // the worker's number
	Done   bool // the worker succeeded
}

// Verdict says what the exit of a worker means for a round that survives lost workers.
type Verdict struct {
	Epoch, Worker int
	GoesOn        bool // the others go on; otherwise the round fails
	Declared      bool // the program has declared that it can go on
	GivenUp       bool // too many workers in a row have ended before they joined the others, so none replaces this one
}

// StartOrder has an agent start a worker in place of a lost one, with the same RANK.
type StartOrder struct {
	Epoch, Worker, Rank int
	InPlaceOf           int // the lost worker
	Try                 int // counts the replacements, from 1, since a worker of this RANK joined the others
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

// MaxTries is the number of workers in a row that are started in place of a lost one, and end before they have joined
// the others. Then no other one is started.
const MaxTries = 3

// replacements chooses the workers that replace lost ones.
type replacements struct {
	next   int         // the number of the next worker
	failed map[int]int // by RANK: the number of workers in a row that have ended before they joined
}

// choose returns the order to start a worker in place of one that has ended, and the pause before it. It returns nil if
// too many workers of this RANK have ended before they joined the others.
func (r *replacements) choose(e *Exit, hasJoined bool) (o *StartOrder, pause time.Duration) {
	if r.failed[e.Rank]++; hasJoined {
		r.failed[e.Rank] = 0
	}
	n := r.failed[e.Rank]
	if n == MaxTries {
		return nil, 0
	}
	if n > 0 {
		pause = time.Second << (n - 1)
	}
	o = &StartOrder{Worker: r.next, Rank: e.Rank, InPlaceOf: e.Worker, Try: n + 1}
	r.next++
	return o, pause
}

// elastic returns the settings of the coordinator of a round that survives lost workers, else nil. p is the peer
// whose agent has the workers. The coordinator holds its lock when it calls the functions; tell does not block.
func (h *Host) elastic(p *peer) *coordinator.Elastic {
	if h.opts.Survival == nil {
		return nil
	}
	epoch := h.epoch
	return &coordinator.Elastic{
		Min:  h.opts.Survival.MinWorkers,
		Kill: func(worker int, why string) { p.tell(&toAgent{Kill: &KillOrder{epoch, worker, why}}) },
		Log: func(o coordinator.Order) {
			if o.Verb == coordinator.Begin {
				p.tell(&toAgent{Members: &Members{epoch, o.Epoch, o.Workers, o.Steps}})
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

// exited handles the end of a worker's process. The caller must hold mu.
func (h *Host) exited(p *peer, e *Exit) {
	s := h.services
	if h.opts.Survival == nil || s == nil {
		s.exited(e.Rank, e.How)
		return
	}
	v := &Verdict{Epoch: h.epoch, Worker: e.Worker}
	current, hasJoined := s.coordinator.Epoch(e.Worker)
	v.Declared = current > 0
	var start *StartOrder
	var pause time.Duration
	s.finishing = s.finishing || e.Done
	if v.Declared && h.opts.Survival.Replace && !s.finishing {
		if start, pause = s.replacements.choose(e, hasJoined); start != nil {
			start.Epoch = h.epoch
			s.coordinator.Started(start.Worker) // before the call of Gone, which counts it
		}
		v.GivenUp = start == nil
	}
	v.GoesOn = s.coordinator.Gone(e.Worker, e.How, e.Done)
	if e.Done {
		return
	}
	p.tell(&toAgent{Verdict: v})
	if start != nil && v.GoesOn {
		s.timers = append(s.timers, awake.AfterFunc(pause, func() { p.tell(&toAgent{Start: start}) }))
	}
}
