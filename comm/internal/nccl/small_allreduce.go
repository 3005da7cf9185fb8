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
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/kernels"
)

// wideFrom is the size in bytes from which small all-reduces use wide lines. Without NVLink it is the
// size of the largest small all-reduce.
const wideFrom = 64 << 10

// Layout of the memory of small_allreduce.cu. In each rank's memory every rank has slotCopies
// slots, which calls use alternately. A slot consists of linesPerSlot lines of lineSize bytes, which
// hold lineBytes bytes of elements.
//
// After them are slots of wide lines, one set per step of a call. Such a slot consists of groups of
// groupSize bytes, which hold groupBytes bytes of elements.
const (
	slotCopies   = 2
	lineSize     = 16
	lineBytes    = 8
	linesPerSlot = wideFrom / lineBytes
	wideSize     = 6 << 20 // all slots of wide lines in one rank's memory
	groupSize    = 512
	groupBytes   = 480
)

// slotsSize returns the size in bytes of all slots in one rank's memory, except the slots of wide lines.
func slotsSize(ranks int) int { return slotCopies * ranks * linesPerSlot * lineSize }

// wideSteps returns the number of steps of a small all-reduce with wide lines.
func wideSteps(ranks int) int { return min(ranks-1, 2) }

// groupsPerSlot returns the number of groups of a slot of wide lines. With one step a slot holds all
// elements of a call. With two steps a slot holds the elements that one rank owns.
func groupsPerSlot(ranks int) int {
	return wideSize / (slotCopies * wideSteps(ranks) * ranks * groupSize)
}

// mostWide returns the size in bytes of the largest small all-reduce with wide lines.
func mostWide(ranks int) int {
	owners := 1 // number of ranks that own elements of a call; each slot holds the elements of one owner
	if wideSteps(ranks) == 2 {
		owners = ranks
	}
	return groupsPerSlot(ranks) * owners * groupBytes
}

// Launch configuration. Each thread of a block handles one line at a time. The blocks are few enough to
// run concurrently with the program's kernels.
const (
	threadsPerBlock = 512
	maxBlocks       = 32
)

//go:embed small_allreduce.cu
var smallAllReduceSource string

// smallAllReduceTypes are the element types for which small_allreduce.cu has kernels.
var smallAllReduceTypes = [...]device.DType{device.Float32, device.Float64, device.Float16, device.BFloat16}

// smallAllReduceKernels are the kernels, indexed by NCCL's number of the element type. bfloat16 has the
// largest number.
type smallAllReduceKernels [9 + 1]smallAllReduceKernel

type smallAllReduceKernel struct {
	function, wide C.uintptr_t // wide: with wide lines
	size           int         // size of an element in bytes; 0 if there is no kernel
}

// loadedKernels are the kernels of one device.
type loadedKernels struct {
	mu     sync.Mutex
	loaded bool
	smallAllReduceKernels
}

type kernelsKey struct{}

// compiler is a GPU that can compile CUDA C++. Compile returns the CUfunctions of the given names. Each
// name must end in a floating-point type.
type compiler interface {
	Compile(ctx context.Context, name, text string, functions ...string) ([]uintptr, error)
}

func loadKernels(ctx context.Context, dev cudaDevice) (smallAllReduceKernels, error) {
	c, ok := dev.(compiler)
	if !ok {
		return smallAllReduceKernels{}, fmt.Errorf("%v cannot compile kernels", dev)
	}
	k := kernels.Of(dev).Values().Get(kernelsKey{}, func() any { return &loadedKernels{} }).(*loadedKernels)
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.loaded {
		return k.smallAllReduceKernels, nil
	}
	var names []string
	for _, dt := range smallAllReduceTypes {
		names = append(names, "small_all_reduce_"+dt.String(), "small_all_reduce_wide_"+dt.String())
	}
	functions, err := c.Compile(ctx, "small_allreduce.cu", smallAllReduceSource, names...)
	if err != nil {
		return smallAllReduceKernels{}, err
	}
	for i, dt := range smallAllReduceTypes {
		k.smallAllReduceKernels[types[dt]] = smallAllReduceKernel{C.uintptr_t(functions[2*i]), C.uintptr_t(functions[2*i+1]), dt.Size()}
	}
	k.loaded = true
	return k.smallAllReduceKernels, nil
}

