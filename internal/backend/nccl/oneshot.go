//go:build cgo && linux

package nccl

// #include "abi.h"
import "C"

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"math"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/backend"
)

// The memory of oneshot.cu: every rank has a slot for each, which is used in turns
// of two calls. A line of it takes lineSize bytes, of which lineBytes are elements.
const (
	slotsSize = 4 << 20 // of all of a rank's slots
	turns     = 2
	lineSize  = 16
	lineBytes = 8
)

// A block has at most blockLines threads, each with one line at a time. There are so
// few blocks that all of them find room beside a program's kernels.
const (
	blockLines = 512
	mostBlocks = 32
)

// oneShotLines is how many lines a slot has in a group of ranks. They carry a
// mebibyte among all ranks: between two GPUs with NVLink one step of half of that
// took 9.2 microseconds, and NCCL 10.3; each more rank sends as much again.
func oneShotLines(ranks int) int { return slotsSize / (turns * ranks * lineSize) }

//go:embed oneshot.cu
var oneShotSource string

// oneShotTypes are the element types that oneshot.cu has kernels for.
var oneShotTypes = [...]device.DType{device.Float32, device.Float64, device.Float16, device.BFloat16}

// oneShotKernels are kernels by NCCL's number of the element type, of which that of
// bfloat16 is the largest.
type oneShotKernels [9 + 1]oneShotKernel

type oneShotKernel struct {
	function C.uintptr_t
	size     int // of an element; 0: there is none
}

// loadedKernels are a device's.
type loadedKernels struct {
	mu     sync.Mutex
	loaded bool
	oneShotKernels
}

type oneShotKey struct{}

// compiler is a GPU that makes the CUfunctions of some names in a source of CUDA
// C++.
type compiler interface {
	Compile(ctx context.Context, name, text string, functions ...string) ([]uintptr, error)
}

func oneShotKernelsOf(ctx context.Context, dev cudaDevice) (oneShotKernels, error) {
	c, ok := dev.(compiler)
	if !ok {
		return oneShotKernels{}, fmt.Errorf("%v compiles no kernels", dev)
	}
	k := dev.Values().Get(oneShotKey{}, func() any { return &loadedKernels{} }).(*loadedKernels)
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.loaded {
		return k.oneShotKernels, nil
	}
	names := make([]string, len(oneShotTypes))
	for i, dt := range oneShotTypes {
		names[i] = "one_shot_" + dt.String()
	}
	functions, err := c.Compile(ctx, "oneshot.cu", oneShotSource, names...)
	if err != nil {
		return oneShotKernels{}, err
	}
	for i, dt := range oneShotTypes {
		k.oneShotKernels[types[dt]] = oneShotKernel{C.uintptr_t(functions[i]), dt.Size()}
	}
	k.loaded = true
	return k.oneShotKernels, nil
}

// oneShot is a rank's part in all-reduces of few bytes that NCCL does not see:
// slots, memory that the other ranks of the host write to, and what is known of
// theirs. Calls of enqueue are one at a time, and in the same order on all ranks.
//
// The slots are freed when no other rank has them, or will have them, mapped. Where
// the group broke, did not come about, or its ranks leave one by one, nobody knows
// that: they are left until the device ends.
type oneShot struct {
	group   *Group
	kernels oneShotKernels
	slots   *block
	stop    device.Buffer // a word of the host's: not 0 once kernels are to end
	mapped  []C.uint64_t  // the peers' slots
	without error         // why NCCL has everything; nil: all ranks have mapped all slots
	args    C.one_shot
}

// offer is what a rank tells the others of its slots.
type offer struct {
	Handle  []byte `json:",omitempty"`
	Without string `json:",omitempty"` // why it has none
}

// errTurnedOff is why there is no one-shot where somebody does not want it.
var errTurnedOff = errors.New("turned off")

