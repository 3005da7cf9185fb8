//go:build cgo && linux

package nccl

// #include "abi.h"
import "C"

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/goddp/goddp/comm/backend"
	"github.com/goddp/goddp/device"
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

// oneShotLines is how many lines a slot has in a group of ranks. With as many
// elements, a mebibyte among all ranks, one step is faster than NCCL's.
func oneShotLines(ranks int) int { return slotsSize / (turns * ranks * lineSize) }

// Keys in the store.
const (
	keyOffer  = "oneshot/offer/"  // of rank r
	keyMapped = "oneshot/mapped/" // by rank r: empty, or why not
)

//go:embed oneshot.cu
var oneShotSource string

// oneShotTypes are the element types that oneshot.cu has kernels for.
var oneShotTypes = [...]device.DType{device.Float32, device.Float64, device.Float16, device.BFloat16}

// oneShotKernels are a device's kernels, by NCCL's number of the element type.
type oneShotKernels struct {
	mu    sync.Mutex
	found map[C.int]oneShotKernel
}

type oneShotKernel struct {
	function C.uintptr_t
	size     int // of an element
}

type oneShotKey struct{}

func oneShotKernelsOf(ctx context.Context, dev cudaDevice) (map[C.int]oneShotKernel, error) {
	k := dev.Values().Get(oneShotKey{}, func() any { return &oneShotKernels{} }).(*oneShotKernels)
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.found != nil {
		return k.found, nil
	}
	names := make([]string, len(oneShotTypes))
	for i, dt := range oneShotTypes {
		names[i] = "one_shot_" + dt.String()
	}
	functions, err := dev.Compile(ctx, "oneshot.cu", oneShotSource, names...)
	if err != nil {
		return nil, err
	}
	k.found = map[C.int]oneShotKernel{}
	for i, dt := range oneShotTypes {
		k.found[types[dt]] = oneShotKernel{C.uintptr_t(functions[i]), dt.Size()}
	}
	return k.found, nil
}

// oneShot is a rank's part in all-reduces of few bytes that NCCL does not see:
// slots, memory that the other ranks of the host write to, and what is known of
// theirs. Calls of enqueue are one at a time, and in the same order on all ranks.
//
// A peer may write to the slots as long as its communicator lasts, so they are
// freed when all communicators have ended together, and otherwise left to the
// process's end.
type oneShot struct {
	group   *Group
	kernels map[C.int]oneShotKernel
	slots   *block
	stop    device.Buffer // a word of the host's: not 0 once kernels are to end
	stopped device.Buffer // a word of the GPU's: not 0 once one did
	mapped  []C.uint64_t  // the peers' slots
	ready   bool          // all ranks have mapped all slots
	args    C.one_shot
}

// offer is what a rank tells the others of its slots.
type offer struct {
	Handle  []byte `json:",omitempty"`
	Without string `json:",omitempty"` // why it has none
}

// offerOneShot makes this rank's slots and tells the others. What hinders it is
// told as well, and no error: then NCCL has everything.
func (g *Group) offerOneShot(ctx context.Context) (*oneShot, error) {
	s := &oneShot{group: g}
	o, err := detach(ctx, func() (offer, error) { return s.prepare(ctx) }, nil)
	if err != nil {
		o = offer{Without: err.Error()}
	}
	value, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	return s, g.cfg.Store.Set(ctx, keyOffer+strconv.Itoa(g.cfg.Rank), value)
}

