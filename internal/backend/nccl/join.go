//go:build cgo && linux

package nccl

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"
	"unsafe"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/awake"
	"github.com/goddp/goddp/internal/backend"
)

// defaultTimeout bounds the making of a group that nothing else bounds.
const defaultTimeout = 10 * time.Minute

// cudaDevice is what this package needs of a GPU beside device.Device.
type cudaDevice interface {
	device.Device
	// Context is the CUcontext.
	Context() uintptr
	// Lookup finds a function of libcuda.
	Lookup(symbol string) (unsafe.Pointer, error)
}

// cudaStream is what it needs of the GPU's streams.
type cudaStream interface {
	device.Stream
	// Handle is the CUstream.
	Handle() uintptr
	// Enqueue has f enqueue on the CUstream, and record the CUevent behind that.
	Enqueue(timed bool, f func(stream, event uintptr) error) (device.Event, error)
}

func open(ctx context.Context, cfg backend.Config, o Options) (backend.Backend, error) {
	return join(ctx, cfg, o, true)
}

// join makes a group. whole tells that it is not split from another.
func join(ctx context.Context, cfg backend.Config, o Options, whole bool) (_ *Group, err error) {
	if cfg.Timeout <= 0 {
		cfg.Timeout = defaultTimeout
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	dev, ok := cfg.Device.(cudaDevice)
	if !ok {
		return nil, fmt.Errorf("NCCL moves the memory of NVIDIA GPUs, and the device is %v", cfg.Device)
	}
	ctx, cancel := awake.WithTimeoutCause(ctx, cfg.Timeout, fmt.Errorf("%w after %v", backend.ErrTimeout, cfg.Timeout))
	defer cancel()
	g := newGroup(cfg, o, dev)
	ctx, release := cfg.Control.Bound(ctx)
	defer release()
	defer func() {
		if err != nil {
			g.state.Stop(err)
			g.end((*communicator).abort, g.comms...)
			g.release()
		}
	}()
	if err := g.connect(ctx, whole); err != nil {
		if errors.As(err, new(*SharedGPUError)) || errors.As(err, new(*VersionMismatchError)) {
			return nil, err // as on all ranks
		}
		return nil, g.nameLate(causeOf(ctx, err))
	}
	cfg.Control.OnLeaving(g.leaving)
	g.wg.Go(g.watch)
	g.wg.Go(g.heed)
	return g, nil
}

// causeOf is the reason why ctx ended rather than what that made fail.
func causeOf(ctx context.Context, err error) error {
	if c := context.Cause(ctx); c != nil {
		return c
	}
	return err
}

// connect makes what calls need, up to a communicator.
func (g *Group) connect(ctx context.Context, whole bool) error {
	setDefault("NCCL_RUNTIME_CONNECT", "0")
	g.cfg.Control.Expect(keyOpened)
	var err error
	if g.lib, err = openLibrary(g.dev); err != nil {
		return err
	}
	g.cfg.Log.Debug("nccl: library opened", "rank", g.cfg.Control.Rank(), "version", g.lib.version, "path", g.lib.path)
	ids, err := g.meet(ctx)
	if err != nil {
		return err
	}
	if err := g.verify(ids); err != nil {
		return err
	}
	g.cfg.Control.Expect(keyReady)
	if whole && oneHost(ids) {
		setDefault("NCCL_SOCKET_IFNAME", "lo")
	}
	if g.word, err = g.dev.Alloc(device.Align); err != nil {
		return err
	}
	g.mu.Lock()
	g.main, err = g.newLane()
	g.mu.Unlock()
	if err != nil {
		return err
	}
	g.main.layout = layout{rank: g.cfg.Rank, size: g.cfg.Size, word: device.NewTensor(g.word, device.Float32, 1)}
	var own readiness
	if g.cfg.Rank == 0 {
		if own.Name, err = g.lib.uniqueID(); err != nil {
			return err
		}
	}
	if g.cfg.Size > 1 {
		if own.Offer, err = g.offerOneShot(ctx, ids); err != nil {
			return err
		}
	}
	all, err := g.getReady(ctx, own)
	if err != nil {
		return err
	}
	g.cfg.Control.Expect(keyConnected)
	if g.main.comm, err = g.communicator(ctx, all[0].Name, g.cfg.Rank, g.cfg.Size, g.shot); err != nil {
		return err
	}
	if _, err := g.gather(ctx, keyConnected, nil); err != nil || g.shot == nil {
		return err
	}
	return g.shot.connect(ctx, all)
}

// readiness is what a rank tells the others that can make the communicator.
type readiness struct {
	Name  []byte // of the communicator, by rank 0
	Offer offer  // of memory for all-reduces of few bytes
}

// getReady waits until all ranks can make the communicator.
func (g *Group) getReady(ctx context.Context, own readiness) ([]readiness, error) {
	value, err := json.Marshal(own)
	if err != nil {
		return nil, err
	}
	values, err := g.gather(ctx, keyReady, value)
	if err != nil {
		return nil, err
	}
	all := make([]readiness, len(values))
	for r, v := range values {
		if err := json.Unmarshal(v, &all[r]); err != nil {
			return nil, fmt.Errorf("readiness of rank %d: %w", g.inJob(r), err)
		}
	}
	return all, nil
}

// pairName is the name of a communicator of two ranks, which the first of them makes.
func (g *Group) pairName(ctx context.Context, p pair) (name []byte, err error) {
	if g.cfg.Rank == p.from {
		if name, err = g.lib.uniqueID(); err != nil {
			return nil, err
		}
	}
	of := g.cfg.Control
	members := []int{of.Members[p.from], of.Members[p.to]}
	_, names, err := of.Make(ctx, fmt.Sprintf("%s pair %d to %d", of.Name, p.from, p.to), members, name)
	if err != nil {
		return nil, err
	}
	return names[0], nil
}

// setDefault sets a variable of NCCL's that the user did not.
func setDefault(name, value string) {
	if _, ok := os.LookupEnv(name); !ok {
		os.Setenv(name, value)
	}
}

// identity is what a rank tells the others of itself.
type identity struct {
	Host    string // one boot of one kernel
	GPU     string // its PCI bus id
	Version Version
	Path    string // of the library
}

// meet exchanges identities.
func (g *Group) meet(ctx context.Context) ([]identity, error) {
	own := identity{Version: g.lib.version, Path: g.lib.path}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return nil, err
	}
	own.Host = strings.TrimSpace(string(boot))
	if own.GPU, err = g.lib.busID(); err != nil {
		return nil, err
	}
	value, err := json.Marshal(own)
	if err != nil {
		return nil, err
	}
	values, err := g.gather(ctx, keyOpened, value)
	if err != nil {
		return nil, err
	}
	ids := make([]identity, len(values))
	for r, v := range values {
		if err := json.Unmarshal(v, &ids[r]); err != nil {
			return nil, fmt.Errorf("identity of rank %d: %w", g.inJob(r), err)
		}
	}
	return ids, nil
}

// verify refuses what NCCL would hang on. Every rank comes to the same error.
func (g *Group) verify(ids []identity) error {
	type place struct{ host, gpu string }
	on := map[place]int{}
	for r, id := range ids {
		if id.Version != ids[0].Version {
			return &VersionMismatchError{
				Ranks: [2]int{g.inJob(0), g.inJob(r)}, Versions: [2]Version{ids[0].Version, id.Version}, Paths: [2]string{ids[0].Path, id.Path},
			}
		}
		at := place{id.Host, id.GPU}
		if other, ok := on[at]; ok {
			return &SharedGPUError{Ranks: [2]int{g.inJob(other), g.inJob(r)}, GPU: id.GPU}
		}
		on[at] = r
	}
	return nil
}

func oneHost(ids []identity) bool {
	for _, id := range ids {
		if id.Host != ids[0].Host {
			return false
		}
	}
	return true
}
