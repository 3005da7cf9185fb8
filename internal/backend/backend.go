package backend

import (
	"context"
	"log/slog"
	"time"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/coordinator"
)

// Config describes the group to make.
type Config struct {
	Rank, Size int
	// Control is this rank's part of the group at the coordinator.
	Control *coordinator.Group
	// Device is the device of the tensors.
	Device device.Device
	// Timeout limits how long creating the group may take.
	Timeout time.Duration
	Log     *slog.Logger
}

// Backend is one rank's end of one group. Its methods are safe for concurrent use.
type Backend interface {
	// Name returns the backend's name: "host" or "nccl".
	Name() string
	// Alloc returns size zeroed bytes of the memory that this backend moves fastest. The memory is
	// freed once nothing refers to the buffer.
	Alloc(size int) (device.Buffer, error)
	// Start enqueues a call and returns at once. The caller must have validated the call, and must
	// not touch its tensors until the task is done. If the group is broken or closed, Start returns
	// the cause. comm reports any other error of Start to the coordinator.
	Start(c *Call) (Task, error)
	// Split makes a backend for a subset of the group's ranks. Every member calls it. cfg holds the
	// rank and size in the new group; members[i] is the rank, in this group, of the new group's
	// rank i. The new group fails when this group breaks while it is being made.
	Split(ctx context.Context, cfg Config, members []int) (Backend, error)
	// Abort breaks the group with cause and ends every pending call, on the other ranks too. It returns
	// when the other ranks know the cause, but does not wait long for a suspended rank. Only the first
	// cause counts. If cause is a [*failure.CallError] of a pending call, that call ends with it, and the
	// other calls end with errors that wrap it. If cause is nil or matches [failure.ErrAborted], only this
	// group breaks. Any other cause is a failure and breaks all groups of the job.
	Abort(cause error)
	// Close ends the group. It waits for pending calls while ctx lasts, tells the other ranks that
	// this rank left without a failure, and releases all resources. When it returns, no goroutine of
	// the backend is left.
	Close(ctx context.Context) error
}

// Sharer is a Backend whose ranks may use each other's memory. If a group breaks, Close does not free that memory.
type Sharer interface {
	// Unmap gives up the other ranks' memory. It is called after Close, when the group has no work on the device.
	Unmap()
	// Free frees this rank's memory. It is called when all other ranks have called Unmap, or their processes have ended.
	Free()
}

// Wrap makes options, a *comm.Options, put wrap around the backend of the group that is made with them, and
// around the backends of the groups split from that group. Tests use it to observe, delay or fail calls.
// Package comm sets the variable, because its options must not show the contract.
var Wrap func(options any, wrap func(Backend) Backend)

// Survive makes options, a *comm.Options, let the job of comm.Local survive the loss of ranks. Kill loses the rank of
// such a job whose *comm.ProcessGroup is pg, as if its process had died. Replacement returns the *comm.ProcessGroup of a
// worker with a new number, which can join the job of pg after a loss.
var (
	Survive     func(options any)
	Kill        func(pg any)
	Replacement func(pg any, worker int) (any, error)
)

// Refusal returns a word in the host's memory, of 8 bytes, for pg, a *comm.ProcessGroup on a GPU whose job survives the
// loss of ranks. Otherwise it returns the zero Buffer. The word is zero until the group fails. It is set before any rank
// aborts a transfer of the group. So if the device reads zero after a reduction, the reduction has received all data.
var Refusal func(pg any) device.Buffer

// Task is a started call.
type Task interface {
	// Join makes later work on s wait for the call. If s runs its work inline, as the CPU's streams
	// do, Join blocks until the call is done. Join returns the call's error if it is known by then.
	Join(ctx context.Context, s device.Stream) error
	// Sync blocks until the call is done, and returns its error. If ctx ends first, Sync returns
	// ctx's cause and the call goes on.
	Sync(ctx context.Context) error
	// State returns the call's state. If it is Failed, the error says why.
	State() (State, error)
	// Span returns when the call began to run and when it was done, by the host's clock. A time
	// that is not known yet is zero.
	Span() (began, done time.Time)
	// Waiting returns the global ranks that a running call waits for, as far as the transport knows them.
	// It does not block.
	Waiting() []int
}

// Observer is notified of a call's progress. Each method is called at most once; a call can fail without
// having run. The methods must return at once and must not call the backend.
type Observer interface {
	// Running is called when the call's turn comes: from then on it moves bytes or waits for peers.
	Running(at time.Time)
	// Ended is called when the call is done; err says why it failed. Goroutines that wait for the
	// call are woken after Ended returns.
	Ended(at time.Time, err error)
}

// State is the state of a started call.
type State uint8

// The states of a call, in the order in which a call passes them.
const (
	Queued  State = iota // waits for earlier calls or for its After event
	Running              // moves bytes or waits for peers
	Done
	Failed
)

func (s State) String() string {
	return [...]string{"queued", "running", "done", "failed"}[s]
}
