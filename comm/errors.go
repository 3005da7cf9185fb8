package comm

import "github.com/goddp/goddp/internal/backend"

// The kinds of failures. Match them with errors.Is.
var (
	// ErrTimeout says that the deadline of a call, of Init or of Split has passed.
	ErrTimeout = backend.ErrTimeout
	// ErrAborted says that this rank or another one aborted the group.
	ErrAborted = backend.ErrAborted
	// ErrPeerLost says that another rank died, or that the connection to another rank or to the
	// coordinator broke.
	ErrPeerLost = backend.ErrPeerLost
	// ErrClosed says that this rank has closed the group.
	ErrClosed = backend.ErrClosed
)

// The types of errors. Match them with errors.As. They identify ranks by their numbers in the
// job.
type (
	// CallError is the failure of one call. Rank is the rank that reports the failure. Group is
	// the name of the group; it is empty for the group of all ranks. Call and Name identify the
	// call, and Err is the cause, which CallError wraps.
	CallError = backend.CallError
	// AbortedError says that rank By aborted the group, and why (Err). AbortedError matches
	// ErrAborted.
	AbortedError = backend.AbortedError
	// AbsentError names the Ranks that did not join Init or Split in time. AbsentError matches
	// ErrTimeout.
	AbsentError = backend.AbsentError
	// JoinError says that another rank, Rank, could not join Init or Split, and why (Err).
	JoinError = backend.JoinError
	// PeerLostError says that rank Peer is gone. If Left is set, Peer closed the group while
	// this rank still had calls that need Peer. If Left is not set, the process or the
	// connection of Peer ended. PeerLostError matches ErrPeerLost.
	PeerLostError = backend.PeerLostError
	// MismatchError says that ranks started different calls. Mine is the call of rank Rank, and
	// Theirs is the call of rank Peer. All holds the calls of all ranks if Options.CheckCalls
	// was set.
	MismatchError = backend.MismatchError
	// TimeoutError says that a call did not end within the time After. Waiting holds the ranks
	// that the call waited for, and Diagnosis is a sentence that says why the call waited, if
	// that is known. TimeoutError matches ErrTimeout.
	TimeoutError = backend.TimeoutError
	// UsageError is the panic value of a call that is wrong whatever the other ranks do. It is
	// also the cause with which the calls of the other ranks fail. Rank made the call that Call
	// names, and Msg says what is wrong.
	UsageError = backend.UsageError
)

// Fingerprint describes a call: its number Seq within the group, its Kind, its reduction Op,
// its element type DType, its number of elements Count and its Root. All ranks that take part
// in a call must have the same Fingerprint.
type Fingerprint = backend.Fingerprint

// Kind is the operation of a call, such as AllReduce. Its String method returns the name of the
// method of ProcessGroup that starts the call.
type Kind = backend.Kind

// ReduceOp is an operation that combines the elements of several ranks.
type ReduceOp = backend.ReduceOp

// The reductions. Avg of integers rounds towards zero. PreMulSum is for floating-point types:
// each rank's elements are multiplied by the rank's [CallOptions].Factor before they are
// summed, as with PyTorch's _make_nccl_premul_sum.
const (
	Sum     = backend.Sum
	Avg     = backend.Avg
	Min     = backend.Min
	Max     = backend.Max
	Product = backend.Product

	PreMulSum = backend.PreMulSum
)

// State is the state of a call.
type State = backend.State

// The states of a call. A Queued call waits for earlier calls or for its data. A Running
// call transfers data or waits for peers.
const (
	Queued  = backend.Queued
	Running = backend.Running
	Done    = backend.Done
	Failed  = backend.Failed
)
