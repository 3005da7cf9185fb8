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
)

// memory is what the groups of one device allocated and nobody refers to any
// more. It is kept with the device, since memory may outlive its group.
//
// Giving memory back may wait, inside the driver, for kernels in flight: so it
// happens only within Alloc and Close, and while no collective is pending that
// may hang. A clean-up only queues.
type memory struct {
	dev   cudaDevice
	busy  atomic.Int64 // pending calls of all groups
	stuck atomic.Bool  // some group's communicators did not end: nothing is freed any more

	collecting sync.Mutex // for one at a time

	mu     sync.Mutex
	dead   []*block
	events []device.Event // behind what was given up on, and may still use memory
}

// block is one allocation.
type block struct {
	lib      *library
	addr     C.uintptr_t
	size     int
	exported bool // by cuIpcGetMemHandle, which wants libcuda's memory rather than NCCL's
	lost     bool // nobody can tell whether the GPU is through with it: it stays
}

// blockRef is what buffers refer to: the last of them takes it along.
type blockRef struct{ *block }

type memoryKey struct{}

func memoryOf(dev cudaDevice) *memory {
	return dev.Values().Get(memoryKey{}, func() any { return &memory{dev: dev} }).(*memory)
}

// Alloc returns zeroed memory of NCCL's own, which peers can map. It is not
// registered with the communicator: between GPUs of one host without multicast
// that made nothing faster, and with it ncclCommDestroy crashed in NCCL 2.28.3
// after a group of Sends and Recvs of four ranks. It takes whole pages of 2 MiB,
// and is given back some time after nothing refers to it any more, by a later
// Alloc or Close of a group of the device.
func (g *Group) Alloc(size int) (device.Buffer, error) {
	if err := g.state.Err(); err != nil || size == 0 {
		return device.Buffer{}, err
	}
	g.memory.collect()
	b, err := g.newBlock(size)
	if err != nil {
		return device.Buffer{}, err
	}
	if err := g.zero(b); err != nil {
		g.memory.bury(b)
		return device.Buffer{}, err
	}
	owner := &blockRef{b}
	runtime.AddCleanup(owner, g.memory.bury, b)
	return device.DeviceBuffer(uintptr(b.addr), size, owner), nil
}

func (g *Group) newBlock(size int) (*block, error) {
	l := g.lib
	b := &block{lib: l, size: size}
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

// zero clears a block on a stream of its own, since those in use may be held
// up by a peer.
func (g *Group) zero(b *block) error {
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
			b.lost = true
		} else {
			g.memory.behind(end)
		}
	}
	return err
}

// bury queues a block that nothing refers to. It runs on the collector's
// goroutine.
func (m *memory) bury(b *block) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.dead = append(m.dead, b)
}

// behind keeps all memory until e is reached.
func (m *memory) behind(e device.Event) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.events = append(m.events, e)
}

// collect gives dead blocks back, unless something may still use them. What may use a
// block is known of before it is dead, so it is asked about afterwards.
func (m *memory) collect() {
	if !m.collecting.TryLock() {
		return
	}
	defer m.collecting.Unlock()
	m.mu.Lock()
	dead := m.dead
	m.dead = nil
	m.mu.Unlock()
	if len(dead) == 0 {
		return
	}
	idle := m.busy.Load() == 0 && !m.stuck.Load() && m.settled()
	if idle {
		ctx, cancel := context.WithTimeout(context.Background(), abortTime)
		defer cancel()
		idle = m.dev.Compute().Sync(ctx) == nil
	}
	for _, b := range dead {
		if idle {
			b.free()
		} else {
			m.bury(b)
		}
	}
}

// settled tells whether what was given up on is known to use memory no more.
func (m *memory) settled() bool {
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
	return len(m.events) == 0 // there may be more by now
}

// free gives a block back. What fails is the process's to lose.
func (b *block) free() {
	switch {
	case b.lost:
	case b.exported:
		C.drv_free(b.lib.driver, b.lib.ctx, C.uint64_t(b.addr))
	default:
		C.nccl_free(b.lib.nccl, b.lib.driver, b.lib.ctx, b.addr)
	}
}
