package comm

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"time"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/awake"
	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/flight"
	"github.com/goddp/goddp/store"
)

// DefaultTimeout bounds a call where nothing else does.
const DefaultTimeout = 10 * time.Minute

// Options are how a group is made. The zero value is the good default.
type Options struct {
	// World is this process's place in the job; nil: WorldFromEnv. A LocalSize
	// of 0 is Size.
	World *World
	// Store is the job's store; nil: the one at the world's master address,
	// which rank 0 hosts unless the launcher does.
	Store store.Store
	// Device is where the group's tensors live; nil: the one that suits the
	// local rank, or that GODDP_DEVICE names.
	Device device.Device
	// Timeout bounds the making of the group, and each call that has no
	// timeout of its own; 0: DefaultTimeout.
	Timeout time.Duration
	// ErrorMode is what a failed call leads to; DefaultErrorMode: what the
	// environment says.
	ErrorMode ErrorMode
	// CheckCalls has every collective wait for all ranks and compare their
	// calls before it runs, which costs some time; a mismatch is then an error
	// that holds the calls of all ranks. GODDP_DEBUG=DETAIL, or
	// TORCH_DISTRIBUTED_DEBUG=DETAIL, switches it on too.
	CheckCalls bool
	// ShutdownTimeout bounds the functions given to OnShutdown; 0:
	// DefaultShutdownTimeout.
	ShutdownTimeout time.Duration
	// Log receives what the group has to say; nil: slog.Default.
	Log *slog.Logger
	// WrapBackend, if not nil, is put around the backend of the group, and of
	// the groups split from it: to watch, delay or fail its calls.
	WrapBackend func(backend.Backend) backend.Backend

	// What the environment says, by settle.
	heartbeat  time.Duration // for how long the watchdog may be stuck
	monitoring bool          // whether the process ends when it is

	reportStragglers bool // whether to tell which ranks hold the others up
	flight           flight.Settings
	dumps            func() (string, error) // the folder for flight records; nil: none are written
	member           store.Member           // this process in the job

	exit func(code int) // os.Exit, but for tests
}

func (o *Options) orDefaults() Options {
	var d Options
	if o != nil {
		d = *o
	}
	if d.Timeout == 0 {
		d.Timeout = DefaultTimeout
	}
	if d.ShutdownTimeout == 0 {
		d.ShutdownTimeout = DefaultShutdownTimeout
	}
	if d.exit == nil {
		d.exit = os.Exit
	}
	if d.Log == nil {
		d.Log = slog.Default()
	}
	if d.WrapBackend == nil {
		d.WrapBackend = func(b backend.Backend) backend.Backend { return b }
	}
	return d
}

// Init joins the job's process group and returns when all its ranks have. The
// error is an [*AbsentError] where some did not come in time.
// ctx bounds the group's life, not only Init: when it ends, the group is
// aborted with ctx's cause.
//
// On a GPU the calling goroutine is locked to its thread for good, as by
// [runtime.LockOSThread]; Close does not unlock it. Otherwise Go may move it to
// another thread with every wait, where what the driver needs for the next call
// is in no cache. A channel that it waits at costs a switch of threads more. To
// keep a goroutine free, have another one call Init.
//
// A process may Init again after Close, as often as all the others do; after
// an Init that failed, only when it failed on all of them.
func Init(ctx context.Context, opts *Options) (*ProcessGroup, error) {
	o := opts.orDefaults()
	if err := o.settle(); err != nil {
		return nil, err
	}
	w, err := o.world()
	if err != nil {
		return nil, err
	}
	o.World = &w
	if o.member, err = w.member(); err != nil {
		return nil, err
	}
	pg, err := meet(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("rank %d of %d: joining the process group: %w", o.World.Rank, o.World.Size, err)
	}
	closeOnReturn(ctx, pg)
	if isGPU(pg.dev) {
		runtime.LockOSThread()
	}
	return pg, nil
}

// world is this process's place in the job, as the options or the environment
// have it.
func (o *Options) world() (World, error) {
	if o.World == nil {
		return WorldFromEnv()
	}
	w := *o.World
	if w.LocalSize == 0 {
		w.LocalSize = w.Size
	}
	if err := w.validate(); err != nil {
		return World{}, fmt.Errorf("comm: Options.World: %w", err)
	}
	return w, nil
}

// remeet is the pause before the job's store is looked for again.
const remeet = 20 * time.Millisecond

