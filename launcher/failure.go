package launcher

import (
	"cmp"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/goddp/goddp/internal/flight/analyze"
)

// Failure describes a worker that did not exit with code 0, or a node that was lost with all
// its workers.
//
// Time orders the failures of an attempt. The earliest failure is the root cause:
//
//   - If the worker's error file holds a time, Time is that time, limited to the span from
//     the attempt's start to the observed exit.
//   - If the exit was observed or under way before golaunch told the workers to stop, Time
//     is the first observed exit of the attempt minus 100 ms, or minus 1 s if the worker
//     crashed. The reason is that peers see the closed connections of a dying process
//     before the kernel reports its death, and write their error files within
//     milliseconds. Without the correction, effects would be dated before their cause.
//   - Otherwise Time is the observed exit.
//   - Of a node that left, or was lost, Time is that moment minus 1 s, as if its workers had
//     crashed.
//
// Failures with equal times stay in the order in which the kernel reported the exits. A
// failure whose error file names another failed rank as its cause comes after all failures
// that do not, whatever the times.
type Failure struct {
	Worker
	// Node is the node's rank, and Host its name.
	Node int
	Host string
	// Lost says how the node was lost, or why it could not go on. It is "" if the failure is one
	// of a worker. Otherwise Rank is the node's first rank, and PID is 0.
	Lost   string
	Status Status
	Time   time.Time
	// Exited is the time at which the exit was observed.
	Exited time.Time
	// Stopped says that the worker ended because golaunch told it to stop. A worker that had
	// failed before that order does not count as stopped. It had failed if its error file is
	// older than the order, or if it has an error of its own and the error file of another worker
	// of the node, older than the order, names it as the cause.
	Stopped bool
	// ErrorFile is the worker's error file; nil if it wrote none.
	ErrorFile *ErrorFile
	// Crash holds the first lines of the Go runtime's crash report; nil if there is none.
	// A Go program that crashes exits with code 2. A program may also exit with code 2
	// without a crash.
	Crash []string
	// Stderr holds the last lines of the worker's stderr. If the worker exited with code
	// 2 without a crash, as a Go program with wrong flags does, it also holds the first
	// lines.
	Stderr []string

	errorPath  string // the path of ErrorFile; "" if the worker was on another node
	wasExiting bool   // it was exiting because of its error when golaunch told it to stop
	ranks      int    // the number of ranks of a node that was lost
}

const (
	exitCredit  = 100 * time.Millisecond
	crashCredit = time.Second
)

// date sets Time. start is the time at which the attempt began. ordered is the time at
// which its first failure was observed and the other workers were told to stop. late says
// that this exit may be an effect of that order.
func (f *Failure) date(start, ordered time.Time, late bool) {
	switch {
	case f.ErrorFile != nil && !f.ErrorFile.Time.IsZero():
		f.Time = f.ErrorFile.Time
		if f.Time.Before(start) {
			f.Time = start
		}
		if f.Time.After(f.Exited) {
			f.Time = f.Exited
		}
	case late:
		f.Time = f.Exited
	case f.crashed():
		f.Time = ordered.Add(-crashCredit)
	default:
		f.Time = ordered.Add(-exitCredit)
	}
}

// classify separates a worker that golaunch stopped from one that was exiting because of its
// error when golaunch told it to stop, at the time `ordered`. all holds all failures of the
// attempt on this node, with their times.
func (f *Failure) classify(ordered time.Time, all []Failure) {
	if !f.Stopped || f.Status.isSuccess() {
		return
	}
	f.wasExiting = f.Time.Before(ordered)
	// A worker that fails closes its connections before it writes its error file. If the order
	// comes in between, its error file is too late, but those of its peers name it in time.
	if f.ErrorFile != nil && f.ErrorFile.CausedBy == nil && !f.ErrorFile.Interrupted {
		f.wasExiting = f.wasExiting || slices.ContainsFunc(all, func(other Failure) bool {
			return other.Rank != f.Rank && other.Time.Before(ordered) && other.names(f.Rank)
		})
	}
	f.Stopped = !f.wasExiting
}

// names reports whether the error file names a rank as the cause.
func (f *Failure) names(rank int) bool {
	return f.ErrorFile != nil && f.ErrorFile.CausedBy != nil && *f.ErrorFile.CausedBy == rank
}

// when returns the time of the failure as reports show it.
func (f *Failure) when() time.Time {
	if f.ErrorFile != nil {
		return f.Time
	}
	return f.Exited
}

// crashed reports whether the process died without choosing to. A process chooses
// SIGABRT: watchdogs end a process by it when its peers are gone.
func (f *Failure) crashed() bool {
	return len(f.Crash) > 0 || f.Status.Signal != 0 && f.Status.Signal != syscall.SIGABRT
}

// stoppedBy reports whether an exit after the order to stop looks like an effect of the
// order: success, death by sig or by golaunch's SIGKILL, or the usual exit code of a
// program that catches sig.
func stoppedBy(s Status, sig syscall.Signal, killed bool) bool {
	return s.isSuccess() || s == Status{Signal: sig} || s == Status{Code: 128 + int(sig)} ||
		killed && s.Signal == syscall.SIGKILL
}

