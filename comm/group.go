package comm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/goddp/goddp/comm/failure"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/awake"
	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/capture"
	"github.com/goddp/goddp/internal/coordinator"
	"github.com/goddp/goddp/internal/flight"
	"github.com/goddp/goddp/profile"
)

// ProcessGroup is one rank's handle on a group of ranks. Its methods are safe for
// concurrent use, except Reconfigure. All ranks must start the same collectives in the same order, so
// goroutines of one rank that start collectives concurrently must agree on an order.
// While one goroutine captures a step (autograd.Capture), calls of others are started later.
type ProcessGroup struct {
	*handle
	opts  CallOptions // set by With
	batch *batch      // the Coalesce that this view collects calls for; nil outside Coalesce
}

// handle is what all views of one process group share.
type handle struct {
	*group          // Reconfigure replaces it
	joiner *joiner  // what Reconfigure needs to know; nil for a group that was split from another one
	epoch  int      // the number of the membership; 0 before the first Reconfigure
	kept   releases // releases what outlives a Reconfigure, when the program closes the group

	closeOnce sync.Once
	closeErr  error
}

// group is a process group with fixed members.
type group struct {
	name        string // the same on all ranks of the group
	record      *flight.Group
	stragglers  *stragglers // nil if stragglers are not reported
	rank, size  int
	world       World
	dev         device.Device
	control     *coordinator.Group
	backend     backend.Backend
	wrapBackend func(backend.Backend) backend.Backend
	sharer      backend.Sharer // the backend before wrapBackend, or nil
	timeout     time.Duration
	log         *slog.Logger
	timed       atomic.Bool       // the program has asked when a call started or ended
	trace       *profile.Recorder // the device's recorder: while it records, calls are timed

	// start holds startMu while it assigns a sequence number and passes the call to the backend, so
	// that the backend sees the calls in sequence order.
	startMu sync.Mutex
	seq     uint64   // number of the latest collective
	sends   []uint64 // number of the latest Send to each rank
	recvs   []uint64 // number of the latest Recv from each rank
	splits  int      // number of calls of Split

	capturing     *sync.RWMutex  // see capture.Guard
	capturedCalls *capturedCalls // the calls of the step that is being captured; nil without one. Only the goroutine that captures uses it.

	main     *mainRun // the run of Main that the group was made in; nil outside Main
	stop     *stopper // holds the stop requests of this rank
	watchdog *watchdogLoop
	closing  atomic.Bool           // Close was called
	aborted  atomic.Bool           // Abort was called
	failure  atomic.Pointer[error] // the first failure of a call
	reported atomic.Bool           // a method of the group or of a Work has returned a failure to the program
	staging  sync.RWMutex          // held for reading while there is staged memory, and for ever by Close
	parent   *group                // the group that this one was split from; nil for the group of Init
	childMu  sync.Mutex
	children []*ProcessGroup // the open groups that were split from this one
	release  releases
}

// ErrNoGroup is the error of a function that needs a process group and is given nil.
var ErrNoGroup = errors.New("the process group is nil: want one from comm.Init, even for a single process")

// CallOptions are options of a single call; see [ProcessGroup.With].
type CallOptions struct {
	// Name is the call's name in errors and traces, such as "bucket 3".
	Name string
	// Timeout bounds the call, counted from its start. 0 means the group's timeout.
	Timeout time.Duration
	// Factor is the number that PreMulSum multiplies this rank's elements by. Ranks may
	// give different factors, such as their shares of a batch. A factor of 0 removes a
	// rank's elements from the sum, provided that they are finite.
	Factor *float64
	// After is the event at which the call's data is ready. nil means that the data is ready
	// when the device's compute stream has finished the work that was enqueued before the call.
	After device.Event
}

// With returns a view of the group. Calls on the view have exactly these options: options of an earlier With
// do not apply.
func (pg *ProcessGroup) With(opts *CallOptions) *ProcessGroup {
	return &ProcessGroup{handle: pg.handle, opts: *cmp.Or(opts, &CallOptions{}), batch: pg.batch}
}

// Rank returns this process's number within the group, counted from 0.
func (pg *ProcessGroup) Rank() int { return pg.rank }

// Size returns the number of ranks in the group.
func (pg *ProcessGroup) Size() int { return pg.size }

// World returns this process's place in the job.
func (pg *ProcessGroup) World() World { return pg.world }

// Device returns the device that the group's tensors live on.
func (pg *ProcessGroup) Device() device.Device { return pg.dev }

// Post publishes this rank's value of key, of at most 8 MiB, for the other ranks of the group. It replaces
// the value that this rank has published before; an empty value withdraws it. Unlike collectives, Post and
// Posted may be called by any goroutine and in any order, and work after a call has failed.
func (pg *ProcessGroup) Post(ctx context.Context, key string, value []byte) error {
	return pg.control.Post(ctx, key, value)
}

// Posted waits until the given ranks have published a value of key, and returns their latest values.
// It returns an error if one of them has left or is lost, and has published none.
func (pg *ProcessGroup) Posted(ctx context.Context, key string, ranks ...int) ([][]byte, error) {
	members := make([]int, len(ranks))
	for i, r := range ranks {
		members[i] = pg.inJob(r)
	}
	return pg.control.Posted(ctx, key, members)
}

