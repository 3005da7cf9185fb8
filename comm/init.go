package comm

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"strconv"
	"time"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/awake"
	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/capture"
	"github.com/goddp/goddp/internal/flight"
	"github.com/goddp/goddp/internal/jobenv"
	"github.com/goddp/goddp/internal/store"
	"github.com/goddp/goddp/profile"
)

// DefaultTimeout is the timeout of a call if neither the call nor [Options].Timeout gives one.
const DefaultTimeout = 10 * time.Minute

// Options are the options of a group. The zero value is the default.
type Options struct {
	// World is this process's place in the job. nil means the result of WorldFromEnv. A
	// LocalSize of 0 means Size.
	World *World
	// Store is the job's store. nil means the store at the World's MasterAddr and MasterPort,
	// which the launcher or rank 0 hosts.
	Store Store
	// Device is the device that the group's tensors live on. nil means the device that
	// GODDP_DEVICE names. If GODDP_DEVICE is not set, nil means the GPU whose number is the
	// local rank or, on a host without GPUs, the CPU.
	Device device.Device
	// Timeout bounds Init, Split, and every call that has no timeout of its own. 0 means
	// DefaultTimeout.
	Timeout time.Duration
	// ErrorMode says what happens when a call fails. DefaultErrorMode means that environment
	// variables decide.
	ErrorMode ErrorMode
	// CheckCalls makes the ranks compare their calls of a collective before the collective
	// runs. If the calls differ, the error holds the calls of all ranks. The comparison takes
	// one round trip to the coordinator per call. GODDP_DEBUG=DETAIL and
	// TORCH_DISTRIBUTED_DEBUG=DETAIL switch CheckCalls on as well.
	CheckCalls bool
	// NoLockOSThread keeps Init from locking the calling goroutine to its thread. Without it,
	// Init locks the goroutine if the group's device is a GPU; see [Init].
	NoLockOSThread bool
	// ShutdownTimeout bounds the functions given to OnShutdown. 0 means
	// DefaultShutdownTimeout.
	ShutdownTimeout time.Duration
	// Log is the logger of the group. nil means slog.Default.
	Log *slog.Logger

	wrapBackend func(backend.Backend) backend.Backend // wraps the group's backend; nil means no wrapper

	// readEnv sets the fields from heartbeat to dumps.
	heartbeat        time.Duration // how long the watchdog may make no progress
	monitoring       bool          // whether the process ends if the watchdog makes no progress
	reportStragglers bool          // whether to log which ranks make the other ranks wait
	flight           flight.Settings
	dumps            func() (string, error) // returns the folder of flight records; nil if none are written

	deadline time.Time     // when Init gives up, unless the process is suspended meanwhile
	notice   time.Duration // how long rank 0 waits for the other ranks before it says so

	member store.Member   // this process's identity in the job
	exit   func(code int) // ends the process: os.Exit, except in tests
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
	if d.notice == 0 {
		d.notice = 10 * time.Second
	}
	if d.exit == nil {
		d.exit = os.Exit
	}
	if d.Log == nil {
		d.Log = slog.Default()
	}
	if d.wrapBackend == nil {
		d.wrapBackend = func(b backend.Backend) backend.Backend { return b }
	}
	return d
}