// offerOneShot makes this rank's slots and tells the others of the group, where all
// are so few and so near that it can serve. What hinders it is told as well, and no
// error: then NCCL has everything.
//
// The kernels are loaded in any case. That may wait for all that the GPU has to do,
// and the first group is made before there is a collective among that: a later one
// may be made, by Split, in the midst of a program.
func (g *Group) offerOneShot(ctx context.Context, ids []identity) (offer, error) {
	s := &oneShot{group: g, without: errors.New("not connected yet")}
	near := g.cfg.Size <= C.one_shot_ranks && oneHost(ids)
	o, err := detach(ctx, func() (offer, error) { return s.prepare(ctx, near) }, func(offer) { s.free() })
	if ctx.Err() != nil {
		return offer{}, context.Cause(ctx)
	}
	if !near {
		return offer{}, nil
	}
	if err != nil {
		o.Without = err.Error()
		if !errors.Is(err, errTurnedOff) {
			g.cfg.Log.Warn("nccl: no one-shot all-reduce", "rank", g.cfg.Control.Rank(), "cause", err)
		}
	}
	g.shot = s
	return o, nil
}

// prepare loads the kernels, and makes the slots where the ranks are near each
// other.
func (s *oneShot) prepare(ctx context.Context, near bool) (_ offer, err error) {
	g, l := s.group, s.group.lib
	if g.opts.NoSmallAllReduce {
		return offer{}, errTurnedOff
	}
	// Who turns off P2P may do so because it does not work.
	for _, v := range []string{"NCCL_P2P_DISABLE=1", "NCCL_P2P_LEVEL=LOC", "NCCL_P2P_LEVEL=0"} {
		if name, value, _ := strings.Cut(v, "="); os.Getenv(name) == value {
			return offer{}, fmt.Errorf("%w by %s", errTurnedOff, v)
		}
	}
	if s.kernels, err = oneShotKernelsOf(ctx, g.dev); err != nil || !near {
		return offer{}, err
	}
	defer func() {
		if err != nil {
			s.free()
		}
	}()
	if s.stop, err = g.dev.AllocHost(device.Align); err != nil {
		return offer{}, err
	}
	clear(s.stop.Host())
	var addr C.uint64_t
	if err := l.check("cuMemAlloc", C.drv_alloc(l.driver, l.ctx, &addr, slotsSize)); err != nil {
		return offer{}, err
	}
	s.slots = &block{lib: l, addr: C.uintptr_t(addr), size: slotsSize, exported: true}
	if err := g.zero(s.slots); err != nil { // no call has the number 0
		return offer{}, err
	}
	var handle C.ipc_handle
	if err := l.check("cuIpcGetMemHandle", C.drv_export(l.driver, l.ctx, &handle, addr)); err != nil {
		return offer{}, err
	}
	slot := oneShotLines(g.cfg.Size)
	s.args = C.one_shot{
		stop: C.uint64_t(s.stop.Addr()), stopped: addr + C.uint64_t(g.cfg.Rank*slot*lineSize), // in the slot that nobody uses
		rank: C.uint32_t(g.cfg.Rank), ranks: C.uint32_t(g.cfg.Size), lines: C.uint32_t(slot),
	}
	s.args.slots[g.cfg.Rank] = addr
	return offer{Handle: C.GoBytes(unsafe.Pointer(&handle), C.ipc_handle_size)}, nil
}

// connect maps the other ranks' slots. Either all ranks have mapped all when it
// returns, or on none of them it serves.
func (s *oneShot) connect(ctx context.Context, all []readiness) error {
	g := s.group
	why := func(rank int, what string) {
		s.without = fmt.Errorf("rank %d: %s", g.inJob(rank), what)
		g.cfg.Log.Debug("nccl: all-reduces of few bytes are NCCL's", "rank", g.cfg.Control.Rank(), "cause", s.without)
	}
	offers := make([]offer, len(all))
	for r := range all {
		offers[r] = all[r].Offer
		if offers[r].Without != "" {
			why(r, offers[r].Without)
			s.free() // nobody maps any
			return nil
		}
	}
	g.cfg.Control.Expect(keyMapped)
	verdict := ""
	if _, err := detach(ctx, func() (struct{}, error) { return struct{}{}, s.mapAll(offers) }, nil); err != nil {
		verdict = err.Error()
	}
	verdicts, err := g.gather(ctx, keyMapped, []byte(verdict))
	if err != nil {
		return err
	}
	for r, v := range verdicts {
		if len(v) > 0 {
			why(r, string(v))
			return nil
		}
	}
	s.without = nil
	return nil
}

