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

	"github.com/goddp/goddp/comm/failure"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/awake"
	"github.com/goddp/goddp/internal/backend"
)

// defaultTimeout is the timeout of the bootstrap if Config.Timeout is 0.
const defaultTimeout = 10 * time.Minute

// cudaDevice is a GPU, as this package uses it.
type cudaDevice interface {
	device.Device
	// Context returns the CUcontext.
	Context() uintptr
	// Lookup returns a function of libcuda.
	Lookup(symbol string) (unsafe.Pointer, error)
}

// cudaStream is a stream of a GPU, as this package uses it.
type cudaStream interface {
	device.Stream
	// Handle returns the CUstream.
	Handle() uintptr
	// Enqueue calls f, which enqueues work on the CUstream and records the CUevent after it. If
	// timed is true, the event has a time.
	Enqueue(timed bool, f func(stream, event uintptr) error) (device.Event, error)
}

func open(ctx context.Context, cfg backend.Config, o Options) (backend.Backend, error) {
	return join(ctx, cfg, o, true)
}

// join creates a group. isRoot is false for a group from Split.
func join(ctx context.Context, cfg backend.Config, o Options, isRoot bool) (_ *Group, err error) {
	if cfg.Timeout <= 0 {
		cfg.Timeout = defaultTimeout
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	dev, ok := cfg.Device.(cudaDevice)
	if !ok {
		return nil, fmt.Errorf("NCCL needs an NVIDIA GPU, but the device is %v", cfg.Device)
	}
	ctx, cancel := awake.WithTimeoutCause(ctx, cfg.Timeout, fmt.Errorf("%w after %v", failure.ErrTimeout, cfg.Timeout))
	defer cancel()
	g := newGroup(ctx, cfg, o, dev)
	ctx, release := cfg.Control.Bound(ctx)
	defer release()
	defer func() {
		if err != nil {
			g.state.Stop(err)
			g.abort(g.comms...)
			g.release()
		}
	}()
	if err := g.connect(ctx, isRoot); err != nil {
		if errors.As(err, new(*SharedGPUError)) || errors.As(err, new(*VersionMismatchError)) {
			return nil, err // every rank returns the same error
		}
		return nil, g.joinError(causeOf(ctx, err))
	}
	cfg.Control.OnLeaving(g.onLeaving)
	g.wg.Go(g.watch)
	g.wg.Go(g.awaitFailure)
	return g, nil
}

// causeOf returns ctx's cause if ctx has ended, else err.
func causeOf(ctx context.Context, err error) error {
	if c := context.Cause(ctx); c != nil {
		return c
	}
	return err
}

// connect creates everything that calls need, the communicator last.
func (g *Group) connect(ctx context.Context, isRoot bool) error {
	setDefault("NCCL_RUNTIME_CONNECT", "0")
	g.cfg.Control.Expect(keyOpened)
	var err error
	if g.lib, err = openLibrary(g.dev); err != nil {
		return err
	}
	g.cfg.Log.Debug("nccl: library opened", "rank", g.cfg.Control.Rank(), "version", g.lib.version, "path", g.lib.path)
	ids, err := g.exchangeIdentities(ctx)
	if err != nil {
		return err
	}
	if err := g.checkIdentities(ids); err != nil {
		return err
	}
	g.cfg.Control.Expect(keyReady)
	if isRoot && oneHost(ids) {
		setDefault("NCCL_SOCKET_IFNAME", "lo")
	}
	if g.barrierMem, err = g.dev.Alloc(device.Align); err != nil {
		return err
	}
	g.mu.Lock()
	g.main, err = g.newCommStream()
	g.mu.Unlock()
	if err != nil {
		return err
	}
	g.main.builder = opBuilder{rank: g.cfg.Rank, size: g.cfg.Size, barrierMem: device.NewTensor(g.barrierMem, device.Float32, 1)}
	var mine readiness
	if g.cfg.Rank == 0 {
		if mine.Name, err = g.lib.uniqueID(); err != nil {
			return err
		}
	}
	if g.cfg.Size > 1 {
		if mine.Offer, err = g.offerSlots(ctx, ids); err != nil {
			return err
		}
	}
	all, err := g.exchangeReadiness(ctx, mine)
	if err != nil {
		return err
	}
	g.cfg.Control.Expect(keyConnected)
	began := time.Now()
	if g.main.comm, err = g.newCommunicator(ctx, all[0].Name, g.cfg.Rank, g.cfg.Size, g.small); err != nil {
		return err
	}
	g.cfg.Log.Debug("nccl: communicator made", "rank", g.cfg.Control.Rank(), "took", time.Since(began))
	if _, err := g.gather(ctx, keyConnected, nil); err != nil || g.small == nil {
		return err
	}
	return g.small.connect(ctx, all, ids)
}

// readiness is sent by a rank to the others when it is ready to create the communicator.
type readiness struct {
	Name  []byte // ncclUniqueId of the communicator; only rank 0 sends it
	Offer offer  // memory for small all-reduces
}

// exchangeReadiness waits until all ranks are ready to create the communicator.
func (g *Group) exchangeReadiness(ctx context.Context, mine readiness) ([]readiness, error) {
	value, err := json.Marshal(mine)
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
			return nil, fmt.Errorf("readiness of rank %d: %w", g.jobRank(r), err)
		}
	}
	return all, nil
}

// pairName returns the ncclUniqueId of a two-rank communicator. The sender creates it.
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

// setDefault sets an environment variable unless the user has set it.
func setDefault(name, value string) {
	if _, ok := os.LookupEnv(name); !ok {
		os.Setenv(name, value)
	}
}

// identity describes a rank to the others.
type identity struct {
	Host    string // the host's identity for NCCL: NCCL_HOSTID, else the kernel's boot id
	GPU     string // PCI bus id
	Version Version
	Path    string // the library's path
}

// exchangeIdentities sends this rank's identity to the other ranks and returns the identities of
// all.
func (g *Group) exchangeIdentities(ctx context.Context) ([]identity, error) {
	mine := identity{Version: g.lib.version, Path: g.lib.path}
	var err error
	if mine.Host = os.Getenv("NCCL_HOSTID"); mine.Host == "" {
		boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
		if err != nil {
			return nil, err
		}
		mine.Host = strings.TrimSpace(string(boot))
	}
	if mine.GPU, err = g.lib.busID(); err != nil {
		return nil, err
	}
	value, err := json.Marshal(mine)
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
			return nil, fmt.Errorf("identity of rank %d: %w", g.jobRank(r), err)
		}
	}
	return ids, nil
}

// checkIdentities returns an error if NCCL would hang with these ranks. All ranks get the same
// error.
func (g *Group) checkIdentities(ids []identity) error {
	type place struct{ host, gpu string }
	on := map[place]int{}
	for r, id := range ids {
		if id.Version != ids[0].Version {
			return &VersionMismatchError{
				Ranks: [2]int{g.jobRank(0), g.jobRank(r)}, Versions: [2]Version{ids[0].Version, id.Version}, Paths: [2]string{ids[0].Path, id.Path},
			}
		}
		at := place{id.Host, id.GPU}
		if other, ok := on[at]; ok {
			return &SharedGPUError{Ranks: [2]int{g.jobRank(other), g.jobRank(r)}, GPU: id.GPU}
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
