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

// Failure is a worker that ended otherwise than by exit code 0.
//
// Time orders the failures of an attempt, and the earliest is the root cause:
//
//   - It is the error file's own time where there is one, kept between the
//     attempt's start and the observed exit.
//   - For an exit that golaunch's order to stop cannot have caused, because it
//     was observed or under way before, it is the first exit that was observed,
//     less 100 ms, or 1 s if the worker crashed. What peers notice of a dying
//     process, its closed connections, comes before the kernel reports its
//     death, and their error files follow within milliseconds: without this
//     they would be dated before their cause.
//   - Otherwise it is the observed exit.
//
// Equal times stay in the order in which the kernel reported the exits. A
// worker whose error file says that it failed because another rank did, and that one
// failed as well, comes after all that do not, whatever the times.
type Failure struct {
	Worker
	Status Status
	Time   time.Time
	// Exited is when the exit was observed.
	Exited time.Time
	// Stopped: the worker ended as golaunch told it to. It counts as failed all
	// the same if its error file is older than that order: it was still
	// tearing itself down.
	Stopped bool
	// ErrorFile is what the worker wrote about its error, or nil.
	ErrorFile *ErrorFile
	// Crash holds the first lines of the Go runtime's crash report, if there is
	// one. A Go program that crashes exits with 2, as may one that means to.
	Crash []string
	// Stderr holds the last lines that the worker wrote there, and where it exited with 2
	// without a crash, as a Go program does whose flags are wrong, the first ones as well.
	Stderr []string

	errorPath string // where ErrorFile was read from
}

const (
	exitCredit  = 100 * time.Millisecond
	crashCredit = time.Second
)

// date sets Time. start is when the attempt began, ordered when its first
// failure was observed and the stop ordered, and late says that this exit may
// follow from that order.
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

// crashed reports a death that the program did not choose. SIGABRT is chosen:
// it is how watchdogs end a process whose peers are gone.
func (f *Failure) crashed() bool {
	return len(f.Crash) > 0 || f.Status.Signal != 0 && f.Status.Signal != syscall.SIGABRT
}

// stoppedBy reports whether an exit after the order to stop looks like
// obedience: success, death by sig or by golaunch's SIGKILL, or the exit code
// that programs give which catch sig.
func stoppedBy(s Status, sig syscall.Signal, killed bool) bool {
	return s.isSuccess() || s == Status{Signal: sig} || s == Status{Code: 128 + int(sig)} ||
		killed && s.Signal == syscall.SIGKILL
}

// FailureError says that a job failed because a worker did.
type FailureError struct {
	Program  string
	Host     string
	Restarts int // how many attempts had failed before
	// Root is the failure that came first, Others the rest by Time, and Stopped
	// the workers that golaunch stopped because of it.
	Root    Failure
	Others  []Failure
	Stopped []Failure
	// Records is the folder with the flight records of the workers, or "".
	Records string
	// Meaning is what the records say, or nil. The first failure that is observed
	// may be that of a rank which waited for another in vain.
	Meaning *analyze.Report
}

// newFailureError sorts failures, which are in the order observed, into cause,
// echoes and stopped workers. ordered is when golaunch ordered the stop.
func newFailureError(program, host string, restarts int, failures []Failure, ordered time.Time) *FailureError {
	e := &FailureError{Program: program, Host: host, Restarts: restarts}
	// Stable, so that failures of equal time stay in the order observed.
	failed := map[int]bool{}
	for _, f := range failures {
		failed[f.Rank] = true
	}
	slices.SortStableFunc(failures, func(a, b Failure) int {
		switch ea, eb := a.echoes(failed), b.echoes(failed); {
		case ea == eb:
			return a.Time.Compare(b.Time)
		case eb:
			return -1
		default:
			return 1
		}
	})
	for _, f := range failures {
		switch {
		case f.Stopped && (f.Status.isSuccess() || !f.Time.Before(ordered)):
			e.Stopped = append(e.Stopped, f)
		case e.Root.PID == 0:
			e.Root = f
		default:
			e.Others = append(e.Others, f)
		}
	}
	slices.SortFunc(e.Stopped, func(a, b Failure) int { return cmp.Compare(a.Rank, b.Rank) })
	return e
}

// echoes reports whether f failed because another of the failed ranks did.
func (f *Failure) echoes(failed map[int]bool) bool {
	if f.ErrorFile == nil || f.ErrorFile.CausedBy == nil {
		return false
	}
	cause := *f.ErrorFile.CausedBy
	return cause != f.Rank && failed[cause]
}

// causedByOthers is what the workers wrote, by rank, that failed because another did.
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
	text := fmt.Sprintf("%s failed: rank %d (local rank %d, pid %d) %s",
		e.Program, e.Root.Rank, e.Root.LocalRank, e.Root.PID, e.Root.Status)
	if why := e.Root.reason(); why != "" {
		text += ": " + why
	}
	return text
}

// ExitCode is the worker's own, or 1 if golaunch took away its chance to give one.
func (f *Failure) ExitCode() int {
	if f.Stopped {
		return 1
	}
	return f.Status.ExitCode()
}

// reason is one line about why the worker failed, or "" if it left no word.
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

// showsStack reports whether the report says where in its program a rank crashed. It need
// not for a rank that golaunch stopped because of another.
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
	return fmt.Sprintf("cannot start rank %d: %v", e.Rank, e.Err)
}

func (e *startError) Unwrap() error { return e.Err }

// ExitCode is the code that a command should exit with after [Run] returned
// err: the root cause's own, 128+n for signal n, 2 for a program that cannot be
// executed, else 1.
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
