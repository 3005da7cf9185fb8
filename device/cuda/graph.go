//go:build cgo && linux

package cuda

// #include "driver.h"
import "C"

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/internal/arena"
	"github.com/goddp/goddp/internal/kernels"
)

var _ kernels.Capturer = (*gpuDevice)(nil)

// capture is a graph being captured. Only the goroutine that called Capture uses it.
type capture struct {
	d      *gpuDevice
	thread int // the thread to which that goroutine is locked
	pool   *pool
	err    error // the first call that cannot be captured
}

// pool is memory of graphs. The pool has allocated it from the device's arena, so other work cannot use it.
type pool struct {
	d      *gpuDevice
	memory *arena.Arena
	graphs atomic.Int32 // the number of open graphs that use it
}

// gpuGraph implements kernels.Graph.
type gpuGraph struct {
	d    *gpuDevice
	pool *pool // nil after Close

	mu   sync.Mutex
	exec C.uintptr_t // the CUgraphExec; 0 after Revoke
}

// capture returns the capture of the calling goroutine, or nil.
func (d *gpuDevice) capture() *capture {
	r := d.rec.Load()
	if r == nil || r.thread != syscall.Gettid() {
		return nil
	}
	return r
}

// Capturing implements kernels.Capturer.
func (d *gpuDevice) Capturing() bool { return d.capture() != nil }

// Capture implements kernels.Capturer.
func (d *gpuDevice) Capture(ctx context.Context, like kernels.Graph, f func() error) (_ kernels.Graph, err error) {
	if err := d.compute.Sync(ctx); err != nil {
		return nil, err
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	r := &capture{d: d, thread: syscall.Gettid()}
	if like != nil {
		r.pool = like.(*gpuGraph).pool
		r.pool.memory.Share()
	} else {
		r.pool = d.newPool()
	}
	r.pool.graphs.Add(1)
	if err := d.check("cuStreamBeginCapture", C.drv_capture_begin(d.drv.fns, d.ctx, d.compute.handle)); err != nil {
		r.pool.leave()
		return nil, err
	}
	d.compute.forget()
	if !d.rec.CompareAndSwap(nil, r) {
		panic(fmt.Errorf("%s: Capture within Capture", d.name))
	}
	g := &gpuGraph{d: d, pool: r.pool}
	finished := false
	defer func() {
		code := C.drv_capture_end(d.drv.fns, d.ctx, d.compute.handle, &g.exec)
		ended := r.end(ctx)
		d.rec.Store(nil)
		if !finished { // f panics
			g.Close()
			return
		}
		if r.err != nil && !errors.Is(err, r.err) {
			err = errors.Join(r.err, err)
		}
		if err = errors.Join(err, ended); err == nil {
			err = d.check("cuStreamEndCapture", code)
		}
		if err != nil {
			g.Close()
		}
	}()
	err = f()
	finished = true
	return g, err
}

// captures reports whether work on s is being captured. Any goroutine may call it.
func (r *capture) captures(s *gpuStream) bool {
	captured, err := s.capturing()
	return captured && err == nil
}

// refuse returns the error of a call that cannot be captured, and makes Capture return it.
func (r *capture) refuse(call string) error {
	err := &kernels.CaptureError{Device: r.d.name, Call: call}
	if r.err == nil {
		r.err = err
	}
	return err
}

// end marks the captured events as complete, because their work does not run now. It waits for earlier
// events of the streams.
func (r *capture) end(ctx context.Context) error {
	r.d.mu.Lock()
	streams := make([]*gpuStream, 0, len(r.d.streams))
	for s := range r.d.streams {
		streams = append(streams, s)
	}
	r.d.mu.Unlock()
	var errs []error
	for _, s := range streams {
		s.wrote.Store(nil)
		s.order.Lock()
		var before, last *gpuEvent // the last event that was not captured, and the last captured event
		for _, e := range s.pending {
			if e.in != r {
				before = e
			} else {
				last, s.last = e, nil
			}
		}
		s.order.Unlock()
		if last == nil {
			continue
		}
		if before != nil {
			errs = append(errs, before.Sync(ctx))
		}
		s.mu.Lock()
		s.reached.Store(max(s.reached.Load(), last.number))
		s.mu.Unlock()
	}
	return errors.Join(errs...)
}

// forget ensures that the next event of the stream is a new one, and that the next kernel does not start early.
func (s *gpuStream) forget() {
	s.wrote.Store(nil)
	s.order.Lock()
	defer s.order.Unlock()
	s.last = nil
}

// Launch implements kernels.Graph.
func (g *gpuGraph) Launch() error {
	d := g.d
	if err := d.Err(); err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.exec == 0 {
		return fmt.Errorf("%s: launch of a captured graph that is no longer valid", d.name)
	}
	return d.compute.enqueued(d.check("cuGraphLaunch", C.drv_graph_launch(d.drv.fns, d.ctx, g.exec, d.compute.handle)))
}

// Close implements kernels.Graph.
func (g *gpuGraph) Close() error {
	if g.pool == nil {
		return nil
	}
	p := g.pool
	g.pool = nil
	if g.d.Err() != nil {
		return nil // the graph and the memory were freed with the context
	}
	p.leave()
	return g.Revoke()
}

// Revoke implements kernels.Graph.
func (g *gpuGraph) Revoke() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	exec := g.exec
	g.exec = 0
	if exec == 0 || g.d.Err() != nil {
		return nil
	}
	return g.d.check("cuGraphExecDestroy", C.drv_graph_destroy(g.d.drv.fns, g.d.ctx, exec))
}

// newPool returns a pool without graphs.
func (d *gpuDevice) newPool() *pool {
	p := &pool{d: d}
	p.memory = arena.NewPool(d.memory.Alloc, d.memory.Free)
	d.changePools(func(all []*pool) []*pool { return append(all, p) })
	return p
}

// changePools replaces the list of pools.
func (d *gpuDevice) changePools(change func([]*pool) []*pool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var all []*pool
	if old := d.pools.Load(); old != nil {
		all = slices.Clone(*old)
	}
	if all = change(all); len(all) == 0 {
		d.pools.Store(nil)
		return
	}
	d.pools.Store(&all)
}

// poolOf returns the pool that b was allocated from, or nil.
func (d *gpuDevice) poolOf(b device.Buffer) *pool {
	all := d.pools.Load()
	if all == nil {
		return nil
	}
	for _, p := range *all {
		if p.memory.Has(b) {
			return p
		}
	}
	return nil
}

// leave removes one graph from the pool. When no graph is left, free memory returns to the device's
// arena. Launches still in flight run before the work of later users of that memory.
func (p *pool) leave() {
	p.graphs.Add(-1)
	p.trim()
}

// free takes back memory of the pool.
func (p *pool) free(b device.Buffer) {
	p.memory.Free(b)
	p.trim()
}

// trim returns memory that no graph uses to the device's arena.
func (p *pool) trim() {
	if p.graphs.Load() > 0 {
		return
	}
	p.memory.Trim()
	if p.memory.Stats().InUse == 0 {
		p.d.changePools(func(all []*pool) []*pool {
			return slices.DeleteFunc(all, func(q *pool) bool { return q == p })
		})
	}
}
