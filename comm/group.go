package comm

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/awake"
	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/coordinator"
	"github.com/goddp/goddp/internal/flight"
	"github.com/goddp/goddp/store"
)

// ProcessGroup is one rank's end of a group of ranks. Its methods are safe
// for concurrent use, but the order of collectives is a contract between
// ranks: goroutines that start them side by side must agree on it.
type ProcessGroup struct {
	*group
	opts  CallOptions // what With has set
	batch *batch      // of the Coalesce that this view belongs to
}

// group is what all views of one process group share.
type group struct {
	name       string // equal on all its ranks
	record     *flight.Group
	stragglers *stragglers // nil where nobody asks
	rank, size int
	world      World
	dev        device.Device
	store      store.Store // this group's own view
	control    *coordinator.Group
	backend    backend.Backend
	wrap       func(backend.Backend) backend.Backend
	timeout    time.Duration
	log        *slog.Logger
	timed      atomic.Bool // somebody asked when a call began or was done

	// startMu makes the numbers of calls and the order in which the backend
	// sees them the same.
	startMu sync.Mutex
	seq     uint64   // of the last collective
	sends   []uint64 // of the last Send to each rank
	recvs   []uint64 // of the last Recv from each rank
	splits  int

	ctx       context.Context       // Init's: when it ends, the group is aborted
	stop      *stopper              // the process's, or this rank's where ranks are goroutines
	watchdog  *watchdogLoop         // shared by all groups of one Init
	closing   atomic.Bool           // the program closes the group: what fails now is its own doing
	aborted   atomic.Bool           // the program aborted it
	failure   atomic.Pointer[error] // of the first call that failed
	reported  atomic.Bool           // the program was told of a failure
	abandoned sync.WaitGroup        // calls on staged memory whose callers went on
	parent    *ProcessGroup         // that this one was split from, if any
	childMu   sync.Mutex
	children  []*ProcessGroup // split from this one

	closeOnce sync.Once
	closeErr  error
	release   releases
}

// ErrNoGroup is the error of what runs on a process group and was given nil.
var ErrNoGroup = errors.New("no process group: comm.Init makes one, also where there is one process")

// CallOptions are what one call may be given; see [ProcessGroup.With].
type CallOptions struct {
	// Name is what the call is called in errors and traces: "bucket 3".
	Name string
	// Timeout bounds the call, from the moment it is started; 0: the group's.
	Timeout time.Duration
	// Factor is what PreMulSum multiplies this rank's elements by. Ranks may
	// have different ones, such as their shares of a batch; 0 takes a rank's
	// elements out of the sum, where they are finite.
	Factor *float64
	// After orders the call behind an event: its data is ready then. nil: what
	// the device's compute stream was given so far.
	After device.Event
}

// With returns a view of the group whose calls have these options.
func (pg *ProcessGroup) With(o CallOptions) *ProcessGroup {
	return &ProcessGroup{group: pg.group, opts: o, batch: pg.batch}
}

// Rank is this process's number within the group, from 0.
func (g *group) Rank() int { return g.rank }

// Size is the number of ranks of the group.
func (g *group) Size() int { return g.size }

// World is this process's place in the job.
func (g *group) World() World { return g.world }

// Device is where the group's tensors live.
func (g *group) Device() device.Device { return g.dev }

// Store is the group's view of the job's key-value store, shared by its ranks
// and no others.
func (g *group) Store() store.Store { return g.store }

// Control is how the group's ranks tell each other what is no tensor. It is for the packages of
// this module.
func (g *group) Control() *coordinator.Group { return g.control }

// Timeout bounds each call that has no timeout of its own.
func (g *group) Timeout() time.Duration { return g.timeout }

// ErrorMode is what happens when a call fails.
func (g *group) ErrorMode() ErrorMode { return g.watchdog.mode }

// Log is where the group, and what is built on it, logs.
func (g *group) Log() *slog.Logger { return g.log }

// Backend is the name of the backend that moves the group's bytes: "host".
func (g *group) Backend() string { return g.backend.Name() }

// Alloc returns size bytes, zeroed, of the memory that the group's backend
// moves fastest. It is freed when nothing refers to it any more. Alloc panics with a
// [*UsageError] if size is negative.
func (g *group) Alloc(size int) (device.Buffer, error) {
	if size < 0 {
		panic(&UsageError{Rank: g.world.Rank, Call: "Alloc", Msg: fmt.Sprintf("%d bytes", size)})
	}
	b, err := g.backend.Alloc(size)
	if err != nil {
		return b, fmt.Errorf("rank %d: allocating %d bytes of communication memory: %w", g.rank, size, err)
	}
	return b, nil
}

// Failed tells whether the group is broken, as far as this rank knows: a call failed, or
// the program aborted it.
func (g *group) Failed() bool {
	return g.aborted.Load() || g.failure.Load() != nil || g.control.Failure() != nil
}

// OnShutdown has f run before the watchdog ends the process for a failure of a
// call, whose cause it is told; other modes than AsyncErrorHandling do not end
// it. f must return by the time that ctx ends, and can rely on nothing that
// another goroutine may be in the middle of.
func (g *group) OnShutdown(f func(ctx context.Context, cause error)) { g.watchdog.onShutdown(f) }

// Abort breaks the group, and those split from it, and no others: their pending and later
// calls, on this rank, return an error that matches ErrAborted and wraps cause. Those of the
// other ranks soon fail as well.
func (g *group) Abort(cause error) {
	if !g.Failed() {
		g.watchdog.recorder.Abort()
	}
	g.aborted.Store(true)
	for _, c := range g.split() {
		c.Abort(cause)
	}
	err := ErrAborted
	if cause != nil {
		err = fmt.Errorf("%w: %w", ErrAborted, cause)
	}
	g.backend.Abort(err)
}

// split returns the groups split from this one.
func (g *group) split() []*ProcessGroup {
	g.childMu.Lock()
	defer g.childMu.Unlock()
	return slices.Clone(g.children)
}

// forget notes that a group split from this one is closed on its own.
func (g *group) forget(child *group) {
	g.childMu.Lock()
	defer g.childMu.Unlock()
	g.children = slices.DeleteFunc(g.children, func(c *ProcessGroup) bool { return c.group == child })
}

// closeGrace bounds how long Close waits for calls in flight and for peers.
const closeGrace = 10 * time.Second

// Close leaves the group, and those split from it, in good order: it waits a
// bounded time for pending calls and releases what the group owns. Calls made
// after it return ErrClosed. Closing again does nothing. Its error is that calls did
// not end, or that one failed while the program was told of no failure in the group,
// since it did not wait; that is logged as well. A Recv that no Send came for is such a
// call.
func (g *group) Close() error {
	g.closeOnce.Do(func() {
		g.closing.Store(true)
		if g.parent == nil {
			g.watchdog.leave()
		} else {
			g.parent.forget(g)
			defer g.watchdog.remove(g)
		}
		var errs []error
		for _, c := range g.split() {
			errs = append(errs, c.Close())
		}
		ctx, cancel := awake.WithTimeout(context.Background(), closeGrace)
		defer cancel()
		err := g.release.run(ctx)
		if e := g.failure.Load(); e != nil && !g.reported.Load() && !g.aborted.Load() {
			err = errors.Join(err, fmt.Errorf("a call failed that nobody waited for: %w", *e))
			g.log.Warn("a call failed that nobody waited for", "group", g.name, "rank", g.rank, "error", *e)
		}
		g.closeErr = errors.Join(append(errs, err)...)
	})
	return g.closeErr
}