// Init joins the job's process group. It returns when all ranks have joined. The error is an
// [*failure.AbsentError] if some ranks did not join in time.
//
// ctx bounds Init alone, as with [net.Dialer]. After Init has returned, the end of ctx does
// nothing to the group; [ProcessGroup.Abort] ends a group early. A group that Init makes within
// [Main], with the context of Main or one derived from it, is aborted when the context of Main
// ends, by a signal for example.
//
// If the group's device is a GPU, Init locks the calling goroutine to its thread, as by
// [runtime.LockOSThread]. Close does not unlock it. The lock makes the calls of the GPU's
// driver faster: on the thread of the previous call, the driver's data is still in the caches.
// The price is one more switch of threads in every wait on a channel. Set
// Options.NoLockOSThread, or call Init from another goroutine, to keep the goroutine unlocked.
// On the CPU Init never locks the goroutine.
//
// A process may call Init again after Close, if all ranks do so equally often. After an Init
// that failed, it may do so only if Init failed on all ranks.
func Init(ctx context.Context, opts *Options) (*ProcessGroup, error) {
	o := opts.orDefaults()
	if err := o.readEnv(); err != nil {
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
	pg, err := joinWithRetry(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("rank %d of %d: joining the process group: %w", o.World.Rank, o.World.Size, err)
	}
	if m := mainRunOf(ctx); m != nil {
		m.add(pg)
	}
	if isGPU(pg.dev) && !o.NoLockOSThread {
		runtime.LockOSThread()
	}
	return pg, nil
}

// world returns this process's place in the job, from the options or the environment.
func (o *Options) world() (World, error) {
	if o.World == nil {
		w, err := WorldFromEnv()
		if w.Size == 1 && os.Getenv(jobenv.WorldSizeVar) == "" {
			o.warnOfOtherTasks()
		}
		return w, err
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

// warnOfOtherTasks logs a line if srun or mpirun has started this process, which is a job of one
// rank, as one of several tasks. Each of them then trains by itself, and nothing else says so.
func (o *Options) warnOfOtherTasks() {
	for _, name := range []string{"SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"} {
		if n, err := strconv.Atoi(os.Getenv(name)); err == nil && n > 1 {
			o.Log.Warn(fmt.Sprintf("comm: this process trains alone, because RANK and WORLD_SIZE are not set, but it is one of %d tasks (%s): start the tasks with golaunch, or set these variables", n, name))
			return
		}
	}
}

// retryPause is the pause before joinWithRetry connects to the job's store again.
const retryPause = 20 * time.Millisecond

// joinWithRetry calls join, for at most o.Timeout. If rank 0 hosts the store, this rank may
// first connect to the store of an earlier group, which rank 0 is closing. When that store
// ends, joinWithRetry calls join again, until rank 0 hosts the store of the new group.
func joinWithRetry(ctx context.Context, o Options) (*ProcessGroup, error) {
	o.deadline = time.Now().Add(o.Timeout)
	if end, ok := ctx.Deadline(); ok && end.Before(o.deadline) {
		o.deadline = end
	}
	ctx, cancel := awake.WithTimeoutCause(ctx, o.Timeout, fmt.Errorf("%w after %v", ErrTimeout, o.Timeout))
	defer cancel()
	for {
		pg, err := join(ctx, o)
		if err == nil || o.Store != nil || o.World.AgentStore || !errors.Is(err, store.ErrServerLost) {
			return pg, err
		}
		select {
		case <-time.After(retryPause):
		case <-ctx.Done():
			return nil, err
		}
	}
}

// join makes the group of all ranks, bounded by ctx. If join fails, it releases everything that
// it has made.
func join(ctx context.Context, o Options) (_ *ProcessGroup, err error) {
	w := *o.World
	var release releases
	defer func() {
		if err != nil {
			// ctx may have ended. If this rank hosts the coordinator, the coordinator must
			// still tell the other ranks the cause.
			release.run(context.WithoutCancel(ctx))
		}
	}()

	if o.Device == nil {
		if o.Device, err = openDevice(w, o.Log); err != nil {
			return nil, err
		}
		release.addClose(o.Device.Close)
	}
	if o.Store == nil {
		if o.Store, err = openStore(ctx, w, &o, &release); err != nil {
			return nil, err
		}
	}
	// n counts the groups of this rank. The n-th groups of all ranks form one group. The
	// keys of the group contain n, so they differ from the keys of earlier groups and of an
	// earlier process with this rank.
	n, err := o.Store.Add(ctx, groupsKey(w), 1)
	if err != nil {
		return nil, err
	}
	view := groupView(o.Store, w, n)
	control, err := openControl(ctx, &o, n, &release)
	if err != nil {
		return nil, err
	}
	cfg := backend.Config{Rank: w.Rank, Size: w.Size, Control: control, Device: o.Device, Timeout: o.Timeout, Log: o.Log}
	be, err := connect(ctx, w, cfg, o.member, o.CheckCalls)
	if err != nil {
		return nil, err
	}
	d := newWatchdogLoop(ctx, w, flight.Open(w.identity(), o.flight, o.Log), o)
	release.addClose(func() error { d.stop(); return nil })
	pg := newGroup(mainRunOf(ctx), "default", w, cfg, view, be, d, o.wrapBackend)
	pg.release = append(release, pg.release...)
	return pg, nil
}

// groupsKey returns the key of the store at which a rank counts the groups that it has begun to
// join.
func groupsKey(w World) string { return fmt.Sprintf("goddp/%d/groups/%d", w.Generation, w.Rank) }

// groupView returns the part of the job's store that belongs to the n-th group.
func groupView(kv store.Store, w World, n int64) store.Store {
	return store.Prefix(kv, fmt.Sprintf("goddp/%d/group/%d", w.Generation, n))
}

// newGroup makes a group from a connected backend and adds it to the watchdog. The group
// takes ownership of the backend. m is the run of Main that the group is made in, or nil.
func newGroup(m *mainRun, name string, w World, cfg backend.Config, view store.Store, be backend.Backend, d *watchdogLoop, wrap func(backend.Backend) backend.Backend) *ProcessGroup {
	pg := &ProcessGroup{group: &group{
		name: name, rank: cfg.Rank, size: cfg.Size, world: w, dev: cfg.Device, store: view, backend: wrap(be), wrapBackend: wrap, watchdog: d,
		timeout: cfg.Timeout, log: cfg.Log, control: cfg.Control, sends: make([]uint64, cfg.Size), recvs: make([]uint64, cfg.Size), main: m, stop: m.stopper(),
		recording: capture.Guard(cfg.Device), trace: profile.Of(cfg.Device),
	}}
	pg.joins = joinStream{cfg.Device.Compute(), pg.group}
	d.add(pg.group)
	pg.release.add(pg.awaitStaged) // runs after the backend's Close, which ends the calls on staged memory
	pg.release.add(pg.backend.Close)
	if m != nil {
		stop := context.AfterFunc(m.ctx, func() { pg.Abort(context.Cause(m.ctx)) })
		pg.release.addClose(func() error { stop(); return nil })
	}
	return pg
}

// releases are functions that release what a group owns. They run last to first.
type releases []func(context.Context) error

func (r *releases) add(f func(context.Context) error) { *r = append(*r, f) }

func (r *releases) addClose(f func() error) {
	r.add(func(context.Context) error { return f() })
}

// run calls all functions, last to first, and joins their errors.
func (r releases) run(ctx context.Context) error {
	var errs []error
	for _, f := range slices.Backward(r) {
		errs = append(errs, f(ctx))
	}
	return errors.Join(errs...)
}
