package launcher

import (
	"cmp"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/goddp/goddp/internal/flight/analyze"
	"github.com/goddp/goddp/launcher/internal/failure"
)

// FailureError says that a job failed because a worker did, or because nodes were lost.
type FailureError struct {
	// Rank is the rank that failed first, on any node. If a node was lost first, Rank is the node's first rank.
	Rank int

	program  string
	nodes    int // number of nodes of the attempt
	restarts int // number of attempts that had failed before
	// root is the root cause on any node. others holds the other failures in the order of
	// failure.Sort. stopped holds the workers of this node that golaunch stopped because of the
	// failure.
	root    failure.Failure
	others  []failure.Failure
	stopped []failure.Failure
	before  []failure.Failure // the last workers of this node that were lost before, without which the others went on
	records string            // the folder with the flight records of this node's workers, or ""
	// meaning is the analysis of the flight records, or nil, as in a job of several nodes. It
	// may name another rank than root: the first rank that fails may have waited for another.
	meaning *analyze.Report
	reason  string // why no restart followed, if the number of restarts is not the reason; else ""
}

// newFailureError sorts failures into the root cause, other failures and stopped workers.
// The caller passes the failures of a node in the order in which the exits were observed. At least
// one failure must not be Stopped.
func newFailureError(program string, nodes, restarts int, failures []failure.Failure) *FailureError {
	e := &FailureError{program: program, nodes: nodes, restarts: restarts}
	failure.Sort(failures)
	for _, f := range failures {
		if f.Stopped {
			e.stopped = append(e.stopped, f)
		} else {
			e.others = append(e.others, f)
		}
	}
	slices.SortFunc(e.stopped, func(a, b failure.Failure) int { return cmp.Compare(a.Rank, b.Rank) })
	e.root, e.others = e.others[0], e.others[1:]
	e.Rank = e.root.Rank
	return e
}

// Error names the root cause on one line; Report has the details.
func (e *FailureError) Error() string { return e.program + " failed: " + e.cause() }

// cause describes the root cause.
func (e *FailureError) cause() string {
	f := &e.root
	if f.Kind != failure.Worker {
		return fmt.Sprintf("node %d (%s) %s", f.Node, f.Host, f.Why)
	}
	text := fmt.Sprintf("rank %d (%slocal rank %d, pid %d) %s", f.Rank, e.where(f), f.LocalRank, f.PID, f.Status)
	if why := reason(f); why != "" {
		text += ": " + why
	}
	return text
}

// where returns "node 1 on host-b, " in a job of several nodes, else "".
func (e *FailureError) where(f *failure.Failure) string {
	if e.nodes == 1 {
		return ""
	}
	return fmt.Sprintf("node %d on %s, ", f.Node, f.Host)
}

// reason returns one line about why the worker failed, or "" if it left no reason.
func reason(f *failure.Failure) string {
	if f.ErrorFile != nil {
		first, _, _ := strings.Cut(strings.TrimSpace(f.ErrorFile.Message), "\n")
		return first
	}
	if len(f.Crash) > 0 {
		return "Go runtime: " + f.Crash[0]
	}
	return ""
}

// stackOf returns the frames of the crash, as the report shows them; nil if the worker left
// no stack of a Go program.
func stackOf(f *failure.Failure) []string {
	if f.ErrorFile != nil {
		if lines := describeStack(f.ErrorFile.Callstack); lines != nil {
			return lines
		}
	}
	return describeStack(strings.Join(f.Crash, "\n"))
}

// SignalError says that a job ended because the agent received Signal.
type SignalError struct{ Signal syscall.Signal }

func (e *SignalError) Error() string { return "stopped by " + failure.SignalName(e.Signal) }

// ParseSignal returns the signal with a symbolic name such as "SIGTERM".
func ParseSignal(name string) (syscall.Signal, error) {
	if sig := unix.SignalNum(name); sig != 0 {
		return sig, nil
	}
	return 0, fmt.Errorf("%q is not the name of a signal, such as SIGTERM", name)
}

// startError says that a worker could not be started.
type startError struct {
	Rank    int
	Program string
	Err     error
}

func (e *startError) Error() string {
	return fmt.Sprintf("cannot start rank %d: %v%s", e.Rank, e.Err, e.hint())
}

// hint explains a system error that says too little, or returns "".
func (e *startError) hint() string {
	switch {
	case errors.Is(e.Err, syscall.EACCES):
		return ": this user may not execute the program or its interpreter, or the file system is mounted noexec"
	case errors.Is(e.Err, syscall.ENOENT) && exists(e.Program):
		return ": the program is there, but not its interpreter, or not the working folder"
	case errors.Is(e.Err, syscall.ENOEXEC):
		return ": it is built for another machine, or is a script without a first line such as #!/bin/sh"
	}
	return ""
}

func (e *startError) Unwrap() error { return e.Err }

// ExitCode returns the code with which a command should exit after [Run] returned err: 0
// for nil, the exit code of the root cause, 128+n for signal n, 2 for a program that
// cannot be executed, else 1.
func ExitCode(err error) int {
	var failed *FailureError
	var signal *SignalError
	var start *startError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &failed):
		return failed.root.ExitCode()
	case errors.As(err, &signal):
		return 128 + int(signal.Signal)
	case errors.As(err, &start) && (errors.Is(err, exec.ErrNotFound) || errors.Is(err, syscall.ENOENT) ||
		errors.Is(err, syscall.EACCES) || errors.Is(err, syscall.ENOEXEC)):
		return 2
	}
	return 1
}