func (s *oneShot) mapAll(offers []offer) error {
	l := s.group.lib
	for r, o := range offers {
		if r == s.group.cfg.Rank {
			continue
		}
		var handle C.ipc_handle
		if n := copy(unsafe.Slice((*byte)(unsafe.Pointer(&handle)), C.ipc_handle_size), o.Handle); n != C.ipc_handle_size {
			return fmt.Errorf("slots of rank %d have a handle of %d bytes, want %d", s.group.inJob(r), n, C.ipc_handle_size)
		}
		if err := l.check("cuIpcOpenMemHandle", C.drv_map(l.driver, l.ctx, &s.args.slots[r], &handle)); err != nil {
			return fmt.Errorf("slots of rank %d: %w", s.group.inJob(r), err)
		}
		s.mapped = append(s.mapped, s.args.slots[r])
	}
	return nil
}

// takes tells whether operations are a call for it. It depends on nothing but what
// is equal on all ranks, which the operations of a Group are not. After as many
// calls as there are numbers it takes no more: a slot may hold any of them.
func (s *oneShot) takes(ops []op) bool {
	if s == nil || s.without != nil || len(ops) != 1 || ops[0].alone == 0 || s.args.call == math.MaxUint32 {
		return false
	}
	o := &ops[0]
	if o.reduce != reductions[backend.Sum] && o.reduce != reductions[backend.Avg] {
		return false
	}
	size := s.kernels[o._type].size
	return size > 0 && int(o.count)*size <= int(s.args.lines)*lineBytes
}

// enqueue enqueues an operation that it takes, and an event behind it.
func (s *oneShot) enqueue(stream, event uintptr, o *op) error {
	l, a := s.group.lib, &s.args
	k := s.kernels[o._type]
	a.call++
	a.src, a.dst, a.count, a.scale = C.uint64_t(o.src), C.uint64_t(o.dst), C.uint64_t(o.count), 1
	if o.reduce == reductions[backend.Avg] {
		a.scale = 1 / C.double(a.ranks)
	}
	n := (int(o.count)*k.size + lineBytes - 1) / lineBytes
	const warp = 32
	threads := min((n+warp-1)/warp*warp, blockLines)
	blocks := min((n+threads-1)/threads, mostBlocks)
	return l.check("cuLaunchKernel of a one-shot all-reduce", C.one_shot_enqueue(l.driver, l.ctx, k.function,
		C.uintptr_t(stream), C.uintptr_t(event), C.uint(blocks), C.uint(threads), a))
}

// halt ends kernels that wait for peers, also those to come.
func (s *oneShot) halt() {
	if s != nil && s.stop.Len() > 0 {
		atomic.StoreUint32((*uint32)(unsafe.Pointer(unsafe.SliceData(s.stop.Host()))), 1)
	}
}

// unmap lets go of the other ranks' slots: no kernel uses them any more. It may
// block.
func (s *oneShot) unmap() error {
	if s == nil {
		return nil
	}
	l := s.group.lib
	var errs []error
	for _, p := range s.mapped {
		errs = append(errs, l.check("cuIpcCloseMemHandle", C.drv_unmap(l.driver, l.ctx, p)))
	}
	s.mapped = nil
	return errors.Join(errs...)
}

// free gives the slots back, which no rank maps.
func (s *oneShot) free() {
	if s == nil {
		return
	}
	if s.slots != nil {
		s.group.memory.bury(s.slots)
	}
	if s.stop.Len() > 0 {
		s.group.dev.Free(s.stop)
	}
	s.slots, s.stop = nil, device.Buffer{}
}
