package failure

import (
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/goddp/goddp/internal/flight"
)

// Status says how a process ended: with an exit code, or by a signal.
type Status struct {
	Code   int
	Signal syscall.Signal // 0 if the process exited by itself
}

// StatusOf converts the state of a process that has ended.
func StatusOf(state *os.ProcessState) Status {
	if ws, ok := state.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return Status{Signal: ws.Signal()}
	}
	return Status{Code: state.ExitCode()}
}

// IsSuccess reports whether the process exited with code 0.
func (s Status) IsSuccess() bool { return s == Status{} }

// IsEffectOf reports whether an exit after the order to stop looks like an effect of the
// order: success, death by sig or by golaunch's SIGKILL, or the usual exit code of a
// program that catches sig.
func (s Status) IsEffectOf(sig syscall.Signal, killed bool) bool {
	return s.IsSuccess() || s == Status{Signal: sig} || s == Status{Code: 128 + int(sig)} ||
		killed && s.Signal == syscall.SIGKILL
}

// Ending returns the flight record's Ending of a process that ended with this status.
func (s Status) Ending() flight.Ending {
	if s.IsSuccess() {
		return flight.Succeeded
	}
	return flight.Died
}

// ExitCode returns the exit code in the convention of shells: 128+n for signal n.
func (s Status) ExitCode() int {
	if s.Signal != 0 {
		return 128 + int(s.Signal)
	}
	return s.Code
}

// String returns a clause that can follow a worker's name, as in "was killed by SIGKILL".
func (s Status) String() string {
	if s.Signal != 0 {
		return "was killed by " + SignalName(s.Signal)
	}
	return fmt.Sprintf("exited with code %d", s.Code)
}

// SignalName returns the signal's symbolic name, or its number if it has no name.
func SignalName(sig syscall.Signal) string {
	if name := unix.SignalName(sig); name != "" {
		return name
	}
	return fmt.Sprintf("signal %d", int(sig))
}
