package comm

import (
	"cmp"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/goddp/goddp/internal/jobenv"
)

// StopRequested returns the signal, SIGINT or SIGTERM, that has asked this process to stop. It
// returns 0 if no signal has. From the first call of StopRequested on, the first signal no
// longer ends the context that [Main] gave the program: the program calls StopRequested in each
// step and stops by itself. The context still ends at a second signal, or if the program does
// not call AcceptStop within half of the launcher's shutdown timeout.
//
// The signals may reach the ranks of a job at different times, and may not reach some ranks at
// all. [github.com/goddp/goddp/ddp.Model.Stopping] has the ranks agree on a step at no cost. A
// program that does not use Model.Stopping reduces the ranks' results of StopRequested by
// [Max], together with something that it reduces in each step anyway, and gives the maximum to
// AcceptStop.
func (pg *ProcessGroup) StopRequested() syscall.Signal { return pg.stop.requestedSignal() }

// RequestStop asks this process to stop as SIGTERM would, but without a time limit. It is for
// programs that do not learn from SIGINT or SIGTERM that they have to stop. For example, a
// batch system may send another signal some minutes before the job must end.
func (pg *ProcessGroup) RequestStop() { pg.stop.requestStop() }

// AcceptStop says that all ranks have agreed to stop because of signal sig. The program
// then has until the end of the launcher's shutdown timeout to save its state and return.
// [Main] exits with 128 plus sig's number, which golaunch counts as a requested stop.
func (pg *ProcessGroup) AcceptStop(sig syscall.Signal) { pg.stop.accept(sig) }

// stopCore decides what signals do to a process. It is a pure state machine: step takes an
// event and returns the action that the caller must carry out.
type stopCore struct {
	isPolled  bool           // the program calls StopRequested
	requested syscall.Signal // the signal for which the program must stop; 0 if none
	received  syscall.Signal // the first signal that arrived; 0 if none
	at        time.Duration  // when the first signal arrived
	accepted  syscall.Signal // the signal for which all ranks agreed to stop; 0 if none
	isExpired bool           // the ranks did not agree in time
	hasEnded  bool           // the program's context has ended
}

// stopEvent is an input of stopCore.
type stopEvent struct {
	kind   stopEventKind
	signal syscall.Signal // the signal, if kind is stopSignal or stopAccept
	abort  bool           // if kind is stopSignal: whether the launcher ends the program rather than asks it to stop
	at     time.Duration  // if kind is stopSignal: when the signal arrived, since the start of the process
}

type stopEventKind uint8

const (
	stopPoll    stopEventKind = iota // the program called StopRequested
	stopSignal                       // a signal arrived
	stopRequest                      // the program called RequestStop
	stopAccept                       // the program called AcceptStop
	stopLate                         // the timer fired; the actions stopWait and stopExpire arm it
)

type stopAction uint8

const (
	stopNothing stopAction = iota
	stopNotify             // tell the launcher that the program polls for stop requests
	stopWait               // arm the timer for half of the shutdown timeout
	stopExpire             // make the deadlines of the calls in flight pass, and arm the timer for the time that the watchdog needs to find the cause
	stopEnd                // end the program's context
)

// A signal that arrives within sameSignal after the first signal counts as the same signal. A
// batch system may signal both a worker and its launcher, and the launcher passes the signal on
// to the worker.
const sameSignal = time.Second

// step takes an event and returns the action that the caller must carry out.
func (c *stopCore) step(e stopEvent) stopAction {
	switch e.kind {
	case stopPoll:
		if !c.isPolled {
			c.isPolled = true
			return stopNotify
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
		case c.hasEnded:
		case c.isPolled && first && !e.abort:
			return stopWait
		case c.isPolled && e.at-c.at < sameSignal && !e.abort:
		default:
			c.hasEnded = true
			return stopEnd
		}
	case stopLate:
		switch {
		case c.hasEnded || c.accepted != 0:
		case !c.isExpired:
			c.isExpired = true
			return stopExpire
		default:
			c.hasEnded = true
			return stopEnd
		}
	}
	return stopNothing
}

// stopper holds the stop requests of a process.
type stopper struct {
	request  atomic.Int32 // the signal that requests a stop, or 0; StopRequested reads it
	isPolled atomic.Bool  // this process has told the launcher that the program calls StopRequested

	mu   sync.Mutex
	core stopCore
	file string // the file through which this process notifies golaunch; "" without golaunch
}

// step gives an event to the core and returns the action that the caller must carry out.
func (s *stopper) step(e stopEvent) stopAction {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.core.step(e)
	if s.core.isPolled {
		s.request.Store(int32(s.core.requested))
	}
	return a
}

// requestedSignal returns the signal that requests a stop, or 0. Its first call tells the
// launcher that the program polls for stop requests.
func (s *stopper) requestedSignal() syscall.Signal {
	if !s.isPolled.Load() && s.step(stopEvent{kind: stopPoll}) == stopNotify {
		s.writeState(jobenv.StopHeeded)
		s.isPolled.Store(true)
	}
	return syscall.Signal(s.request.Load())
}

func (s *stopper) requestStop() { s.step(stopEvent{kind: stopRequest}) }

func (s *stopper) accept(sig syscall.Signal) { s.step(stopEvent{kind: stopAccept, signal: sig}) }

// acceptedSignal returns the signal for which all ranks agreed to stop, or 0 if they did not
// agree to stop.
func (s *stopper) acceptedSignal() syscall.Signal {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.core.accepted
}

// aborts reports whether a signal that arrives now ends the program rather than asks it to
// stop, because golaunch stops all ranks after a failure.
func (s *stopper) aborts() bool { return s.file != "" && jobenv.RefusesStops(s.file) }

// writeState tells golaunch a state of this process through the file. If it cannot write the
// file, it only prints the error. golaunch then treats the program as one that does not poll
// for stop requests.
func (s *stopper) writeState(state jobenv.StopState) {
	if err := state.Write(s.file); err != nil {
		fmt.Fprintf(os.Stderr, "telling the launcher of stop requests: %v\n", err)
	}
}
