//go:build cgo && linux

package cuda

// #include "driver.h"
import "C"

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/goddp/goddp/device"
)

// workspaceSize is the size of a stream's scratch memory, in bytes, as cuBLAS recommends for GPUs
// of compute capability 9.0.
const workspaceSize = 32 << 20

// gpuStream implements device.Stream.
type gpuStream struct {
	d      *gpuDevice
	handle C.uintptr_t
	work   device.Buffer // scratch memory of the kernels on this stream; allocated when the first kernel needs it

	// order is held while an event is recorded, so that events are recorded in the order of their
	// numbers. The driver, or the function passed to Enqueue, may block while order is held, but
	// never while mu or the device's mutex is held. So querying an event waits neither for a stream
	// whose queue is full nor for another stream.
	order   sync.Mutex
	number  uint64      // the number of the last event
	last    *gpuEvent   // the last event, if its recording succeeded
	pending []*gpuEvent // the events whose CUevents are in use, in order
	unused  []gpuEvent  // preallocated events: allocating a block at a time is faster
	// The CUevents that the stream has passed, for reuse.
	freeEvents, freeMarks handles

	changed atomic.Bool            // whether something was enqueued since the last event
	wrote   atomic.Pointer[[]span] // what the last kernel writes, if launchEarly launched it; else nil
	shared  atomic.Bool            // whether another library may enqueue work on the stream directly

	mu      sync.Mutex
	reached atomic.Uint64 // number of the last event known to be complete; written with mu held
}

// workspace is the scratch memory of a closed stream. Another stream may use the memory after the event
// in the field idle.
type workspace struct {
	mem  device.Buffer
	idle device.Event
}

// NewStream creates a stream. If it is urgent, the GPU schedules its pending blocks before those of
// other streams.
func (d *gpuDevice) NewStream(urgent bool) (device.Stream, error) {
	s, err := d.newStream(urgent)
	if err != nil {
		return nil, err
	}
	return s, nil
}

func (d *gpuDevice) newStream(urgent bool) (*gpuStream, error) {
	if err := d.Err(); err != nil {
		return nil, err
	}
	var least, greatest C.int
	if err := d.check("cuCtxGetStreamPriorityRange", C.drv_priorities(d.drv.fns, d.ctx, &least, &greatest)); err != nil {
		return nil, err
	}
	priority := least
	if urgent {
		priority = greatest
	}
	s := &gpuStream{d: d}
	if err := d.check("cuStreamCreateWithPriority", C.drv_stream_create(d.drv.fns, d.ctx, &s.handle, priority)); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.streams[s] = struct{}{}
	return s, nil
}

// Device returns the stream's device.
func (s *gpuStream) Device() *gpuDevice { return s.d }

// Handle returns the CUstream.
func (s *gpuStream) Handle() uintptr {
	s.shared.Store(true)
	return uintptr(s.handle)
}

// enqueued notes that work was, or may have been, enqueued, and returns err, the result of the
// driver call. It must be called after the driver call. Otherwise an event that another goroutine records
// before the driver call would count as an event after the work.
func (s *gpuStream) enqueued(err error) error {
	s.changed.Store(true)
	s.wrote.Store(nil)
	return err
}

// Record returns an event behind everything enqueued so far.
func (s *gpuStream) Record() device.Event { return s.record(true) }

// Mark is like Record, but the event has no time. A timed event costs the stream about three microseconds
// between two kernels; an untimed event costs nothing.
func (s *gpuStream) Mark() device.Event { return s.record(false) }

// WaitFor makes everything enqueued on the stream from now on run after e. If e is an event of a
// GPU of this process, the host does not wait. Otherwise WaitFor blocks the caller until e is
// reached.
func (s *gpuStream) WaitFor(e device.Event) error {
	ev, ok := e.(*gpuEvent)
	if !ok {
		return e.Sync(s.d.life)
	}
	for _, err := range [...]error{ev.err, ev.s.d.Err(), s.d.Err()} {
		if err != nil {
			return err
		}
	}
	if r := s.d.capture(); r != nil && ev.in == nil && r.captures(s) {
		return ev.Sync(s.d.life) // a captured stream cannot wait for an event that was not captured
	}
	h, ok := ev.use()
	if !ok {
		return nil
	}
	defer ev.drop(false)
	return s.enqueued(s.d.check("cuStreamWaitEvent", C.drv_stream_wait(s.d.drv.fns, s.d.ctx, s.handle, h)))
}

