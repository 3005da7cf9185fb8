package backend

import (
	"context"
	"log/slog"
	"time"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/coordinator"
)

// Config is what a backend needs to know of its group.
type Config struct {
	Rank, Size int
	// Control is how the ranks tell each other all that is no tensor.
	Control *coordinator.Group
	// Device is where the tensors live.
	Device device.Device
	// Timeout bounds the making of the group.
	Timeout time.Duration
	Log     *slog.Logger
}

// Backend is one rank's end of one group. Its methods are safe for concurrent
// use.
type Backend interface {
	// Name is the backend's name: "host", "nccl".
	Name() string
	// Alloc returns size bytes, zeroed, of the memory that this backend
	// moves fastest. The memory is freed when nothing refers to it any more.
	Alloc(size int) (device.Buffer, error)
	// Start enqueues a call and returns at once. The caller has validated
	// the call; its tensors stay untouched by others until the task is done.
	// The error is that of a group already broken or closed; any other one comm reports.
	Start(c *Call) (Task, error)
	// Split makes a backend for a subset of the group's ranks, all of which
	// call it, cfg holding their new numbers; members[i] is the rank, in
	// this group, of the new group's rank i. It ends when this group does.
	Split(ctx context.Context, cfg Config, members []int) (Backend, error)
	// Abort breaks the group: every pending call ends soon with cause, on the
	// other ranks too. It returns when they know, and waits a short time at most for
	// one that does not run. The first cause stays. A cause that is a [*CallError] of a pending call is that call's
	// error, and the others say that it broke the group. A cause that matches
	// [ErrAborted], which nil stands for, is the program's wish: it breaks this
	// group alone. Any other one is a failure, and breaks all groups of the job.
	Abort(cause error)
	// Close ends the group: it waits, while ctx lasts, for pending calls,
	// tells the peers that this rank left in good order, and releases
	// everything. No goroutine of the backend is left when it returns.
	Close(ctx context.Context) error
}

// Task is a started call.
type Task interface {
	// Join makes later work on s run after the call. On a stream that runs
	// work inline it blocks until the call is done. The error is the call's,
	// where it is known by then.
	Join(ctx context.Context, s device.Stream) error
	// Sync blocks until the call is done or ctx ends. The error is the
	// call's, or ctx's cause: the call itself then goes on.
	Sync(ctx context.Context) error
	// State tells where the call is; with Failed, why.
	State() (State, error)
	// Span is when the call began to run and when it was done, on the host's
	// clock; zero Times for what has not happened.
	Span() (began, done time.Time)
	// Waiting is the ranks of the job that a running call waits for, as far as
	// the transport knows. It does not block.
	Waiting() []int
}

// Observer is told how a call goes on, each step once: a call that fails may
// never have run. Its methods return at once, and call nothing of the backend.
type Observer interface {
	// Running tells that the call's turn has come: it moves bytes, or waits
	// for peers.
	Running(at time.Time)
	// Ended tells that the call is done, or why it failed. Whoever waits for
	// the call's end is woken after it.
	Ended(at time.Time, err error)
}

// State is where a started call is.
type State uint8

// The states of a call, in order.
const (
	Queued  State = iota // behind earlier calls, or its After event
	Running              // moving bytes, or waiting for peers
	Done
	Failed
)

func (s State) String() string {
	return [...]string{"queued", "running", "done", "failed"}[s]
}
