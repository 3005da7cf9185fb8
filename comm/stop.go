package comm

import (
	"cmp"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/goddp/goddp/internal/stopfile"
)

// StopRequested returns the signal by which this process was asked to stop, SIGINT or
// SIGTERM, and 0 if it was not asked. From the first call of StopRequested on, the first
// signal no longer ends the context that [Main] gave the program: the program calls
// StopRequested in each step and stops by itself. The context still ends at a second
// signal, or if the program does not call AcceptStop within half of the launcher's
// shutdown timeout.
//
// The ranks of a job may be asked at different times, and some of them not at all.
// [github.com/goddp/goddp/ddp.Model.Stopping] has the ranks agree on a step at no cost. A
// program without it reduces the ranks' results of StopRequested by [Max], together with
// something that it reduces in each step anyway, and gives the maximum to AcceptStop.
func (pg *ProcessGroup) StopRequested() syscall.Signal { return pg.stop.requestedSignal() }

// RequestStop asks this process to stop as SIGTERM would, but without a time limit. It is
// for programs that learn in another way that they have to stop, such as by a signal that
// a batch system sends some minutes before.
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
	at        time.Duration  // when received arrived
	accepted  syscall.Signal // the signal for which all ranks agreed to stop; 0 if none
	isExpired bool           // the ranks did not agree in time
	hasEnded  bool           // the program's context has ended
}

// stopEvent is an input of stopCore.
type stopEvent struct {
	kind   stopEventKind
	signal syscall.Signal // the signal, for stopSignal and stopAccept
	abort  bool           // for stopSignal: the launcher ends the program rather than asks it to stop
	at     time.Duration  // for stopSignal: the time since the process started
}

type stopEventKind uint8

const (
	stopPoll    stopEventKind = iota // the program called StopRequested
	stopSignal                       // a signal came
	stopRequest                      // the program called RequestStop
	stopAccept                       // the program called AcceptStop
	stopLate                         // the timer fired that stopWait or stopExpire armed
)

type stopAction uint8

const (
	stopNothing stopAction = iota
	stopNotify             // tell the launcher that the program polls for stop requests
	stopWait               // arm the timer for half of the shutdown timeout
	stopExpire             // let the deadlines of calls in flight pass, and arm the timer for the watchdog's answer
	stopEnd                // end the program's context
)

// sameSignal is how long after the first signal further signals count as the same one. A
// batch system may signal both a worker and its launcher, which passes the signal on.
const sameSignal = time.Second

// step takes an event and returns the action to carry out.
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
	request  atomic.Int32 // the signal that requests a stop, 0 for none; each step of the program reads it
	isPolled atomic.Bool  // the launcher was told that the program polls

	mu   sync.Mutex
	core stopCore
	file string // the file by which this process notifies the launcher; "": without a launcher of goddp's
}

// step gives the core an event and returns the action to carry out.
func (s *stopper) step(e stopEvent) stopAction {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.core.step(e)
	if s.core.isPolled {
		s.request.Store(int32(s.core.requested))
	}
	return a
}

// requestedSignal returns the signal that requests a stop, or 0. The first call tells the
// launcher that the program polls.
func (s *stopper) requestedSignal() syscall.Signal {
	if !s.isPolled.Load() && s.step(stopEvent{kind: stopPoll}) == stopNotify {
		s.writeState(stopfile.Heeded)
		s.isPolled.Store(true)
	}
	return syscall.Signal(s.request.Load())
}

func (s *stopper) requestStop() { s.step(stopEvent{kind: stopRequest}) }

func (s *stopper) accept(sig syscall.Signal) { s.step(stopEvent{kind: stopAccept, signal: sig}) }

// acceptedSignal returns the signal that all ranks agreed to stop for, 0 if they did not.
func (s *stopper) acceptedSignal() syscall.Signal {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.core.accepted
}

// aborts reports whether a signal that comes now ends the program rather than asks it to
// stop. The launcher says so by removing the file in which this process said that it polls.
func (s *stopper) aborts() bool {
	return s.isPolled.Load() && s.file != "" && stopfile.Read(s.file) == stopfile.Unheeded
}

// writeState notifies the launcher through the file. A failure is only printed: the
// launcher then treats the program as one that does not poll.
func (s *stopper) writeState(state stopfile.State) {
	if err := state.Write(s.file); err != nil {
		fmt.Fprintf(os.Stderr, "telling the launcher of stop requests: %v\n", err)
	}
}
