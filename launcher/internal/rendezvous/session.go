package rendezvous

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/goddp/goddp/launcher/internal/failure"
)

// Session is an agent's part in the rendezvous. Its methods may be called by any goroutine.
type Session struct {
	orders chan Order
	send   func(*toHost) // never blocks, and is called without mu
	cut    func()
	local  bool                            // the host is in this process
	open   func(service) (net.Conn, error) // nil if local

	mu     sync.Mutex
	epoch  int
	offset time.Duration // the host's clock minus this process's
	trip   time.Duration // the shortest round trip so far, by which offset was estimated; 0: none yet
}

// Order is an order of the rendezvous' host to an agent. One field is set.
type Order struct {
	Hold  string     // wait; this says why
	Begin *Round     // start the workers of this round
	Stop  *StopOrder // stop the workers, and call Ended
	End   *Result    // the job is over
	// A round that survives lost workers has these orders.
	Verdict *Verdict     // the answer to the exit of a worker that did not succeed
	Start   *StartOrder  // start a worker in place of a lost one
	Kill    *KillOrder   // kill a worker
	Members *Members     // these workers train together from now on
	Leave   *LeaveAnswer // the answer to AskToLeave
	Notice  string       // a text for the user
	// Err says that the agent was refused, or that the host is lost: then the workers must be stopped.
	Err error
}

// newSession returns the session of an agent with a number of workers. The agent may be late with 64 orders, and with
// those that follow from the exits of its workers: Kill, Verdict and Start.
func newSession(workers int) *Session {
	workers = min(max(workers, 0), maxWorkers) // the host refuses the agent otherwise
	return &Session{orders: make(chan Order, 64+3*workers)}
}

// Orders returns the channel of the host's orders. Its last order has End or Err.
func (s *Session) Orders() <-chan Order { return s.orders }

// Failed reports the first failure of a worker of the current round, so that the other nodes stop their
// workers. The times of f are by this host's clock.
func (s *Session) Failed(f failure.Failure) {
	epoch, offset := s.current()
	f.Shift(offset)
	s.send(&toHost{Failed: &failedMessage{epoch, f}})
}

// Ended reports that all workers of a round have ended: with success, after a failure or a stop order, or, if
// agreed is true, because all ranks agreed to stop. The host ignores the report if it has begun another round. The
// caller may not know of that round yet, because the order to begin it is still unread in the channel Orders.
// failures holds all that is known of the workers that failed. masterPort is a free port for the next round.
func (s *Session) Ended(round int, agreed bool, failures []failure.Failure, masterPort int) {
	_, offset := s.current()
	failures = slices.Clone(failures)
	for i := range failures {
		failures[i].Shift(offset)
	}
	s.send(&toHost{Ended: &endedMessage{round, agreed, failures, masterPort}})
}

// Leave announces that this agent leaves the job, and why. The agent leaves when its workers have ended. If now is
// true, the workers are dead and the agent leaves at once. The last order follows when the agent leaves, except that
// an agent whose process hosts the rendezvous may have to wait for it.
func (s *Session) Leave(why string, now bool) {
	s.send(&toHost{Leaves: &leavesMessage{Why: why, Now: now}})
}

// AskToLeave is Leave in a round that survives lost workers. A LeaveAnswer says how the workers end.
func (s *Session) AskToLeave(why string) {
	s.send(&toHost{Leaves: &leavesMessage{Why: why, Asks: true}})
}

// Exited reports that the process of a worker has ended in the current round. Ranks that wait for its rank to join
// are notified. If the round survives lost workers, and the worker did not succeed, a Verdict answers.
func (s *Session) Exited(e Exit) {
	epoch, _ := s.current()
	s.send(&toHost{Exited: &exitedMessage{epoch, e}})
}

// Close ends the session. If the agent has not left, the host finds that it is lost.
func (s *Session) Close() { s.cut() }

// beat sends a heartbeat.
func (s *Session) beat() { s.send(&toHost{Beat: &beat{Agent: time.Now()}}) }

// current returns the number of the current round, and the host's clock minus this process's.
func (s *Session) current() (epoch int, offset time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.epoch, s.offset
}

// receive handles a message of the host. An error ends the connection.
func (s *Session) receive(m *toAgent) error {
	switch {
	case m.Beat != nil:
		s.estimateOffset(m.Beat.Agent, m.Beat.Host, time.Now())
	case m.Hold != nil:
		return s.put(Order{Hold: m.Hold.Text})
	case m.Begin != nil:
		s.mu.Lock()
		s.epoch = m.Begin.Number
		s.mu.Unlock()
		return s.put(Order{Begin: m.Begin})
	case m.Stop != nil:
		return s.put(Order{Stop: m.Stop})
	case m.End != nil:
		return s.put(Order{End: m.End})
	case m.Verdict != nil:
		return s.put(Order{Verdict: m.Verdict})
	case m.Start != nil:
		return s.put(Order{Start: m.Start})
	case m.Kill != nil:
		return s.put(Order{Kill: m.Kill})
	case m.Members != nil:
		return s.put(Order{Members: m.Members})
	case m.Leave != nil:
		return s.put(Order{Leave: m.Leave})
	case m.Notice != nil:
		if len(s.orders) < cap(s.orders)/2 { // it may be dropped
			return s.put(Order{Notice: m.Notice.Text})
		}
	case m.Refused != nil:
		return &RefusedError{m.Refused.Text}
	case m.Resign != nil:
		return errors.New(m.Resign.Text) // why the host is lost
	}
	return nil
}

// RefusedError says why the host of the rendezvous refused this agent.
type RefusedError struct{ Reason string }

func (e *RefusedError) Error() string { return "the rendezvous refused this node: " + e.Reason }

func (s *Session) put(o Order) error {
	select {
	case s.orders <- o:
		return nil
	default:
		return fmt.Errorf("the agent does not read its orders: %d are queued", cap(s.orders))
	}
}

// estimateOffset takes a heartbeat that was sent at start and returned by the host at host, and that came
// back at end. The shortest round trip gives the best estimate, as in NTP.
func (s *Session) estimateOffset(start, host, end time.Time) {
	trip := end.Sub(start)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.trip == 0 || trip < s.trip {
		s.trip, s.offset = max(trip, 1), host.Sub(start.Add(trip/2))
	}
}
