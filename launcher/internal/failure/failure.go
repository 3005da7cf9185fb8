// Package failure has the one type that describes a failure on its way from the exit status to the
// report. The reaper makes a [Failure] of each exit. The agent of the node adds what it knows of the
// worker, and sends the failure to the host of the rendezvous. The host stops the job, and returns the
// failures of all nodes to every agent, which reports them.
package failure

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/goddp/goddp/internal/jobenv"
	"github.com/goddp/goddp/internal/rootcause"
)

// Kind says what failed.
type Kind uint8

// The kinds of failures.
const (
	Worker Kind = iota // a worker did not exit with code 0
	Lost               // the connection with a node ended, or the node was silent
	Left               // a node left the job
	Unable             // a node cannot go on, and a restart would not help: its program cannot be started
)

// Failure describes a worker that did not exit with code 0, or a node that failed with all its workers.
type Failure struct {
	Kind Kind
	// Node is the node's rank in the round, and Host its name.
	Node int
	Host string
	// A worker has a Rank, a LocalRank, a PID, an Attempt and a Status.
	Rank, LocalRank, PID, Attempt int
	Status                        Status
	// A node has Ranks ranks, from Rank on.
	Ranks int `json:",omitempty"`
	// Why says how a node was lost, or why it left or cannot go on. Of a worker, it says why the coordinator had it
	// killed; "" if it did not.
	Why string `json:",omitempty"`
	// Exited is when the exit was observed, or when the node failed.
	Exited time.Time
	// Time is the time in the worker's error file, limited to the span from the attempt's start to
	// Exited. If the error file has no time, Seen says what Time is. It is the first exit of the attempt
	// if this exit was under way before golaunch told the workers to stop, else Exited.
	Time time.Time
	Seen rootcause.Seen
	// Stopped says that the worker ended because golaunch told it to stop. A worker that had failed
	// before that order does not count as stopped. The worker had failed if its error file is older than
	// the order, or if its error file names no cause and an older error file of another worker of the
	// node names this worker. WasExiting says that a worker that had failed ended by the order all the same.
	Stopped, WasExiting bool
	// ErrorFile is the worker's error file; nil if it wrote none.
	ErrorFile *jobenv.ErrorFile `json:",omitempty"`
	// Crash holds the first lines of the Go runtime's crash report; nil if there is none.
	// A Go program that crashes exits with code 2. A program may also exit with code 2
	// without a crash.
	Crash []string `json:",omitempty"`
	// Stderr holds the last lines of the worker's stderr. If the worker exited with code
	// 2 without a crash, as a Go program with wrong flags does, it also holds the first
	// lines.
	Stderr []string `json:",omitempty"`

	ErrorPath string `json:"-"` // the path of ErrorFile; "" if the worker was on another node
	IsLate    bool   `json:"-"` // golaunch had told the worker to stop before it was exiting
}

// String describes the failure in a clause, as in "rank 3 exited with code 1 because of rank 2".
func (f *Failure) String() string {
	if f.Kind != Worker {
		return f.Why
	}
	return fmt.Sprintf("rank %d %s%s", f.Rank, f.Status, f.Blame())
}

// Blame returns " because of rank 2" if the error file names that other rank, else "".
func (f *Failure) Blame() string {
	if cause := f.CausedBy(); cause != nil {
		return fmt.Sprintf(" because of rank %d", *cause)
	}
	return ""
}

// CausedBy returns the other rank that the error file names as the cause; nil if it names none.
func (f *Failure) CausedBy() *int {
	if f.ErrorFile == nil || f.ErrorFile.CausedBy == nil || *f.ErrorFile.CausedBy == f.Rank {
		return nil
	}
	return f.ErrorFile.CausedBy
}

// Is reports whether g describes the same failure.
func (f *Failure) Is(g *Failure) bool {
	return f.Kind == g.Kind && f.Node == g.Node && f.Rank == g.Rank
}

// When returns the time of the failure as reports show it.
func (f *Failure) When() time.Time {
	if f.ErrorFile != nil {
		return f.Time
	}
	return f.Exited
}

// ExitCode returns the worker's exit code, or 1 if golaunch stopped the worker before it
// could exit by itself, or if a node failed.
func (f *Failure) ExitCode() int {
	if f.Stopped || f.WasExiting || f.Kind != Worker {
		return 1
	}
	return f.Status.ExitCode()
}

// Shift converts the times to a clock that is ahead by a duration.
func (f *Failure) Shift(by time.Duration) { f.Time, f.Exited = f.Time.Add(by), f.Exited.Add(by) }

