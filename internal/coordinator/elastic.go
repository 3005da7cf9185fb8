package coordinator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Elastic lets a [Membership] choose who trains together. The workers first join the coordinator's
// first [Core] as in any job, where the rank of a worker is its id. When all of them have entered, its members are the
// first epoch. Each later epoch has a Core of its own.
//
// The server holds its lock while it calls the functions, so they must not block or call the server.
type Elastic struct {
	Min  int                          // an epoch has at least Min members
	Kill func(worker int, why string) // kills a worker's process; the caller of Started then calls Gone
	Log  func(Order)                  // is called with each order
}

// elastic is the server's state of an elastic job.
type elastic struct {
	Elastic
	membership *Membership
	door       map[int]*peer   // by worker: the connection over which it waits for the next epoch
	away       map[int]silence // by worker: it has left an epoch and is not at the door, for so many ticks
	steps      int             // the last step that was committed before the current epoch
	losses     int             // the number of members that were lost since an epoch began with a new step
	epochs     int             // the number of epochs that began since then
	waiting    silence         // for so many ticks, a member is at the door and waits for another one
	patience   time.Duration   // the Patience of the member that came to the door last
	wishing    silence         // for so many ticks, a worker waits that wishes to join or to leave
}

// A job does not go on if it loses more members at one step than it has had, and more than minLosses: the step itself
// may end them. Nor does it if more than maxEpochs epochs in a row commit no step, because of a collective that hangs
// for example.
const (
	minLosses = 5
	maxEpochs = 20
)

// changeDelay is how long workers wait at most that wish to join or to leave: see Membership.Hurry.
const changeDelay = 3 * time.Second

// ErrReleased is the error of Enter on a worker that shall end.
var ErrReleased = errors.New("this worker is released from the job")

// Started notifies the coordinator of an elastic job that a worker was started.
func (s *Server) Started(worker int) {
	s.step(func(m *Membership) []Order { return m.Start(worker) })
}

// Gone notifies the coordinator of an elastic job that a worker's process has ended and was reaped, with
// success if done is true. The text `how` describes the end, as for Exited. Gone reports whether the other
// workers go on, if there are any. Otherwise the job fails, and the caller must end them. The end of a worker that
// has not joined does no harm to a job that ends.
func (s *Server) Gone(worker int, how string, done bool) (goesOn bool) {
	s.step(func(m *Membership) []Order {
		e := s.elastic
		delete(e.away, worker)
		if m.epoch == 0 {
			s.exit(worker, how)
		}
		for _, n := range s.sessions {
			if rank := slices.Index(n.workers, worker); rank >= 0 {
				n.deliver(n.core.Exited(rank, how), nil)
			}
		}
		isMember := m.epochOf(worker) > 0
		if !done && isMember {
			e.losses++
		}
		orders := m.Gone(worker, done)
		goesOn = m.ending && !isMember || m.CanGoOn() && e.losses <= max(minLosses, s.size) && e.epochs <= maxEpochs
		return orders
	})
	return goesOn
}

// Epoch returns the number of the current epoch of an elastic job, and whether a worker is one of its members and was not
// released. The number is 0 if no epoch has begun: then the program has not declared that it goes on without lost
// workers.
func (s *Server) Epoch(worker int) (number int, isMember bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.elastic.membership
	w := m.worker(worker)
	return m.epoch, m.epochOf(worker) > 0 && !(w != nil && w.released)
}

// Drain asks a worker of an elastic job to leave. The members' epoch ends, and the next one begins without the worker,
// which is released.
func (s *Server) Drain(worker int) {
	s.step(func(m *Membership) []Order { return m.Leave(worker) })
}

// step gives an event to the membership, and carries out its orders.
func (s *Server) step(event func(*Membership) []Order) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.obey(event(s.elastic.membership), "")
}

// enter handles the message Enter. The caller must hold mu.
func (s *Server) enter(p *peer, m *Message) error {
	e := s.elastic
	isFirst := e != nil && e.membership.epoch == 0 // the worker is a rank of the session that becomes the first epoch
	switch {
	case e == nil:
		return fmt.Errorf("worker %d enters an epoch of a job that is not elastic", p.rank)
	case m.Ready == nil || e.door[p.rank] != nil || isFirst != (p.session != nil):
		return fmt.Errorf("worker %d enters an epoch twice", p.rank)
	}
	e.door[p.rank] = p
	if m.Ready.Patience > 0 {
		e.patience = m.Ready.Patience
	}
	delete(e.away, p.rank)
	if p.session == nil {
		s.connected(p)
	}
	s.obey(e.membership.Ready(p.rank, *m.Ready), fmt.Sprintf("it comes from epoch %d", m.Ready.Epoch))
	return nil
}

// expel kills a worker that is at fault for a failure or cannot be reached. The caller must hold mu.
func (s *Server) expel(worker int, why string) {
	s.obey(s.elastic.membership.Expel(worker), why)
}