// inJob returns the number in the job of a rank of the group.
func (g *group) inJob(rank int) int {
	if rank < len(g.control.Members) {
		return g.control.Members[rank]
	}
	return rank // this process is pending: see pending
}

// Timeout returns the default timeout of the group's calls.
func (pg *ProcessGroup) Timeout() time.Duration { return pg.timeout }

// ErrorMode returns how the group handles a failed call.
func (pg *ProcessGroup) ErrorMode() ErrorMode { return pg.watchdog.mode }

// Log returns the logger of the group and of the packages built on it.
func (pg *ProcessGroup) Log() *slog.Logger { return pg.log }

// Backend returns the name of the group's backend: "host" or "nccl".
func (pg *ProcessGroup) Backend() string { return pg.backend.Name() }

// Alloc returns size zeroed bytes of the memory that the group's backend transfers
// fastest. The memory is freed when nothing refers to it any more. Alloc panics with a
// [*failure.UsageError] if size is negative.
func (pg *ProcessGroup) Alloc(size int) (device.Buffer, error) {
	if size < 0 {
		panic(&failure.UsageError{Rank: pg.world.Rank, Call: "Alloc", Msg: fmt.Sprintf("%d bytes", size)})
	}
	if r := capture.Of(pg.dev); r != nil {
		return device.Buffer{}, r.NotYet("rank %d allocates %d bytes of communication memory", pg.rank, size)
	}
	b, err := pg.backend.Alloc(size)
	if err != nil {
		return b, fmt.Errorf("rank %d: allocating %d bytes of communication memory: %w", pg.rank, size, err)
	}
	return b, nil
}

// Failed reports whether this rank knows that the group is broken: a call failed, or the
// program called Abort.
func (g *group) Failed() bool {
	return g.aborted.Load() || g.failure.Load() != nil || g.control.Failure() != nil
}

// OnShutdown registers f, which the watchdog calls before it ends the process because a call has
// failed. The watchdog ends the process only in the mode AsyncErrorHandling. cause is the failure.
// f must return before ctx ends. Other goroutines still run while f runs, so f must not rely on
// state that another goroutine may be changing.
func (pg *ProcessGroup) OnShutdown(f func(ctx context.Context, cause error)) {
	pg.watchdog.onShutdown(f)
}

// Abort breaks this group and the groups split from it, but no other group. On this rank,
// pending and later calls return an error that matches ErrAborted and wraps cause. The
// calls of the other ranks fail soon afterwards.
func (g *group) Abort(cause error) {
	if !g.Failed() {
		g.watchdog.recorder.Abort()
	}
	g.aborted.Store(true)
	for _, c := range g.openChildren() {
		c.Abort(cause)
	}
	err := ErrAborted
	if cause != nil {
		err = fmt.Errorf("%w: %w", ErrAborted, cause)
	}
	g.backend.Abort(err)
}

// openChildren returns the groups that were split from this one and are not closed.
func (g *group) openChildren() []*ProcessGroup {
	g.childMu.Lock()
	defer g.childMu.Unlock()
	return slices.Clone(g.children)
}

// removeChild removes child, which has been closed, from the groups that were split from this
// one.
func (g *group) removeChild(child *group) {
	g.childMu.Lock()
	defer g.childMu.Unlock()
	g.children = slices.DeleteFunc(g.children, func(c *ProcessGroup) bool { return c.group == child })
}

// closeGrace bounds how long Close waits for calls in flight and for the other ranks.
const closeGrace = 10 * time.Second

// Close waits a bounded time for pending calls, closes the groups split from this one, and
// releases the group's resources. Calls made after Close return ErrClosed. A second Close does
// nothing and returns the same error.
//
// Close returns an error if calls did not end in time. Close also returns, and logs, the
// failure of a call if no method has returned a failure of this group to the program before. An
// example is a Recv for which the program does not wait and which no Send matches.
func (pg *ProcessGroup) Close() error {
	pg.closeOnce.Do(func() {
		err := pg.group.close()
		pg.closeErr = errors.Join(err, pg.kept.run(context.WithoutCancel(pg.watchdog.ctx)))
	})
	return pg.closeErr
}

// close does what Close does, except that it keeps what outlives a Reconfigure. A second call does nothing.
func (g *group) close() error {
	if g.closing.Swap(true) {
		return nil
	}
	if g.parent == nil {
		g.watchdog.leave()
	} else {
		g.parent.removeChild(g)
		defer g.watchdog.remove(g)
	}
	var errs []error
	for _, c := range g.openChildren() {
		errs = append(errs, c.Close())
	}
	ctx, cancel := awake.WithTimeout(context.WithoutCancel(g.watchdog.ctx), closeGrace)
	defer cancel()
	err := g.release.run(ctx)
	if e := g.failure.Load(); e != nil && !g.reported.Load() && !g.aborted.Load() {
		err = errors.Join(err, fmt.Errorf("a call failed, and the program did not wait for it: %w", *e))
		g.log.Warn("a call failed, and the program did not wait for it", "group", g.name, "rank", g.rank, "error", *e)
	}
	return errors.Join(append(errs, err)...)
}
