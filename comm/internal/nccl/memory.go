//go:build cgo && linux

package nccl

// #include "abi.h"
import "C"

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/awake"
	"github.com/goddp/goddp/internal/kernels"
)

// memory tracks allocations of one device that are to be freed. It belongs to the device, because
// memory can outlive its group.
//
// A free may block in the driver until running kernels end. So memory is freed only in Alloc and
// Close, and only while no collective is pending, which could hang. The cleanup of a buffer just
// queues it.
type memory struct {
	dev     cudaDevice
	busy    atomic.Int64   // pending calls of all groups
	isStuck atomic.Bool    // a communicator was not destroyed: no more memory is freed
	ending  sync.WaitGroup // functions passed to background

	collecting sync.Mutex // held by the goroutine that frees memory

	mu       sync.Mutex
	deferred []*allocation
	events   []device.Event // events after aborted work that may still use memory
}

// allocation is one allocation of device memory.
type allocation struct {
	lib        *library
	addr       C.uintptr_t
	size       int
	isExported bool // shared by cuIpcGetMemHandle: allocated by cuMemAlloc instead of ncclMemAlloc
	isLeaked   bool // the GPU may still use it, which cannot be detected: never freed
}

// allocationRef is the owner of buffers in an allocation. Its cleanup queues the allocation.
type allocationRef struct{ *allocation }

type memoryKey struct{}

func memoryOf(dev cudaDevice) *memory {
	return kernels.Of(dev).Values().Get(memoryKey{}, func() any { return &memory{dev: dev} }).(*memory)
}

// background runs f, which ends users of memory, even after ctx has ended. The returned context ends
// with f.
func (m *memory) background(ctx context.Context, f func()) context.Context {
	ctx, ended := context.WithCancel(context.WithoutCancel(ctx))
	m.busy.Add(1)
	m.ending.Go(func() {
		defer ended()
		defer m.busy.Add(-1)
		f()
	})
	return ctx
}

// Close waits for background functions. The device calls it when it closes.
func (m *memory) Close() { m.ending.Wait() }

// Alloc returns zeroed memory from ncclMemAlloc, which peers can map. It is not registered with the
// communicator: that was not faster between GPUs of one host without multicast, and with multicast
// ncclCommDestroy of NCCL 2.28.3 crashed after a group of Sends and Recvs of four ranks. An
// allocation takes whole pages of 2 MiB. Once it is unreachable, a later Alloc or Close of a group
// of the device frees it.
func (g *Group) Alloc(size int) (device.Buffer, error) {
	if err := g.state.Err(); err != nil || size == 0 {
		return device.Buffer{}, err
	}
	g.memory.collect(g.ctx)
	b, err := g.newAllocation(size)
	if err != nil {
		return device.Buffer{}, err
	}
	if err := g.zero(b); err != nil {
		g.memory.deferFree(b)
		return device.Buffer{}, err
	}
	owner := &allocationRef{b}
	runtime.AddCleanup(owner, g.memory.deferFree, b)
	return device.DeviceBuffer(uintptr(b.addr), size, owner), nil
}

func (g *Group) newAllocation(size int) (*allocation, error) {
	l := g.lib
	b := &allocation{lib: l, size: size}
	if code := C.nccl_alloc(l.nccl, l.driver, l.ctx, &b.addr, C.size_t(size)); code != 0 {
		err := l.check("ncclMemAlloc", code)
		var free, total C.size_t
		if C.drv_mem_info(l.driver, l.ctx, &free, &total) == 0 && int(free) < size {
			used := g.dev.Memory().InUse
			return nil, fmt.Errorf("%w (%w)", &device.OutOfMemoryError{Device: g.dev.String(), Asked: int64(size), InUse: used, Free: int64(free)}, err)
		}
		return nil, err
	}
	return b, nil
}

// zero clears an allocation on a new stream, because peers may block the streams in use.
func (g *Group) zero(b *allocation) error {
	s, err := g.dev.NewStream(false)
	if err != nil {
		return err
	}
	defer s.Close()
	l := g.lib
	handle := C.uintptr_t(s.(cudaStream).Handle())
	if err := l.check("cuMemsetD8Async", C.drv_zero(l.driver, l.ctx, b.addr, C.size_t(b.size), handle)); err != nil {
		return err
	}
	ctx, cancel := awake.WithTimeout(g.ctx, g.cfg.Timeout)
	defer cancel()
	end := s.Mark()
	if err = end.Sync(ctx); err != nil {
		if _, unknown := end.Done(); unknown != nil {
			b.isLeaked = true
		} else {
			g.memory.keepUntil(end)
		}
	}
	return err
}

// deferFree queues an unreachable allocation. It runs on the cleanup goroutine of Go's runtime.
func (m *memory) deferFree(b *allocation) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.deferred = append(m.deferred, b)
}

// keepUntil keeps all memory until e is complete.
func (m *memory) keepUntil(e device.Event) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.events = append(m.events, e)
}

// collect frees the queued allocations, unless they may still be in use. Users of an allocation are
// known before it is queued, so collect takes the queue first and then checks for users. ctx may
// have ended, because a closing group also collects.
func (m *memory) collect(ctx context.Context) {
	if !m.collecting.TryLock() {
		return
	}
	defer m.collecting.Unlock()
	m.mu.Lock()
	deferred := m.deferred
	m.deferred = nil
	m.mu.Unlock()
	if len(deferred) == 0 {
		return
	}
	idle := m.busy.Load() == 0 && !m.isStuck.Load() && m.isUnused()
	if idle {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), abortTimeout)
		defer cancel()
		idle = m.dev.Compute().Sync(ctx) == nil
	}
	for _, b := range deferred {
		if idle {
			b.free()
		} else {
			m.deferFree(b)
		}
	}
}

// isUnused reports whether all work that may use memory has ended.
func (m *memory) isUnused() bool {
	m.mu.Lock()
	events := slices.Clone(m.events)
	m.mu.Unlock()
	for _, e := range events {
		if done, err := e.Done(); !done || err != nil {
			return false
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.events = slices.DeleteFunc(m.events, func(e device.Event) bool { return slices.Contains(events, e) })
	return len(m.events) == 0 // more events may have been added
}

// free frees an allocation. It ignores errors: the memory is freed with the process.
func (b *allocation) free() {
	switch {
	case b.isLeaked:
	case b.isExported:
		C.drv_free(b.lib.driver, b.lib.ctx, C.uint64_t(b.addr))
	default:
		C.nccl_free(b.lib.nccl, b.lib.driver, b.lib.ctx, b.addr)
	}
}
