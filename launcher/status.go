package launcher

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

// statusOf converts the state of a process that has ended.
func statusOf(state *os.ProcessState) Status {
	if ws, ok := state.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return Status{Signal: ws.Signal()}
	}
	return Status{Code: state.ExitCode()}
}

// isSuccess reports whether the process exited with code 0.
func (s Status) isSuccess() bool { return s == Status{} }

// ending returns what flight records say of such an end.
func (s Status) ending() flight.Ending {
	if s.isSuccess() {
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
		return "was killed by " + signalName(s.Signal)
	}
	return fmt.Sprintf("exited with code %d", s.Code)
}

// signalName returns the signal's symbolic name, or its number if it has no name.
func signalName(sig syscall.Signal) string {
	if name := unix.SignalName(sig); name != "" {
		return name
	}
	return fmt.Sprintf("signal %d", int(sig))
}

// ParseSignal returns the signal with a symbolic name such as "SIGTERM".
func ParseSignal(name string) (syscall.Signal, error) {
	if sig := unix.SignalNum(name); sig != 0 {
		return sig, nil
	}
	return 0, fmt.Errorf("%q is not the name of a signal, such as SIGTERM", name)
}