func (s *oneShot) prepare(ctx context.Context) (offer, error) {
	g := s.group
	if g.opts.NoOneShot {
		return offer{Without: "it is turned off"}, nil
	}
	l := g.lib
	var err error
	if s.kernels, err = oneShotKernelsOf(ctx, g.dev); err != nil {
		return offer{}, err
	}
	if s.stop, err = g.dev.AllocHost(device.Align); err != nil {
		return offer{}, err
	}
	clear(s.stop.Host())
	if s.stopped, err = g.dev.Alloc(device.Align); err != nil {
		return offer{}, err
	}
	var addr C.uint64_t
	if err := l.check("cuMemAlloc", C.drv_alloc(l.driver, l.ctx, &addr, slotsSize)); err != nil {
		return offer{}, err
	}
	s.slots = &block{lib: l, addr: C.uintptr_t(addr), size: slotsSize, exported: true}
	err = errors.Join(g.zero(s.slots.addr, slotsSize), g.zero(C.uintptr_t(s.stopped.Addr()), s.stopped.Len())) // no call has the number 0
	if err != nil {
		return offer{}, err
	}
	var handle C.ipc_handle
	if err := l.check("cuIpcGetMemHandle", C.drv_export(l.driver, l.ctx, &handle, addr)); err != nil {
		return offer{}, err
	}
	s.args = C.one_shot{
		stop: C.uint64_t(s.stop.Addr()), stopped: C.uint64_t(s.stopped.Addr()),
		rank: C.uint32_t(g.cfg.Rank), ranks: C.uint32_t(g.cfg.Size), lines: C.uint32_t(oneShotLines(g.cfg.Size)),
	}
	s.args.slots[g.cfg.Rank] = addr
	return offer{Handle: C.GoBytes(unsafe.Pointer(&handle), C.ipc_handle_size)}, nil
}

// connect maps the other ranks' slots. Either all ranks have mapped all when it
// returns, or none is ready.
func (s *oneShot) connect(ctx context.Context) error {
	g := s.group
	without := func(rank int, why string) error {
		g.cfg.Log.Debug("nccl: no one-shot all-reduce", "rank", g.cfg.Rank, "because of", rank, "where", why)
		return nil
	}
	values, err := fromAll(ctx, g.cfg.Store, keyOffer, g.cfg.Size)
	if err != nil {
		return err
	}
	offers := make([]offer, g.cfg.Size)
	for r, v := range values {
		if err := json.Unmarshal(v, &offers[r]); err != nil {
			return fmt.Errorf("slots of rank %d: %w", r, err)
		}
		if why := offers[r].Without; why != "" {
			return without(r, why)
		}
	}
	verdict := ""
	if _, err := detach(ctx, func() (struct{}, error) { return struct{}{}, s.mapAll(offers) }, nil); err != nil {
		verdict = err.Error()
	}
	if err := g.cfg.Store.Set(ctx, keyMapped+strconv.Itoa(g.cfg.Rank), []byte(verdict)); err != nil {
		return err
	}
	verdicts, err := fromAll(ctx, g.cfg.Store, keyMapped, g.cfg.Size)
	if err != nil {
		return err
	}
	for r, v := range verdicts {
		if len(v) > 0 {
			return without(r, string(v))
		}
	}
	s.ready = true
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
			return fmt.Errorf("slots of rank %d have a handle of %d bytes, want %d", r, n, C.ipc_handle_size)
		}
		if err := l.check("cuIpcOpenMemHandle", C.drv_map(l.driver, l.ctx, &s.args.slots[r], &handle)); err != nil {
			return fmt.Errorf("slots of rank %d: %w", r, err)
		}
		s.mapped = append(s.mapped, s.args.slots[r])
	}
	return nil
}

// takes tells whether operations are a call for it. All ranks come to the same
// answer. After as many calls as there are numbers it takes no more: a slot may
// hold any of them.
func (s *oneShot) takes(ops []op) bool {
	if s == nil || !s.ready || len(ops) != 1 || s.args.call == math.MaxUint32 {
		return false
	}
	o := &ops[0]
	if o.kind != C.op_all_reduce || o.reduce != reductions[backend.Sum] && o.reduce != reductions[backend.Avg] {
		return false
	}
	k, ok := s.kernels[o._type]
	return ok && int(o.count)*k.size <= int(s.args.lines)*lineBytes
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

// unmap lets go of the other ranks' slots: no kernel uses them any more.
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

// free gives the slots back, which no rank has mapped any more.
func (s *oneShot) free() {
	if s == nil {
		return
	}
	if s.slots != nil {
		s.group.memory.bury(s.slots)
	}
	for _, b := range []device.Buffer{s.stop, s.stopped} {
		if b.Len() > 0 {
			s.group.dev.Free(b)
		}
	}
}