// FailureError says that a job failed because a worker did.
type FailureError struct {
	Program  string
	Nodes    int // number of nodes of the attempt
	Restarts int // number of attempts that had failed before
	// Root is the earliest failure on any node. Others holds the other failures, ordered by
	// Time. Stopped holds the workers of this node that golaunch stopped because of the
	// failure.
	Root    Failure
	Others  []Failure
	Stopped []Failure
	// Records is the folder with the flight records of this node's workers, or "".
	Records string
	// Meaning is the analysis of the flight records, or nil, as in a job of several nodes. It
	// may name another rank than Root: the first rank that fails may have waited in vain for
	// another.
	Meaning *analyze.Report
	// Reason says why no restart followed, if their number is not the reason; else it is "".
	Reason string
}

// newFailureError sorts failures into the root cause, other failures and stopped workers.
// The caller passes those of a node in the order in which the exits were observed. If no
// worker failed, Root is the zero value.
func newFailureError(program string, nodes, restarts int, failures []Failure) *FailureError {
	e := &FailureError{Program: program, Nodes: nodes, Restarts: restarts}
	failed := map[int]bool{}
	for _, f := range failures {
		for i := range max(1, f.ranks) {
			failed[f.Rank+i] = true
		}
	}
	// The sort is stable: failures of equal time stay in the order of their exits.
	slices.SortStableFunc(failures, func(a, b Failure) int {
		switch isEffectA, isEffectB := a.isEffect(failed), b.isEffect(failed); {
		case isEffectA == isEffectB:
			return a.Time.Compare(b.Time)
		case isEffectB:
			return -1
		default:
			return 1
		}
	})
	for _, f := range failures {
		switch {
		case f.Stopped:
			e.Stopped = append(e.Stopped, f)
		case e.Root.PID == 0 && e.Root.Lost == "":
			e.Root = f
		default:
			e.Others = append(e.Others, f)
		}
	}
	slices.SortFunc(e.Stopped, func(a, b Failure) int { return cmp.Compare(a.Rank, b.Rank) })
	return e
}

// isEffect reports whether the error file names another failed rank as the cause.
func (f *Failure) isEffect(failed map[int]bool) bool {
	if f.ErrorFile == nil || f.ErrorFile.CausedBy == nil {
		return false
	}
	cause := *f.ErrorFile.CausedBy
	return cause != f.Rank && failed[cause]
}

// causedByOthers returns the error files that name another rank as the cause, by rank.
func (e *FailureError) causedByOthers() map[int]*ErrorFile {
	files := map[int]*ErrorFile{}
	for _, f := range slices.Concat([]Failure{e.Root}, e.Others, e.Stopped) {
		if f.ErrorFile != nil && f.ErrorFile.CausedBy != nil {
			files[f.Rank] = f.ErrorFile
		}
	}
	return files
}

// Error names the root cause on one line; Report has the details.
func (e *FailureError) Error() string {
	if e.Root.Lost != "" {
		return fmt.Sprintf("%s failed: node %d (%s) %s", e.Program, e.Root.Node, e.Root.Host, e.Root.Lost)
	}
	text := fmt.Sprintf("%s failed: rank %d (%slocal rank %d, pid %d) %s",
		e.Program, e.Root.Rank, e.where(&e.Root), e.Root.LocalRank, e.Root.PID, e.Root.Status)
	if why := e.Root.reason(); why != "" {
		text += ": " + why
	}
	return text
}

// where returns "node 1 on host-b, " in a job of several nodes, else "".
func (e *FailureError) where(f *Failure) string {
	if e.Nodes == 1 {
		return ""
	}
	return fmt.Sprintf("node %d on %s, ", f.Node, f.Host)
}

// ExitCode returns the worker's exit code, or 1 if golaunch stopped the worker before it
// could exit by itself, or if the node was lost.
func (f *Failure) ExitCode() int {
	if f.Stopped || f.wasExiting || f.Lost != "" {
		return 1
	}
	return f.Status.ExitCode()
}

// reason returns one line about why the worker failed, or "" if it left no reason.
func (f *Failure) reason() string {
	if f.ErrorFile != nil {
		first, _, _ := strings.Cut(strings.TrimSpace(f.ErrorFile.Message), "\n")
		return first
	}
	if len(f.Crash) > 0 {
		return "Go runtime: " + f.Crash[0]
	}
	return ""
}

// stack returns the frames of the crash, as the report shows them; nil if the worker left
// no stack of a Go program.
func (f *Failure) stack() []string {
	if f.ErrorFile != nil {
		if lines := describeStack(f.ErrorFile.Callstack); lines != nil {
			return lines
		}
	}
	return describeStack(strings.Join(f.Crash, "\n"))
}

// showsStack reports whether the report shows the place in the program at which a rank
// crashed. For a rank that golaunch stopped it returns true, since no place is needed.
func (e *FailureError) showsStack(rank int) bool {
	if slices.ContainsFunc(e.Stopped, func(f Failure) bool { return f.Rank == rank }) {
		return true
	}
	for _, f := range slices.Concat([]Failure{e.Root}, e.Others) {
		if f.Rank == rank {
			return f.stack() != nil
		}
	}
	return false
}

// SignalError says that a job ended because the agent received Signal.
type SignalError struct{ Signal syscall.Signal }

func (e *SignalError) Error() string { return "stopped by " + signalName(e.Signal) }

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
	var failure *FailureError
	var signal *SignalError
	var start *startError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &failure):
		return failure.Root.ExitCode()
	case errors.As(err, &signal):
		return 128 + int(signal.Signal)
	case errors.As(err, &start) && (errors.Is(err, exec.ErrNotFound) || errors.Is(err, syscall.ENOENT) ||
		errors.Is(err, syscall.EACCES) || errors.Is(err, syscall.ENOEXEC)):
		return 2
	}
	return 1
}
