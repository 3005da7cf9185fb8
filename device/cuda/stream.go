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

// workspaceSize is the scratch memory of a stream, in bytes: what cuBLAS
// recommends for this generation of GPUs.
const workspaceSize = 32 << 20

// gpuStream implements device.Stream.
type gpuStream struct {
	d      *gpuDevice
	handle C.uintptr_t
	work   device.Buffer // scratch of the kernels enqueued here; none before the first that needs it

	// order makes the numbers of events the order in which they are recorded.
	// The driver, or what Enqueue calls, may hold up who has it, but never who has
	// mu, or the device's: what an event is asked must not wait for a stream that
	// takes no more work, and nor must another stream.
	order   sync.Mutex
	number  uint64      // of the last event
	last    *gpuEvent   // the last event, if it was recorded
	pending []*gpuEvent // those whose CUevents are in use, in order
	unused  []gpuEvent  // to be made events of: a block at a time is faster than one
	// CUevents that the stream is past, to be used again.
	freeEvents, freeMarks handles

	changed atomic.Bool // something was enqueued since the last event
	shared  atomic.Bool // others enqueue here, and do not tell

	mu      sync.Mutex
	reached atomic.Uint64 // the stream is known to be past the event of this number; written under mu
}

// workspace is the scratch of a closed stream, free to be used after idle.
type workspace struct {
	mem  device.Buffer
	idle device.Event
}

// NewStream makes a stream beside Compute. The hardware starts waiting blocks
// of an urgent one first.
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

// Device is the stream's own.
func (s *gpuStream) Device() *gpuDevice { return s.d }

// Handle is the CUstream.
func (s *gpuStream) Handle() uintptr {
	s.shared.Store(true)
	return uintptr(s.handle)
}

// enqueued notes that something was, or may have been: err is what became of it,
// and is passed on. It comes behind the driver's call, so that an event that
// another goroutine records meanwhile is not taken for one behind it.
func (s *gpuStream) enqueued(err error) error {
	s.changed.Store(true)
	return err
}

// Record marks the point behind everything enqueued so far.
func (s *gpuStream) Record() device.Event { return s.record(true) }

// Mark is Record for an event without a time: its Time is the zero Time. A
// time costs the stream about three microseconds between two kernels, where a
// mark costs nothing.
func (s *gpuStream) Mark() device.Event { return s.record(false) }

// WaitFor makes what is enqueued from now on run after e. For an event of a
// GPU, any of this process's, that costs the host nothing; for another it
// blocks the caller.
func (s *gpuStream) WaitFor(ctx context.Context, e device.Event) error {
	ev, ok := e.(*gpuEvent)
	if !ok {
		return e.Sync(ctx)
	}
	for _, err := range [...]error{ev.err, ev.s.d.Err(), s.d.Err()} {
		if err != nil {
			return err
		}
	}
	h, ok := ev.use()
	if !ok {
		return nil
	}
	defer ev.drop(false)
	return s.enqueued(s.d.check("cuStreamWaitEvent", C.drv_stream_wait(s.d.drv.fns, s.d.ctx, s.handle, h)))
}

// Sync blocks the caller until everything enqueued has run.
func (s *gpuStream) Sync(ctx context.Context) error { return s.Mark().Sync(ctx) }

// Close releases the stream; work in flight still completes.
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

// leave lets the collector give back what events of the stream still use: no
// later event will.
func (s *gpuStream) leave() {
	s.order.Lock()
	defer s.order.Unlock()
	for _, e := range s.pending {
		pool := s.d.pool(e.timed)
		runtime.AddCleanup(e, func(h C.uintptr_t) { pool.put(h) }, e.handle) // on the collector's goroutine: it must not call CUDA
	}
	s.d.events.put(s.freeEvents...)
	s.d.marks.put(s.freeMarks...)
	s.pending, s.unused, s.last, s.freeEvents, s.freeMarks = nil, nil, nil, nil, nil
}

// destroy gives back what the stream has.
func (s *gpuStream) destroy() error {
	if s.work.Len() > 0 {
		if err := s.d.freeDriver(s.work); err != nil {
			return err
		}
	}
	return s.d.check("cuStreamDestroy", C.drv_stream_destroy(s.d.drv.fns, s.d.ctx, s.handle))
}

// idle tells whether everything enqueued has run.
func (s *gpuStream) idle() (bool, error) {
	if err := s.d.Err(); err != nil {
		return false, err
	}
	code := C.drv_stream_query(s.d.drv.fns, s.d.ctx, s.handle)
	if code == codeNotReady {
		return false, nil
	}
	return code == 0, s.d.check("cuStreamQuery", code)
}

// workspace is the scratch memory that kernels enqueued on the stream share:
// they run one after the other. A closed stream's is taken over behind its
// last use.
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
		s.work, err = free.mem, s.WaitFor(context.Background(), free.idle)
	} else {
		s.work, err = d.allocDriver(workspaceSize)
	}
	if err != nil {
		return device.Buffer{}, fmt.Errorf("scratch memory of a stream: %w", err)
	}
	return s.work, nil
}

// capturing tells whether the stream's work is being captured in a graph
// rather than run.
func (s *gpuStream) capturing() (bool, error) {
	var status C.int
	err := s.d.check("cuStreamIsCapturing", C.drv_stream_capturing(s.d.drv.fns, s.d.ctx, s.handle, &status))
	return status != 0, err
}

// stream is the device's own stream behind s; another's is a programming
// error.
func (d *gpuDevice) stream(s device.Stream) *gpuStream {
	gs, ok := s.(*gpuStream)
	if !ok || gs.d != d {
		panic(fmt.Errorf("%s: a stream of another device, %T", d.name, s))
	}
	return gs
}