// crashed reports whether the process died without choosing to. A process chooses
// SIGABRT: watchdogs end a process by it when its peers are gone.
func (f *Failure) crashed() bool {
	return len(f.Crash) > 0 || f.Status.Signal != 0 && f.Status.Signal != syscall.SIGABRT
}

// evidence converts f to the form that package rootcause judges.
func evidence(f Failure) rootcause.Evidence {
	e := rootcause.Evidence{At: f.Time, Seen: f.Seen}
	for i := range max(1, f.Ranks) {
		e.Ranks = append(e.Ranks, f.Rank+i)
	}
	if cause := f.CausedBy(); cause != nil {
		e.CausedBy = []int{*cause}
	}
	return e
}

// Sort sorts failures, the root cause first.
func Sort(failures []Failure) { rootcause.Sort(failures, evidence) }

// Judge sets the fields Time, Seen, Stopped and WasExiting of the failures of one attempt on this node, in the
// order in which the exits were observed. start is when the attempt began, and ordered when its first
// failure was observed and the other workers were told to stop.
func Judge(failures []Failure, start, ordered time.Time) {
	for i := range failures {
		f := &failures[i]
		switch {
		case f.ErrorFile != nil && !f.ErrorFile.Time.IsZero():
			f.Time = f.ErrorFile.Time
			if f.Time.Before(start) {
				f.Time = start
			}
			if f.Time.After(f.Exited) {
				f.Time = f.Exited
			}
		case f.IsLate:
			f.Time = f.Exited
		case f.crashed():
			f.Time, f.Seen = ordered, rootcause.Crashed
		default:
			f.Time, f.Seen = ordered, rootcause.Exited
		}
	}
	for i := range failures {
		f := &failures[i]
		if !f.Stopped || f.Status.IsSuccess() {
			continue
		}
		f.WasExiting = f.precedes(ordered)
		// A worker that fails closes its connections before it writes its error file. If the order
		// comes in between, its error file is too late. But the error files of its peers name it in time.
		if f.ErrorFile != nil && f.ErrorFile.CausedBy == nil && !f.ErrorFile.Interrupted {
			f.WasExiting = f.WasExiting || slices.ContainsFunc(failures, func(other Failure) bool {
				return other.precedes(ordered) && other.CausedBy() != nil && *other.CausedBy() == f.Rank
			})
		}
		f.Stopped = !f.WasExiting
	}
}

// precedes reports whether the failure was under way before golaunch told the workers to stop. Judge may have set
// the time of an exit that was observed earlier to the time of that order, so precedes does not compare it.
func (f *Failure) precedes(ordered time.Time) bool {
	return f.Seen != rootcause.Told || f.Time.Before(ordered)
}

// maxText is the number of bytes to which Bound cuts an error message, a stack, or all lines of stderr.
const maxText = 16 << 10

// Bound returns as many failures, from the first one on, as fit in size bytes of JSON. It cuts long texts to
// maxText bytes. If a failure then does not fit in the bytes that are left, Bound replaces it by its Brief.
func Bound(failures []Failure, size int) (bounded []Failure) {
	for _, f := range failures {
		if f.ErrorFile != nil {
			file := *f.ErrorFile
			file.Message, file.Callstack = bound(file.Message), bound(file.Callstack)
			f.ErrorFile = &file
		}
		f.Crash, f.Stderr = boundLines(f.Crash), boundLines(f.Stderr)
		n := len(mustMarshal(f))
		if n > size {
			f = f.Brief()
			n = len(mustMarshal(f))
		}
		if size -= n; size < 0 {
			break
		}
		bounded = append(bounded, f)
	}
	return bounded
}

// maxLine is the number of bytes to which Brief cuts an error message.
const maxLine = 256

// Brief returns the failure without its long texts. It keeps the first line of the error message, and everything
// from which the root cause is determined.
func (f Failure) Brief() Failure {
	if f.ErrorFile != nil {
		file := *f.ErrorFile
		file.Message, _, _ = strings.Cut(strings.TrimSpace(file.Message), "\n")
		file.Message, file.Callstack = file.Message[:min(len(file.Message), maxLine)], ""
		f.ErrorFile = &file
	}
	f.Crash, f.Stderr = nil, nil
	return f
}

func bound(text string) string { return text[:min(len(text), maxText)] }

func boundLines(lines []string) []string {
	if len(lines) == 0 {
		return nil
	}
	return strings.Split(bound(strings.Join(lines, "\n")), "\n")
}

// mustMarshal returns the JSON of v, which must be plain data.
func mustMarshal(v any) json.RawMessage {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return text
}
