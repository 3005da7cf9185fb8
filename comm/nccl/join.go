//go:build cgo && linux

package nccl

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"github.com/goddp/goddp/comm/backend"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/awake"
	"github.com/goddp/goddp/store"
)

// Keys in the store.
const (
	keyIdentity = "identity/" // of rank r
	keyName     = "name"      // of the communicator, by rank 0
	keyPair     = "pair/"     // names of communicators for Send and Recv: "pair/from/to"
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
	// The control channel comes first: it tells the peers what fails here.
	g := newGroup(cfg, o, dev)
	if g.control, err = openControl(ctx, cfg, o, g); err != nil {
		g.ledger.Stop(err)
		return nil, err
	}
	ctx, stop := backend.Bound(ctx, g.control.ctx)
	defer stop()
	defer func() {
		if err != nil {
			g.control.tell(err)
			g.ledger.Stop(err)
			g.end((*communicator).abort, g.comms...)
			g.release()
		}
	}()
	if err := g.connect(ctx, whole); err != nil {
		return nil, g.nameLate(causeOf(ctx, err))
	}
	g.wg.Go(g.watch)
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
	var err error
	if g.lib, err = openLibrary(g.dev); err != nil {
		return err
	}
	g.cfg.Log.Debug("nccl: library opened", "rank", g.cfg.Rank, "version", g.lib.version, "path", g.lib.path)
	ids, err := g.meet(ctx)
	if err != nil {
		return err
	}
	if err := verify(ids); err != nil {
		return err
	}
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
	// The name comes before what rank 0 tells of itself, and behind what the others do:
	// who waits for it is not taken for late.
	var id []byte
	names := g.cfg.Rank == 0
	if names {
		if id, err = g.nameOf(ctx, keyName, true); err != nil {
			return err
		}
	}
	if g.cfg.Size > 1 {
		if err := g.offerOneShot(ctx, ids); err != nil {
			return err
		}
	}
	if err := g.has(ctx, ready); err != nil {
		return err
	}
	if !names {
		if id, err = g.nameOf(ctx, keyName, false); err != nil {
			return err
		}
	}
	if g.main.comm, err = g.communicator(ctx, id, g.cfg.Rank, g.cfg.Size, g.shot); err != nil {
		return err
	}
	if err := g.has(ctx, connected); err != nil || g.shot == nil {
		return err
	}
	return g.shot.connect(ctx)
}

// nameOf is the name of a communicator, that one of its ranks makes and the
// others learn through the store.
func (g *Group) nameOf(ctx context.Context, key string, makes bool) ([]byte, error) {
	if !makes {
		return g.cfg.Store.Get(ctx, key)
	}
	id, err := g.lib.uniqueID()
	if err != nil {
		return nil, err
	}
	return id, g.cfg.Store.Set(ctx, key, id)
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
	if err := g.cfg.Store.Set(ctx, keyIdentity+strconv.Itoa(g.cfg.Rank), value); err != nil {
		return nil, err
	}
	if err := g.has(ctx, opened); err != nil {
		return nil, err
	}
	return identities(ctx, g.cfg.Store, g.cfg.Size)
}

// fromAll waits for what every rank has in the store: the key is the prefix and
// its number.
func fromAll(ctx context.Context, kv store.Store, prefix string, size int) ([][]byte, error) {
	keys := make([]string, size)
	for r := range keys {
		keys[r] = prefix + strconv.Itoa(r)
	}
	return kv.MultiGet(ctx, keys...)
}

func identities(ctx context.Context, kv store.Store, size int) ([]identity, error) {
	values, err := fromAll(ctx, kv, keyIdentity, size)
	if err != nil {
		return nil, err
	}
	ids := make([]identity, size)
	for r, v := range values {
		if err := json.Unmarshal(v, &ids[r]); err != nil {
			return nil, fmt.Errorf("identity of rank %d: %w", r, err)
		}
	}
	return ids, nil
}

// verify refuses what NCCL would hang on. Every rank comes to the same error.
func verify(ids []identity) error {
	type place struct{ host, gpu string }
	on := map[place]int{}
	for r, id := range ids {
		if id.Version != ids[0].Version {
			return &VersionMismatchError{
				Ranks: [2]int{0, r}, Versions: [2]Version{ids[0].Version, id.Version}, Paths: [2]string{ids[0].Path, id.Path},
			}
		}
		at := place{id.Host, id.GPU}
		if other, ok := on[at]; ok {
			return &SharedGPUError{Ranks: [2]int{other, r}, GPU: id.GPU}
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