// smallAllReduce is one rank's part in small all-reduces, which do not use NCCL. It holds the slots,
// which other ranks of the host write to, and the mapped slots of the other ranks. enqueue must be called
// from one goroutine at a time, and in the same order on all ranks.
//
// The slots may be freed only when no other rank has mapped them or will map them. If the group breaks,
// is never complete, or its ranks leave one by one, a rank cannot know this, and the slots are leaked unless
// Group.Free is called.
type smallAllReduce struct {
	group    *Group
	kernels  smallAllReduceKernels
	slots    *allocation
	stop     device.Buffer // a word in host memory; kernels end when it is not 0
	mapped   []C.uint64_t  // the peers' slots
	disabled error         // why NCCL runs small all-reduces; nil if all ranks have mapped all slots
	narrow   error         // why wide lines are not used; nil if NVLink connects all ranks
	args     C.small_all_reduce
}

// offer describes a rank's slots to the others.
type offer struct {
	Handle []byte `json:",omitempty"`
	Reason string `json:",omitempty"` // why the rank has no slots; "" if it has
}

// errTurnedOff is the reason if the user disabled small all-reduces.
var errTurnedOff = errors.New("turned off")

// offerSlots allocates this rank's slots, if all ranks are on one host and are few enough. If that fails,
// offerSlots returns no error: the offer contains the reason, and NCCL runs small all-reduces.
//
// offerSlots always loads the kernels. Loading may wait for all work on the GPU. For the first group that
// is harmless, because no collective is running yet; a group from Split may be created while collectives
// run.
func (g *Group) offerSlots(ctx context.Context, ids []identity) (offer, error) {
	s := &smallAllReduce{group: g, disabled: errors.New("not connected yet")}
	isCandidate := g.cfg.Size <= C.max_small_ranks && oneHost(ids)
	o, err := detach(ctx, func() (offer, error) { return s.prepare(ctx, isCandidate) }, func(offer) { s.free() })
	if ctx.Err() != nil {
		return offer{}, context.Cause(ctx)
	}
	if !isCandidate {
		return offer{}, nil
	}
	if err != nil {
		o.Reason = err.Error()
		if !errors.Is(err, errTurnedOff) {
			g.cfg.Log.Warn("nccl: no kernel for small all-reduces", "rank", g.cfg.Control.Rank(), "cause", err)
		}
	}
	g.small = s
	return o, nil
}

