// Package failure holds the errors of process groups. Match their kinds with errors.Is and ErrTimeout,
// ErrAborted, ErrPeerLost and ErrClosed, which package comm exports too, and their types, which name
// ranks and calls, with errors.As:
//
//	var lost *failure.PeerLostError
//	if errors.As(err, &lost) {
//		log.Printf("rank %d is gone", lost.Peer)
//	}
//
// Ranks are global ranks, also in groups made by Split. A call is written as "AllReduce #3(sum,
// float32, 5 elements)", where 3 is its sequence number in the group.
package failure

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/goddp/goddp/internal/rootcause"
)

// The kinds of failures. Match them with errors.Is.
var (
	// ErrTimeout says that the deadline of a call, of Init or of Split has passed.
	ErrTimeout = errors.New("timed out")
	// ErrAborted says that this rank or another one aborted the group.
	ErrAborted = errors.New("process group aborted")
	// ErrPeerLost says that another rank died, or that the connection to another rank or to the
	// coordinator broke.
	ErrPeerLost = errors.New("peer lost")
	// ErrClosed says that this rank has closed the group.
	ErrClosed = errors.New("process group closed")
)

// CallError is the failure of one call.
type CallError struct {
	Rank  int    // the rank that reports the failure
	Group string // name of a group from Split; empty: the group of all ranks
	Call  string
	Name  string // the caller's name for the call, such as "bucket 3"
	Err   error  // the cause, which CallError wraps
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

// AbortedError says which rank aborted the group. It matches ErrAborted.
type AbortedError struct {
	By  int
	Err error // the reason that rank By gave
}

func (e *AbortedError) Error() string {
	return fmt.Sprintf("%v: by rank %d%s", ErrAborted, e.By, e.why())
}

// why returns the reason that follows the rank in the error's text. It omits what the text has already
// said: that the group was aborted, and by which rank.
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

// AbsentError says which ranks did not join Init or Split in time. It matches ErrTimeout.
type AbsentError struct {
	Ranks []int
	Err   error // the error that ended the wait for these ranks
}

func (e *AbsentError) Error() string {
	who := rootcause.Ranks(e.Ranks)
	if len(e.Ranks) == 1 {
		return fmt.Sprintf("%v: %s has not joined: it did not start, ended early, or cannot reach the store", e.Err, who)
	}
	return fmt.Sprintf("%v: %s have not joined: they did not start, ended early, or cannot reach the store", e.Err, who)
}

// Is makes errors.Is(err, ErrTimeout) hold.
func (e *AbsentError) Is(target error) bool { return target == ErrTimeout }

func (e *AbsentError) Unwrap() error { return e.Err }

// JoinError says which other rank could not join Init or Split.
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
	Mine, Theirs string   // the calls of Rank and of Peer
	All          []string // the calls of all ranks of the group; nil unless Options.CheckCalls was set
	Ranks        []int    // the job's number of each rank in All
}

func (e *MismatchError) Error() string {
	if len(e.All) > 0 {
		var b strings.Builder
		b.WriteString("ranks called different collectives:")
		sep := " "
		for r, f := range e.All {
			if slices.Index(e.All, f) < r {
				continue // an earlier rank has made the same call
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
			fmt.Fprintf(&b, "%s%s %v", sep, rootcause.Ranks(same), f)
			sep = "; "
		}
		return b.String()
	}
	return fmt.Sprintf("ranks called different collectives: rank %d %v; rank %d %v", e.Rank, e.Mine, e.Peer, e.Theirs)
}

// UsageError is the panic value of a call with invalid arguments. It is also the cause with which the
// other ranks' calls fail.
type UsageError struct {
	Rank int    // the rank that made the call
	Call string // the name of the method
	Msg  string // what is wrong
}

func (e *UsageError) Error() string { return fmt.Sprintf("rank %d: %s: %s", e.Rank, e.Call, e.Msg) }

// TimeoutError says that a call's deadline passed, and which ranks it waited for. It matches
// ErrTimeout.
type TimeoutError struct {
	After   time.Duration // the timeout
	Running bool          // true: the call had begun to run; false: it still waited for earlier calls or for its data
	Waiting []int         // ranks that had not done their part, as far as known
	// Diagnosis says in one sentence what the ranks' flight records show. It is empty if they were not
	// compared.
	Diagnosis string
}

func (e *TimeoutError) Error() string {
	state := "queued"
	if e.Running {
		state = "running"
	}
	s := fmt.Sprintf("timed out after %v while %s", e.After, state)
	if len(e.Waiting) > 0 {
		s += ", waiting for " + rootcause.Ranks(e.Waiting)
	}
	if e.Diagnosis != "" {
		s += ": " + e.Diagnosis
	}
	return s
}

// Is makes errors.Is(err, ErrTimeout) hold.
func (e *TimeoutError) Is(target error) bool { return target == ErrTimeout }
