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

	"github.com/goddp/goddp/comm/internal/vitals"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/awake"
	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/capture"
	"github.com/goddp/goddp/internal/coordinator"
	"github.com/goddp/goddp/internal/store"
	"github.com/goddp/goddp/internal/telemetry"
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
	// Device is the device of the group's tensors. nil means the device that GODDP_DEVICE names. If GODDP_DEVICE is not
	// set, nil means GPU number LOCAL_RANK or, on a host without GPUs, the CPU.
	Device device.Device
	// Timeout is the timeout of Init, of Split, and of every call for which With sets no other. 0 means DefaultTimeout.
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

	notice   time.Duration  // how long rank 0 waits for the other ranks before it logs that it waits
	exit     func(code int) // ends the process: os.Exit, except in tests
	survives bool           // Local's job survives the loss of ranks, as under golaunch --on-failure
}

func init() {
	backend.Wrap = func(options any, wrap func(backend.Backend) backend.Backend) { options.(*Options).wrapBackend = wrap }
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
// ctx limits only Init itself, as with [net.Dialer]. Once Init has returned, cancelling ctx does not affect the group;
// [ProcessGroup.Abort] ends a group early. But if Init is called with the context of [Main], or one derived from it,
// the group is aborted when the context of Main ends, for example by a signal.
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
	j, err := newJoiner(opts)
	if err != nil {
		return nil, err
	}
	j.main = mainRunOf(ctx)
	pg, err := j.joinWithRetry(ctx)
	if err != nil {
		return nil, fmt.Errorf("rank %d of %d: joining the process group: %w", j.world.Rank, j.world.Size, err)
	}
	if j.main != nil {
		j.main.add(pg)
	}
	if pg.dev.Type() == device.CUDA && !j.NoLockOSThread {
		runtime.LockOSThread()
	}
	return pg, nil
}

// join makes the group of all ranks, bounded by ctx, from the settings that newJoiner has read. It opens the device,
// connects to the job's store, joins the coordinator's session, connects the backend, and starts the watchdog and the
// reports of the rank's state. If join fails, it releases everything that it has made.
func (j *joiner) join(ctx context.Context) (_ *ProcessGroup, err error) {
	var kept releases
	defer func() {
		if err != nil {
			// ctx may have ended. If this rank hosts the coordinator, the coordinator must
			// still tell the other ranks the cause.
			kept.run(context.WithoutCancel(ctx))
		}
	}()
	dev, err := j.openDevice(&kept)
	if err != nil {
		return nil, err
	}
	if err := j.makeRefusal(dev); err != nil {
		return nil, err
	}
	n, err := j.openStore(ctx, &kept)
	if err != nil {
		return nil, err
	}
	g, err := j.joinGroup(ctx, dev, func(release *releases) (*coordinator.Client, int, error) {
		client, err := j.openControl(ctx, n, release)
		return client, int(n), err
	})
	if err != nil {
		return nil, err
	}
	kept.addClose(vitals.Watch(telemetry.Inherited(), dev))
	return &ProcessGroup{handle: &handle{group: g, joiner: j, kept: kept}}, nil
}

// joinGroup makes a group with fixed members. connect connects to the coordinator, and returns the number of the
// session to join.
func (j *joiner) joinGroup(ctx context.Context, dev device.Device, connect func(*releases) (*coordinator.Client, int, error)) (_ *group, err error) {
	var release releases
	defer func() {
		if err != nil {
			release.run(context.WithoutCancel(ctx))
		}
	}()
	client, session, err := connect(&release)
	if err != nil {
		return nil, err
	}
	if j.isElastic { // all members wait for this
		var cancel context.CancelFunc
		limit := max(regroupTime, j.Timeout/4)
		ctx, cancel = awake.WithTimeoutCause(ctx, limit, fmt.Errorf("%w after %v", ErrTimeout, limit))
		defer cancel()
	}
	if err := j.joinSession(ctx, client, session); err != nil {
		return nil, err
	}
	j.watchRefusal(client.Root())
	cfg := backend.Config{Rank: j.world.Rank, Size: j.world.Size, Control: client.Root(), Device: dev, Timeout: j.Timeout, Log: j.Log}
	be, err := j.connect(ctx, cfg)
	if err != nil {
		return nil, err
	}
	return j.start(ctx, cfg, be, release), nil
}

// retryPause is the pause before joinWithRetry connects to the job's store again.
const retryPause = 20 * time.Millisecond

// joinWithRetry calls join, for at most j.Timeout. If rank 0 hosts the store, this rank may
// first connect to the store of an earlier group, which rank 0 is closing. When that store
// ends, joinWithRetry calls join again, until rank 0 hosts the store of the new group.
func (j *joiner) joinWithRetry(ctx context.Context) (*ProcessGroup, error) {
	j.deadline = time.Now().Add(j.Timeout)
	if end, ok := ctx.Deadline(); ok && end.Before(j.deadline) {
		j.deadline = end
	}
	ctx, cancel := awake.WithTimeoutCause(ctx, j.Timeout, fmt.Errorf("%w after %v", ErrTimeout, j.Timeout))
	defer cancel()
	for {
		pg, err := j.join(ctx)
		if err == nil || j.Store != nil || j.world.AgentStore || !errors.Is(err, store.ErrServerLost) {
			return pg, err
		}
		select {
		case <-time.After(retryPause):
		case <-ctx.Done():
			return nil, err
		}
	}
}

// start starts the watchdog and makes the group of Init or Local. The group takes ownership of the backend, and of what
// release releases.
func (j *joiner) start(ctx context.Context, cfg backend.Config, be backend.Backend, release releases) *group {
	d := newWatchdogLoop(ctx, j, j.openRecorder())
	release.addClose(func() error { d.stop(); return nil })
	g := newGroup(j.main, "default", j.world, cfg, be, d, j.wrapBackend)
	g.release = append(release, g.release...)
	return g
}

// newGroup makes a group from a connected backend and adds it to the watchdog. The group
// takes ownership of the backend. m is the run of Main that the group is made in, or nil.
func newGroup(m *mainRun, name string, w World, cfg backend.Config, be backend.Backend, d *watchdogLoop, wrap func(backend.Backend) backend.Backend) *group {
	g := &group{
		name: name, rank: cfg.Rank, size: cfg.Size, world: w, dev: cfg.Device, backend: wrap(be), wrapBackend: wrap, watchdog: d,
		timeout: cfg.Timeout, log: cfg.Log, control: cfg.Control, sends: make([]uint64, cfg.Size), recvs: make([]uint64, cfg.Size), main: m, stop: m.stopper(),
		capturing: capture.Guard(cfg.Device), trace: profile.Of(cfg.Device),
	}
	g.sharer, _ = be.(backend.Sharer)
	d.add(g)
	g.release.add(g.awaitStaged) // runs after the backend's Close, which ends the calls on staged memory
	g.release.add(g.backend.Close)
	if m != nil {
		stop := context.AfterFunc(m.ctx, func() { g.Abort(context.Cause(m.ctx)) })
		g.release.addClose(func() error { stop(); return nil })
	}
	return g
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