// prepare loads the kernels. If isCandidate is true, it also allocates the slots.
func (s *smallAllReduce) prepare(ctx context.Context, isCandidate bool) (_ offer, err error) {
	g, l := s.group, s.group.lib
	if g.opts.NoSmallAllReduce {
		return offer{}, errTurnedOff
	}
	// A user may disable P2P because it does not work.
	for _, v := range []string{"NCCL_P2P_DISABLE=1", "NCCL_P2P_LEVEL=LOC", "NCCL_P2P_LEVEL=0"} {
		if name, value, _ := strings.Cut(v, "="); os.Getenv(name) == value {
			return offer{}, fmt.Errorf("%w by %s", errTurnedOff, v)
		}
	}
	if s.kernels, err = loadKernels(ctx, g.dev); err != nil || !isCandidate {
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
	size := slotsSize(g.cfg.Size) + wideSize
	if err := l.check("cuMemAlloc", C.drv_alloc(l.driver, l.ctx, &addr, C.size_t(size))); err != nil {
		return offer{}, err
	}
	s.slots = &allocation{lib: l, addr: C.uintptr_t(addr), size: size, isExported: true}
	if err := g.zero(s.slots); err != nil { // call numbers begin at 1
		return offer{}, err
	}
	var handle C.ipc_handle
	if err := l.check("cuIpcGetMemHandle", C.drv_export(l.driver, l.ctx, &handle, addr)); err != nil {
		return offer{}, err
	}
	s.args = C.small_all_reduce{
		stop: C.uint64_t(s.stop.Addr()), stopped: addr + C.uint64_t(g.cfg.Rank*linesPerSlot*lineSize), // in the slot for data from this rank itself, which is otherwise unused
		rank: C.uint32_t(g.cfg.Rank), ranks: C.uint32_t(g.cfg.Size), lines: linesPerSlot,
		wide: C.uint64_t(slotsSize(g.cfg.Size)), groups: C.uint64_t(groupsPerSlot(g.cfg.Size)),
	}
	s.args.slots[g.cfg.Rank] = addr
	return offer{Handle: C.GoBytes(unsafe.Pointer(&handle), C.ipc_handle_size)}, nil
}

// mapping describes the slots that a rank has mapped to the others.
type mapping struct {
	Failed string `json:",omitempty"` // why the rank could not map the slots of all ranks
	Narrow string `json:",omitempty"` // why the rank cannot send wide lines to all ranks
}

// connect maps the other ranks' slots. When it returns, either all ranks have mapped all slots, or small
// all-reduces are disabled on all ranks. Likewise either all ranks use wide lines, or none.
func (s *smallAllReduce) connect(ctx context.Context, all []readiness, ids []identity) error {
	g := s.group
	why := func(rank int, what string) {
		s.disabled = fmt.Errorf("rank %d: %s", g.jobRank(rank), what)
		g.cfg.Log.Debug("nccl: small all-reduces use NCCL", "rank", g.cfg.Control.Rank(), "cause", s.disabled)
	}
	offers := make([]offer, len(all))
	for r := range all {
		offers[r] = all[r].Offer
		if offers[r].Reason != "" {
			why(r, offers[r].Reason)
			s.free() // no rank maps slots
			return nil
		}
	}
	g.cfg.Control.Expect(keyMapped)
	mine, err := detach(ctx, func() (m mapping, err error) {
		if err = s.mapAll(offers); err != nil {
			return m, err
		}
		if err := s.checkPeers(ids); err != nil {
			m.Narrow = err.Error()
		}
		return m, nil
	}, nil)
	if err != nil {
		mine.Failed = err.Error()
	}
	value, err := json.Marshal(mine)
	if err != nil {
		return err
	}
	values, err := g.gather(ctx, keyMapped, value)
	if err != nil {
		return err
	}
	for r, v := range values {
		var m mapping
		if err := json.Unmarshal(v, &m); err != nil {
			return fmt.Errorf("mapping of rank %d: %w", g.jobRank(r), err)
		}
		if m.Failed != "" {
			why(r, m.Failed)
			return nil
		}
		if m.Narrow != "" {
			s.narrow = fmt.Errorf("rank %d: %s", g.jobRank(r), m.Narrow)
		}
	}
	if s.narrow != nil {
		g.cfg.Log.Debug("nccl: NCCL runs all-reduces of more than 64 KiB", "rank", g.cfg.Control.Rank(), "cause", s.narrow)
	}
	s.disabled = nil
	return nil
}

// checkPeers returns an error if this rank cannot use LL128 to every peer, or if the user disabled LL128.
func (s *smallAllReduce) checkPeers(ids []identity) error {
	g := s.group
	if v := os.Getenv("NCCL_PROTO"); v != "" && strings.HasPrefix(v, "^") == strings.Contains(strings.ToUpper(v), "LL128") {
		return fmt.Errorf("%w by NCCL_PROTO=%s", errTurnedOff, v)
	}
	for r, id := range ids {
		if r == g.cfg.Rank {
			continue
		}
		if err := g.lib.checkPeer(id.GPU); err != nil {
			return fmt.Errorf("GPU %s of rank %d: %w", id.GPU, g.jobRank(r), err)
		}
	}
	return nil
}

func (s *smallAllReduce) mapAll(offers []offer) error {
	l := s.group.lib
	for r, o := range offers {
		if r == s.group.cfg.Rank {
			continue
		}
		var handle C.ipc_handle
		if n := copy(unsafe.Slice((*byte)(unsafe.Pointer(&handle)), C.ipc_handle_size), o.Handle); n != C.ipc_handle_size {
			return fmt.Errorf("rank %d sent a CUDA IPC handle of %d bytes, want %d", s.group.jobRank(r), n, C.ipc_handle_size)
		}
		if err := l.check("cuIpcOpenMemHandle", C.drv_map(l.driver, l.ctx, &s.args.slots[r], &handle)); err != nil {
			return fmt.Errorf("slots of rank %d: %w", s.group.jobRank(r), err)
		}
		s.mapped = append(s.mapped, s.args.slots[r])
	}
	return nil
}

// handles reports whether the operations are a small all-reduce. The result is equal on all ranks,
// because it depends only on parameters that are equal on all ranks. For the operations of a Group, which
// may differ between ranks, handles returns false. When all call numbers have been used, handles returns
// false forever, because a slot may still contain any number.
func (s *smallAllReduce) handles(ops []op) bool {
	if s == nil || s.disabled != nil || len(ops) != 1 || ops[0].alone == 0 || s.args.call == math.MaxUint32 {
		return false
	}
	o := &ops[0]
	if o.reduce != reductions[backend.Sum] && o.reduce != reductions[backend.Avg] {
		return false
	}
	size := s.kernels[o._type].size
	return size > 0 && int(o.count)*size <= s.most()
}

// most returns the size in bytes of the largest small all-reduce.
func (s *smallAllReduce) most() int {
	if s.narrow != nil {
		return wideFrom
	}
	return mostWide(int(s.args.ranks))
}

// enqueue launches the kernel for an operation that the method handles accepted, and records event after it.
func (s *smallAllReduce) enqueue(stream, event uintptr, o *op) error {
	s.args.call++
	return s.launch(stream, event, o)
}

// capture is like enqueue, but for an operation that a graph repeats. The kernel reads the number of the call
// from device memory.
func (s *smallAllReduce) capture(stream, event uintptr, o *op, number device.Tensor) error {
	s.args.at = C.uint64_t(number.Buf.Addr())
	defer func() { s.args.at = 0 }()
	return s.launch(stream, event, o)
}

func (s *smallAllReduce) launch(stream, event uintptr, o *op) error {
	l, a := s.group.lib, &s.args
	k := s.kernels[o._type]
	a.src, a.dst, a.count, a.scale = C.uint64_t(o.src), C.uint64_t(o.dst), C.uint64_t(o.count), 1
	if o.reduce == reductions[backend.Avg] {
		a.scale = 1 / C.double(a.ranks)
	}
	const warp = 32
	size, function := int(o.count)*k.size, k.function
	var n int // threads
	if s.narrow == nil && size >= wideFrom {
		function, n = k.wide, (size+groupBytes-1)/groupBytes*warp
	} else {
		n = (size + lineBytes - 1) / lineBytes
	}
	threads := min((n+warp-1)/warp*warp, threadsPerBlock)
	blocks := min((n+threads-1)/threads, maxBlocks)
	return l.check("cuLaunchKernel of a small all-reduce", C.small_enqueue(l.driver, l.ctx, function,
		C.uintptr_t(stream), C.uintptr_t(event), C.uint(blocks), C.uint(threads), a))
}

// halt ends running and future kernels that wait for peers.
func (s *smallAllReduce) halt() {
	if s != nil && s.stop.Len() > 0 {
		atomic.StoreUint32((*uint32)(unsafe.Pointer(unsafe.SliceData(s.stop.Host()))), 1)
	}
}

// unmap unmaps the other ranks' slots. No kernel may use them any more. It may block.
func (s *smallAllReduce) unmap() error {
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

// free frees the slots. No rank may map them.
func (s *smallAllReduce) free() {
	if s == nil {
		return
	}
	if s.slots != nil {
		s.group.memory.deferFree(s.slots)
	}
	if s.stop.Len() > 0 {
		s.group.dev.Free(s.stop)
	}
	s.slots, s.stop = nil, device.Buffer{}
}
