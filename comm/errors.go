package comm

import "github.com/goddp/goddp/internal/backend"

// The kinds of failures. Match them with errors.Is.
var (
	// ErrTimeout says that the deadline of a call, or of making a group, passed.
	ErrTimeout = backend.ErrTimeout
	// ErrAborted says that this rank or another one aborted the group.
	ErrAborted = backend.ErrAborted
	// ErrPeerLost says that another rank died, or that its connection or the coordinator's
	// broke.
	ErrPeerLost = backend.ErrPeerLost
	// ErrClosed says that this rank has closed the group.
	ErrClosed = backend.ErrClosed
)

// The types of errors. Match them with errors.As. They identify ranks by their numbers in the
// job.
type (
	// CallError is the failure of one call. Rank is the rank that reports it. Group is the
	// name of the group, empty for the group of all ranks. Call and Name identify the call,
	// and Err is the cause, which CallError wraps.
	CallError = backend.CallError
	// AbortedError says that rank By aborted the group, and why (Err). It matches ErrAborted.
	AbortedError = backend.AbortedError
	// AbsentError names the Ranks that did not join Init or Split in time. It matches
	// ErrTimeout.
	AbsentError = backend.AbsentError
	// JoinError says that another rank, Rank, could not join Init or Split, and why (Err).
	JoinError = backend.JoinError
	// PeerLostError says that rank Peer is gone. If Left is set, Peer closed the group while
	// this rank still had calls for it; else its process or its connection ended. It matches
	// ErrPeerLost.
	PeerLostError = backend.PeerLostError
	// MismatchError says that ranks started different calls. Mine is the call of Rank,
	// Theirs that of Peer. All holds the calls of all ranks if they were compared.
	MismatchError = backend.MismatchError
	// TimeoutError says that a call did not end within After. Waiting are the ranks that it
	// waited for, and Diagnosis is a sentence that says why, if known. It matches ErrTimeout.
	TimeoutError = backend.TimeoutError
	// UsageError is the panic value of a call that is wrong whatever the other ranks do. It
	// is also the cause with which the calls of the other ranks fail. Rank made the call
	// named Call; Msg says what is wrong.
	UsageError = backend.UsageError
)

// Fingerprint describes a call: its number Seq within the group, its Kind, its reduction Op,
// its element type DType, its number of elements Count and its Root. It must be equal on all
// ranks that take part in the call.
type Fingerprint = backend.Fingerprint

// Kind is the operation of a call, such as AllReduce. Its String method returns the name of
// the ProcessGroup's method.
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

// The states of a call. A Queued call waits for earlier calls or for its data. A Running one
// transfers data or waits for peers.
const (
	Queued  = backend.Queued
	Running = backend.Running
	Done    = backend.Done
	Failed  = backend.Failed
)