// Sync blocks the caller until everything enqueued on the stream has run.
func (s *gpuStream) Sync(ctx context.Context) error { return s.Mark().Sync(ctx) }

// Close closes the stream. Work in flight still completes.
func (s *gpuStream) Close() error {
	if err := s.d.Err(); err != nil {
		return err
	}
	d := s.d
	d.mu.Lock()
	_, open := d.streams[s]
	delete(d.streams, s)
	d.mu.Unlock()
	if !open {
		return nil
	}
	if s.work.Len() > 0 {
		free := workspace{s.work, s.Mark()}
		s.work = device.Buffer{}
		d.mu.Lock()
		d.freeWorkspaces = append(d.freeWorkspaces, free)
		d.mu.Unlock()
	}
	s.leave()
	return s.destroy()
}

// leave registers clean-ups that return the CUevents of a closed stream to the pool when their
// events are garbage collected.
func (s *gpuStream) leave() {
	s.order.Lock()
	defer s.order.Unlock()
	for _, e := range s.pending {
		pool := s.d.pool(e.timed)
		runtime.AddCleanup(e, func(h C.uintptr_t) { pool.put(h) }, e.handle) // runs on the collector's goroutine, so it must not call CUDA
	}
	s.d.events.put(s.freeEvents...)
	s.d.marks.put(s.freeMarks...)
	s.pending, s.unused, s.last, s.freeEvents, s.freeMarks = nil, nil, nil, nil, nil
}

// destroy returns the stream's resources to the device.
func (s *gpuStream) destroy() error {
	if s.work.Len() > 0 {
		if err := s.d.freeDriver(s.work); err != nil {
			return err
		}
	}
	return s.d.check("cuStreamDestroy", C.drv_stream_destroy(s.d.drv.fns, s.d.ctx, s.handle))
}

// idle reports whether everything enqueued has run.
func (s *gpuStream) idle() (bool, error) {
	if err := s.d.Err(); err != nil {
		return false, err
	}
	if r := s.d.rec.Load(); r != nil && r.captures(s) {
		return true, nil // the stream was idle before the capture, and has run nothing since
	}
	code := C.drv_stream_query(s.d.drv.fns, s.d.ctx, s.handle)
	if code == codeNotReady {
		return false, nil
	}
	return code == 0, s.d.check("cuStreamQuery", code)
}

// workspace returns the stream's scratch memory. The stream's kernels share it, because they run in order.
// If the memory comes from a closed stream, s first waits for its last use there.
func (s *gpuStream) workspace() (device.Buffer, error) {
	if s.work.Len() > 0 {
		return s.work, nil
	}
	d := s.d
	d.mu.Lock()
	var free workspace
	if n := len(d.freeWorkspaces); n > 0 {
		free, d.freeWorkspaces = d.freeWorkspaces[n-1], d.freeWorkspaces[:n-1]
	}
	d.mu.Unlock()
	var err error
	if free.mem.Len() > 0 {
		s.work, err = free.mem, s.WaitFor(free.idle)
	} else {
		s.work, err = d.allocDriver(workspaceSize)
	}
	if err != nil {
		return device.Buffer{}, fmt.Errorf("scratch memory of a stream: %w", err)
	}
	return s.work, nil
}

// capturing reports whether the stream's work is captured in a graph instead of run.
func (s *gpuStream) capturing() (bool, error) {
	var status C.int
	err := s.d.check("cuStreamIsCapturing", C.drv_stream_capturing(s.d.drv.fns, s.d.ctx, s.handle, &status))
	return status != 0, err
}

// stream returns s as a stream of this device. It panics if s belongs to another device.
func (d *gpuDevice) stream(s device.Stream) *gpuStream {
	gs, ok := s.(*gpuStream)
	if !ok || gs.d != d {
		panic(fmt.Errorf("%s: got a stream of another device, %T", d.name, s))
	}
	return gs
}