// obey carries out orders. why is the reason that a worker gets if an order kills it. The caller must hold mu.
func (s *Server) obey(orders []Order, why string) {
	e := s.elastic
	for _, o := range orders {
		e.Log(o)
		switch o.Verb {
		case Begin:
			s.begin(&o)
		case Kill:
			for _, worker := range o.Workers {
				e.Kill(worker, why)
			}
		case Notice:
			if n := s.sessions[e.membership.epoch]; n != nil { // otherwise all members have left it already
				n.deliver(n.core.Change(), nil)
			}
		case Release:
			for _, worker := range o.Workers {
				e.door[worker].tell(&Message{Verb: Released})
			}
		}
	}
}

// begin begins an epoch. Its members have joined the session of the first one. begin makes the session of each
// later one, of the connections of its members.
func (s *Server) begin(o *Order) {
	e := s.elastic
	if o.Steps > e.steps {
		e.steps, e.losses, e.epochs = o.Steps, 0, 0
	}
	if e.epochs++; e.epochs > maxEpochs {
		for _, worker := range o.Workers {
			e.Kill(worker, fmt.Sprintf("the job has begun %d epochs at step %d and committed no further step", maxEpochs, o.Steps))
		}
	}
	e.wishing = 0
	n := e.door[o.Workers[0]].session
	if n == nil {
		n = &session{core: NewCore(len(o.Workers)), peers: map[int]*peer{}}
	}
	n.workers = o.Workers
	s.sessions[o.Epoch] = n
	for rank, worker := range o.Workers {
		p := e.door[worker]
		delete(e.door, worker)
		p.rank, p.session, n.peers[rank] = rank, n, p
		p.tell(&Message{Verb: Begun, Order: o, Rank: rank})
	}
}

// leftDoor handles the end of a connection that was in no epoch. The caller must hold mu.
func (s *Server) leftDoor(p *peer) {
	if e := s.elastic; e.door[p.rank] == p {
		delete(e.door, p.rank)
		e.away[p.rank] = 0
		s.obey(e.membership.Unready(p.rank), "")
	}
}

// leftEpoch handles the end of the connection of a rank of an epoch. A rank that has left comes again. The caller
// must hold mu.
func (s *Server) leftEpoch(n *session, rank int, how string) {
	switch {
	case n.workers == nil: // no epoch has begun: the job fails, as any job
	case n.core.ranks[rank].state == left && n.core.groups[""].failure == nil: // the program has ended its work
	case n.core.ranks[rank].state == left:
		s.elastic.away[n.workers[rank]] = 0
	default:
		s.expel(n.workers[rank], how)
	}
}

// accuse expels the workers that a failure of an epoch's session n names because they are late.
func (s *Server) accuse(n *session, out []Outgoing) {
	for _, o := range out {
		if f := o.Message.Failure; o.Message.Verb == Failed && f != nil && f.Late && len(f.Ranks)+len(f.Absent) < len(n.workers) {
			for _, rank := range slices.Concat(f.Ranks, f.Absent) {
				s.expel(n.workers[rank], f.Error())
			}
		}
	}
}

// tickAway expels the workers that have left an epoch and have not been heard of for Options.Silence, and the workers
// for which a member of the epoch has waited at the door for its Patience. The caller must hold mu.
func (s *Server) tickAway() {
	e := s.elastic
	var late []int
	isAwaited := false
	for _, worker := range e.membership.members {
		switch {
		case e.door[worker] != nil:
			isAwaited = true
		case e.membership.worker(worker) != nil:
			late = append(late, worker)
		}
	}
	if len(late) == 0 { // then Min is too many without the workers that start
		for _, w := range e.membership.workers {
			if e.door[w.id] == nil {
				late = append(late, w.id)
			}
		}
	}
	if e.waiting++; !isAwaited || len(late) == 0 || e.membership.epoch == 0 {
		e.waiting = 0
	}
	if e.patience > 0 && e.waiting > silence(e.patience/s.opts.Interval) {
		e.waiting = 0
		for _, worker := range late {
			s.expel(worker, fmt.Sprintf("the others have waited for it for %v", e.patience))
		}
	}
	for worker := range e.away {
		if e.away[worker]++; e.away[worker] > s.opts.silent() {
			delete(e.away, worker)
			s.expel(worker, fmt.Sprintf("it has not been heard of for %v", s.opts.Silence))
		}
	}
}

// tickWishes ends the wait of workers that wish to join or to leave after changeDelay. The caller must hold mu.
func (s *Server) tickWishes() {
	e := s.elastic
	if e.wishing++; !e.membership.isWaiting() {
		e.wishing = 0
	}
	if e.wishing > silence(changeDelay/s.opts.Interval) {
		s.obey(e.membership.Hurry(), "")
	}
}

// Enter waits until the next epoch of an elastic job begins, and returns its order. g is the group of all
// ranks, and then the group of the epoch's members. The caller must call Join next, except for the first epoch.
// The error is ErrReleased if the worker shall end.
func (g *Group) Enter(ctx context.Context, r Ready) (Order, error) {
	m, err := g.ask(ctx, &Message{Verb: Enter, Ready: &r}, answerKey{verb: Begun})
	if err != nil {
		return Order{}, err
	}
	if m.Verb == Released {
		return Order{}, ErrReleased
	}
	c := g.client
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rank = m.Rank
	g.Members = ranksOf(len(m.Order.Workers))
	return *m.Order, nil
}

// Lose ends the connection of the client of g, which then counts as lost.
func (g *Group) Lose() { g.client.Close() }
