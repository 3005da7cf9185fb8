package comm

import (
	"github.com/goddp/goddp/comm/failure"
	"github.com/goddp/goddp/internal/backend"
)

// The kinds of failures. Match them with errors.Is. Package failure has the types of the errors.
var (
	// ErrTimeout says that the deadline of a call, of Init or of Split has passed.
	ErrTimeout = failure.ErrTimeout
	// ErrAborted says that this rank or another one aborted the group.
	ErrAborted = failure.ErrAborted
	// ErrPeerLost says that another rank died, or that the connection to another rank or to the
	// coordinator broke.
	ErrPeerLost = failure.ErrPeerLost
	// ErrClosed says that this rank has closed the group.
	ErrClosed = failure.ErrClosed
)

// ReduceOp is an operation that combines the elements of several ranks.
type ReduceOp uint8

// The reductions. Avg of integers rounds towards zero. PreMulSum is for floating-point types:
// each rank's elements are multiplied by the rank's [CallOptions].Factor before they are
// summed, as with PyTorch's _make_nccl_premul_sum.
const (
	Sum       = ReduceOp(backend.Sum)
	Avg       = ReduceOp(backend.Avg)
	Min       = ReduceOp(backend.Min)
	Max       = ReduceOp(backend.Max)
	Product   = ReduceOp(backend.Product)
	PreMulSum = ReduceOp(backend.PreMulSum)
)

func (o ReduceOp) String() string { return backend.ReduceOp(o).String() }
