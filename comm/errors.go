package comm

import "github.com/goddp/goddp/internal/backend"

// Why a call or a group failed; match with errors.Is. They are the backend
// package's own.
var (
	ErrTimeout  = backend.ErrTimeout
	ErrAborted  = backend.ErrAborted
	ErrPeerLost = backend.ErrPeerLost
	ErrClosed   = backend.ErrClosed
)

// The types behind them; match with errors.As.
type (
	// CallError is the failure of one call: which rank, which call, why. Ranks in it, and in
	// all other errors, are the job's.
	CallError = backend.CallError
	// AbortedError says which other rank aborted the group, and why.
	AbortedError = backend.AbortedError
	// AbsentError says which ranks did not come to Init, or to Split.
	AbsentError = backend.AbsentError
	// JoinError says which other rank could not come to Init, or to Split, and why.
	JoinError = backend.JoinError
	// PeerLostError says which rank was lost.
	PeerLostError = backend.PeerLostError
	// MismatchError says which two ranks called what.
	MismatchError = backend.MismatchError
	// TimeoutError says which ranks a call waited for.
	TimeoutError = backend.TimeoutError
	// UsageError is the panic value of a call that cannot be right whatever the
	// other ranks do, and the cause that the other ranks' calls fail with.
	UsageError = backend.UsageError
)

// ReduceOp is how elements of several ranks are combined.
type ReduceOp = backend.ReduceOp

// The reductions. Avg of integers rounds towards zero. PreMulSum, for
// floating-point types, has each rank multiply its elements by a factor of its
// own, [CallOptions].Factor, before they are summed, as NCCL does, and PyTorch
// with what _make_nccl_premul_sum returns.
const (
	Sum     = backend.Sum
	Avg     = backend.Avg
	Min     = backend.Min
	Max     = backend.Max
	Product = backend.Product

	PreMulSum = backend.PreMulSum
)

// State is where a call is: queued, running, done or failed.
type State = backend.State

// The states of a call.
const (
	Queued  = backend.Queued
	Running = backend.Running
	Done    = backend.Done
	Failed  = backend.Failed
)
