package comm

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/goddp/goddp/internal/stopfile"
)

// StopRequested returns the signal by which this process was asked to stop, SIGINT or
// SIGTERM, and 0 where it was not. From the first call on, the first signal no longer
// ends the context that [Main] gave the program: the program asks, in each step, and
// stops by itself. If it does not accept the request within half of the launcher's
// shutdown timeout, or a second signal comes, the context ends.
//
// The ranks of a job may be asked at different times, and some of them not at all.
// [github.com/goddp/goddp/ddp.Model.Stopping] has the ranks agree on a step at no cost.
// A program without it reduces what its ranks return here, with [Max], together with
// something that it reduces in each step anyway, and gives the result to AcceptStop.
func (g *group) StopRequested() syscall.Signal { return g.stop.heed() }

// RequestStop asks this process to stop as SIGTERM would, but without a time limit. It
// is for programs that hear of the end in another way, such as a signal that a batch
// system sends some minutes before.
func (g *group) RequestStop() { g.stop.requestStop() }

// AcceptStop says that all ranks have agreed to stop because of signal sig. The program
// has as long as the launcher lets it to save its state and return. [Main] then exits
// with 128 plus sig's number, and golaunch counts that as asked for.
func (g *group) AcceptStop(sig syscall.Signal) { g.stop.accept(sig) }

// stopCore decides what signals do to a process. It has no clock and does nothing:
// step takes an event and returns what is to be done.
type stopCore struct {
	heeded    bool           // the program asks for requests
	requested syscall.Signal // what the program is to stop for, 0 before
	received  syscall.Signal // the first signal, 0 before it
	at        time.Duration  // when it came
	accepted  syscall.Signal // what all ranks agreed on, 0 before they do
	expired   bool           // the ranks did not agree in time
	ended     bool           // the program's context has ended
}

type stopEvent struct {
	kind   stopEventKind
	signal syscall.Signal // of stopSignal and stopAccept
	abort  bool           // of stopSignal: the launcher ends the program, and does not ask it
	at     time.Duration  // of stopSignal: since the process began
}

type stopEventKind uint8

const (
	stopHeed    stopEventKind = iota // the program asks whether it was asked to stop
	stopSignal                       // a signal came
	stopRequest                      // the program itself requests a stop
	stopAccept                       // the ranks agreed to stop
	stopLate                         // the timer fired that stopWait or stopExpire armed
)

type stopAction uint8

const (
	stopNothing stopAction = iota
	stopTell               // tell the launcher that the program heeds requests
	stopWait               // arm the timer for half the shutdown timeout
	stopExpire             // end the calls that wait for other ranks, and arm the timer for the watchdog's answer
	stopEnd                // end the program's context
)

// sameSignal is how long further signals count as the first one: a batch system signals
// a worker and its launcher, which passes the signal on.
const sameSignal = time.Second

func (c *stopCore) step(e stopEvent) stopAction {
	switch e.kind {
	case stopHeed:
		if !c.heeded {
			c.heeded = true
			return stopTell
		}
	case stopRequest:
		if c.requested == 0 {
			c.requested = syscall.SIGTERM
		}
	case stopAccept:
		c.accepted = e.signal
	case stopSignal:
		first := c.received == 0
		if first {
			c.received, c.at = e.signal, e.at
			c.requested = cmp.Or(c.requested, e.signal)
		}
		switch {
		case c.ended:
		case c.heeded && first && !e.abort:
			return stopWait
		case c.heeded && e.at-c.at < sameSignal && !e.abort:
		default:
			c.ended = true
			return stopEnd
		}
	case stopLate:
		switch {
		case c.ended || c.accepted != 0:
		case !c.expired:
			c.expired = true
			return stopExpire
		default:
			c.ended = true
			return stopEnd
		}
	}
	return stopNothing
}

// stopper is what a process knows of requests to stop.
type stopper struct {
	request atomic.Int32 // the signal that requests a stop, 0 before: for each step to read
	heeded  atomic.Bool

	mu   sync.Mutex
	core stopCore
	file string // tells the launcher; "" where nobody reads it
}

func (s *stopper) step(e stopEvent) stopAction {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.core.step(e)
	if s.core.heeded {
		s.request.Store(int32(s.core.requested))
	}
	return a
}

func (s *stopper) heed() syscall.Signal {
	if !s.heeded.Load() && s.step(stopEvent{kind: stopHeed}) == stopTell {
		s.tell(stopfile.Heeded)
		s.heeded.Store(true)
	}
	return syscall.Signal(s.request.Load())
}

func (s *stopper) requestStop() { s.step(stopEvent{kind: stopRequest}) }

func (s *stopper) accept(sig syscall.Signal) { s.step(stopEvent{kind: stopAccept, signal: sig}) }

// acceptedSignal is the signal because of which all ranks agreed to stop, 0 if they did not.
func (s *stopper) acceptedSignal() syscall.Signal {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.core.accepted
}

// aborts reports whether a signal that came now is no request, because the launcher, which
// was told that the program heeds requests, has taken the file away.
func (s *stopper) aborts() bool {
	return s.heeded.Load() && s.file != "" && stopfile.Read(s.file) == stopfile.Unheeded
}

// tell tells the launcher. Where that fails, the launcher takes the program for one that
// does not ask, which is no reason to fail.
func (s *stopper) tell(what stopfile.State) {
	if err := what.Write(s.file); err != nil {
		fmt.Fprintf(os.Stderr, "telling the launcher of stop requests: %v\n", err)
	}
}

type stopperKey struct{}

// stopperOf is Main's, if ctx is Main's, else one that no signal reaches.
func stopperOf(ctx context.Context) *stopper {
	if s, ok := ctx.Value(stopperKey{}).(*stopper); ok {
		return s
	}
	return &stopper{}
}