// meet joins within the timeout. A store that rank 0 hosts may still be that
// of an earlier group, about to end: when it does, the ranks meet at the next.
func meet(ctx context.Context, o Options) (*ProcessGroup, error) {
	making, cancel := awake.WithTimeoutCause(ctx, o.Timeout, fmt.Errorf("%w after %v", ErrTimeout, o.Timeout))
	defer cancel()
	for {
		pg, err := join(ctx, making, o)
		if err == nil || o.Store != nil || o.World.AgentStore || !errors.Is(err, store.ErrServerLost) {
			return pg, err
		}
		select {
		case <-time.After(remeet):
		case <-making.Done():
			return nil, err
		}
	}
}

// join makes a group that lives as long as ctx, while making lasts. What it
// made is released if it fails.
func join(ctx, making context.Context, o Options) (_ *ProcessGroup, err error) {
	w := *o.World
	var release releases
	defer func() {
		if err != nil {
			// Also when time is up: the others have to hear why from the coordinator,
			// which may be here.
			release.run(context.WithoutCancel(making))
		}
	}()

	if o.Device == nil {
		if o.Device, err = openDevice(w, o.Log); err != nil {
			return nil, err
		}
		release.addClose(o.Device.Close)
	}
	if o.Store == nil {
		if o.Store, err = openStore(making, w, &o.member, o.Log, &release); err != nil {
			return nil, err
		}
	}
	// The n-th group that this process makes meets the n-th of the others:
	// keys of an earlier one, or of an earlier life of this rank, stay apart.
	n, err := o.Store.Add(making, groupsKey(w), 1)
	if err != nil {
		return nil, err
	}
	view := groupView(o.Store, w, n)
	control, err := openControl(making, &o, n, &release)
	if err != nil {
		return nil, err
	}
	cfg := backend.Config{Rank: w.Rank, Size: w.Size, Control: control, Device: o.Device, Timeout: o.Timeout, Log: o.Log}
	be, err := connect(making, w, cfg, o.member, o.CheckCalls)
	if err != nil {
		return nil, err
	}
	d := newWatchdogLoop(w, flight.Open(w.identity(), o.flight, o.Log), o)
	release.addClose(func() error { d.stop(); return nil })
	pg := newGroup(ctx, "default", w, cfg, view, be, d, o.WrapBackend)
	pg.release = append(release, pg.release...)
	return pg, nil
}

// groupsKey counts the groups that a rank has begun to join.
func groupsKey(w World) string { return fmt.Sprintf("goddp/%d/groups/%d", w.Generation, w.Rank) }

// groupView is the part of the job's store that is the n-th group's.
func groupView(kv store.Store, w World, n int64) store.Store {
	return store.Prefix(kv, fmt.Sprintf("goddp/%d/group/%d", w.Generation, n))
}

// newGroup is the group itself, over a backend that is connected and now its
// own, under a watchdog.
func newGroup(ctx context.Context, name string, w World, cfg backend.Config, view store.Store, be backend.Backend, d *watchdogLoop, wrap func(backend.Backend) backend.Backend) *ProcessGroup {
	pg := &ProcessGroup{group: &group{
		name: name, rank: cfg.Rank, size: cfg.Size, world: w, dev: cfg.Device, store: view, backend: wrap(be), wrap: wrap, watchdog: d,
		timeout: cfg.Timeout, log: cfg.Log, control: cfg.Control, sends: make([]uint64, cfg.Size), recvs: make([]uint64, cfg.Size), ctx: ctx, stop: stopperOf(ctx),
	}}
	d.add(pg.group)
	stop := context.AfterFunc(ctx, func() { pg.Abort(context.Cause(ctx)) })
	pg.release.addClose(func() error { pg.abandoned.Wait(); return nil }) // Close of the backend ends their calls
	pg.release.add(pg.backend.Close)
	pg.release.addClose(func() error { stop(); return nil })
	return pg
}

// releases are what has to be undone, run last to first.
type releases []func(context.Context) error

func (r *releases) add(f func(context.Context) error) { *r = append(*r, f) }

func (r *releases) addClose(f func() error) {
	r.add(func(context.Context) error { return f() })
}

// run undoes everything, last to first, and joins what went wrong.
func (r releases) run(ctx context.Context) error {
	var errs []error
	for _, f := range slices.Backward(r) {
		errs = append(errs, f(ctx))
	}
	return errors.Join(errs...)
}
