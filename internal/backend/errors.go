package backend

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/goddp/goddp/internal/coordinator"
	"github.com/goddp/goddp/internal/ranklist"
)

// Why a call or a group failed; match with errors.Is.
var (
	// ErrTimeout: a call's deadline passed.
	ErrTimeout = errors.New("timed out")
	// ErrAborted: the group was aborted, on this rank or another one.
	ErrAborted = errors.New("process group aborted")
	// ErrPeerLost: another rank died, or the connection to it or to the coordinator broke.
	ErrPeerLost = errors.New("peer lost")
	// ErrClosed: the group was closed on this rank.
	ErrClosed = errors.New("process group closed")
)

// CallError is the failure of one call on one rank. It wraps its cause. Ranks are numbered as in
// the job, in groups from Split too.
type CallError struct {
	Rank  int
	Group string // name of a group from Split; empty: the group of all ranks
	Call  Fingerprint
	Name  string // the caller's name for the call
	Err   error
}

// OfCall returns err as the error of this rank's call c in the group of control.
func OfCall(control *coordinator.Group, c *Call, err error) *CallError {
	return &CallError{Rank: control.Rank(), Group: control.Name, Call: c.Fingerprint().InJob(control.Members), Name: c.Name, Err: err}
}

func (e *CallError) Error() string {
	name := ""
	if e.Name != "" {
		name = " " + e.Name
	}
	why := e.Err.Error()
	if aborted, ok := e.Err.(*AbortedError); ok && aborted.By == e.Rank {
		why = fmt.Sprintf("%v%s", ErrAborted, aborted.why())
	}
	group := ""
	if e.Group != "" {
		group = fmt.Sprintf("group %s: ", e.Group)
	}
	return fmt.Sprintf("rank %d: %s%v%s: %s", e.Rank, group, e.Call, name, why)
}

func (e *CallError) Unwrap() error { return e.Err }

// AbortedError says which other rank aborted the group. It matches ErrAborted.
type AbortedError struct {
	By  int
	Err error // the reason that rank By gave
}

func (e *AbortedError) Error() string {
	return fmt.Sprintf("%v: by rank %d%s", ErrAborted, e.By, e.why())
}

// why returns the text that follows the rank. It leaves out what that text already says: that the
// group was aborted, and by which rank.
func (e *AbortedError) why() string {
	why := e.Err.Error()
	if why == ErrAborted.Error() {
		return ""
	}
	why = strings.TrimPrefix(why, ErrAborted.Error()+": ")
	return ": " + strings.TrimPrefix(why, fmt.Sprintf("rank %d: ", e.By))
}

// Is makes errors.Is(err, ErrAborted) hold.
func (e *AbortedError) Is(target error) bool { return target == ErrAborted }

func (e *AbortedError) Unwrap() error { return e.Err }

// AbsentError says which ranks had not joined when the time for making the group was over. It
// matches ErrTimeout.
type AbsentError struct {
	Ranks []int
	Err   error // how the wait for them ended
}

func (e *AbsentError) Error() string {
	who := ranklist.Format(e.Ranks)
	if len(e.Ranks) == 1 {
		return fmt.Sprintf("%v: %s has not come: it did not start, ended before, or cannot reach the store", e.Err, who)
	}
	return fmt.Sprintf("%v: %s have not come: they did not start, ended before, or cannot reach the store", e.Err, who)
}

// Is makes errors.Is(err, ErrTimeout) hold.
func (e *AbsentError) Is(target error) bool { return target == ErrTimeout }

func (e *AbsentError) Unwrap() error { return e.Err }

// JoinError says which other rank could not join the group.
type JoinError struct {
	Rank int
	Err  error // the reason that this rank gave
}

func (e *JoinError) Error() string { return fmt.Sprintf("rank %d could not join: %v", e.Rank, e.Err) }

func (e *JoinError) Unwrap() error { return e.Err }

// PeerLostError says which rank was lost. It matches ErrPeerLost.
type PeerLostError struct {
	Peer int
	// Left is true if the peer closed the group without a failure while this rank still had calls that
	// need it. Otherwise the peer died or cannot be reached.
	Left bool
	Err  error // the transport's error; may be nil
}

func (e *PeerLostError) Error() string {
	switch {
	case e.Left:
		return fmt.Sprintf("rank %d left: it closed the process group", e.Peer)
	case e.Err != nil:
		return fmt.Sprintf("rank %d lost: %v", e.Peer, e.Err)
	}
	return fmt.Sprintf("rank %d lost: its process ended, or called exec", e.Peer)
}

// Is makes errors.Is(err, ErrPeerLost) hold.
func (e *PeerLostError) Is(target error) bool { return target == ErrPeerLost }

func (e *PeerLostError) Unwrap() error { return e.Err }

// MismatchError says that two ranks made different calls under the same number of the group: different
// operations, or the same operation with another size, type, reduction or root.
type MismatchError struct {
	Rank, Peer   int
	Mine, Theirs Fingerprint
	All          []Fingerprint // the fingerprints of all ranks of the group; nil if they were not compared
	Ranks        []int         // the job's number of each rank in All
}

func (e *MismatchError) Error() string {
	if len(e.All) > 0 {
		var b strings.Builder
		b.WriteString("ranks called different collectives:")
		sep := " "
		for r, f := range e.All {
			if slices.Index(e.All, f) < r {
				continue // an earlier rank has the same fingerprint
			}
			var same []int
			for s, g := range e.All {
				switch {
				case g != f:
				case s < len(e.Ranks):
					same = append(same, e.Ranks[s])
				default:
					same = append(same, s)
				}
			}
			fmt.Fprintf(&b, "%s%s %v", sep, ranklist.Format(same), f)
			sep = "; "
		}
		return b.String()
	}
	return fmt.Sprintf("ranks called different collectives: rank %d %v; rank %d %v", e.Rank, e.Mine, e.Peer, e.Theirs)
}

// UsageError says which rank made a call that is wrong whatever the other ranks do. No rank
// numbered or started that call.
type UsageError struct {
	Rank int
	Call string
	Msg  string
}

func (e *UsageError) Error() string { return fmt.Sprintf("rank %d: %s: %s", e.Rank, e.Call, e.Msg) }

// TimeoutError says that a call's deadline passed, and which ranks it waited for. It matches
// ErrTimeout.
type TimeoutError struct {
	After   time.Duration // the timeout
	State   State         // Queued or Running when the deadline passed
	Waiting []int         // ranks that had not done their part, as far as known
	// Diagnosis is one sentence on what the ranks' flight records show. It is empty if they were
	// not compared.
	Diagnosis string
}

func (e *TimeoutError) Error() string {
	s := fmt.Sprintf("timed out after %v while %v", e.After, e.State)
	if len(e.Waiting) > 0 {
		s += ", waiting for " + ranklist.Format(e.Waiting)
	}
	if e.Diagnosis != "" {
		s += ": " + e.Diagnosis
	}
	return s
}

// Is makes errors.Is(err, ErrTimeout) hold.
func (e *TimeoutError) Is(target error) bool { return target == ErrTimeout }
