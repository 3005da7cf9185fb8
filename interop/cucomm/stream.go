package cucomm

/*
#include <cuda.h>

// order makes the stream after wait for the work enqueued so far on the stream before. It
// restores the thread's current context, because a cu program relies on it.
static CUresult order(CUcontext ctx, CUevent e, CUstream before, CUstream after) {
	CUcontext had;
	CUresult r = cuCtxPushCurrent(ctx);
	if (r != CUDA_SUCCESS) return r;
	r = cuEventRecord(e, before);
	if (r == CUDA_SUCCESS) r = cuStreamWaitEvent(after, e, 0);
	cuCtxPopCurrent(&had);
	return r;
}

static CUresult event(CUcontext ctx, CUevent *e) {
	CUcontext had;
	CUresult r = cuCtxPushCurrent(ctx);
	if (r != CUDA_SUCCESS) return r;
	r = cuEventCreate(e, CU_EVENT_DISABLE_TIMING);
	cuCtxPopCurrent(&had);
	return r;
}
*/
import "C"

import (
	"context"
	"sync"
	"time"
	"unsafe"

	"github.com/goddp/goddp/device"
)

// stream is the program's stream as a device.Stream. Its events are recorded on proxy, a stream of
// goddp's own, because the packages below comm need events of goddp's own kind.
type stream struct {
	ctx    C.CUcontext
	handle C.CUstream
	proxy  device.Stream
	inner  C.CUstream // proxy's

	mu    sync.Mutex
	event C.CUevent // recorded again for each call of order; a wait uses the latest recording
}

func newStream(d *Device, handle C.CUstream) (*stream, error) {
	proxy := d.gpu.Compute()
	s := &stream{ctx: C.CUcontext(pointer(d.Context())), handle: handle, proxy: proxy}
	s.inner = C.CUstream(pointer(proxy.(interface{ Handle() uintptr }).Handle()))
	return s, check("cuEventCreate", C.event(s.ctx, &s.event))
}

// pointer converts a driver's handle to an unsafe.Pointer. The handle is not an address of Go memory.
func pointer(handle uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&handle)) }

// enter makes proxy wait for the program's stream.
func (s *stream) enter() error { return s.order(s.handle, s.inner) }

// leave makes the program's stream wait for proxy.
func (s *stream) leave() error { return s.order(s.inner, s.handle) }

func (s *stream) order(before, after C.CUstream) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return check("ordering streams", C.order(s.ctx, s.event, before, after))
}

// end destroys the event.
func (s *stream) end() { C.cuEventDestroy(s.event) }

// Handle returns the CUstream.
func (s *stream) Handle() uintptr { return uintptr(unsafe.Pointer(s.handle)) }

// Record records an event with a time, after the work enqueued on the program's stream so far.
func (s *stream) Record() device.Event { return s.point(s.proxy.Record) }

// Mark records an event without a time.
func (s *stream) Mark() device.Event { return s.point(s.proxy.Mark) }

func (s *stream) point(record func() device.Event) device.Event {
	if err := s.enter(); err != nil {
		return failed{err}
	}
	return record()
}

// WaitFor makes the work that is enqueued on the program's stream from now on run after e.
func (s *stream) WaitFor(e device.Event) error {
	if err := s.proxy.WaitFor(e); err != nil {
		return err
	}
	return s.leave()
}

// Sync waits for all work enqueued on the program's stream.
func (s *stream) Sync(ctx context.Context) error { return s.Mark().Sync(ctx) }

// Close does nothing, because the program owns the stream.
func (s *stream) Close() error { return nil }

// failed is an event that could not be recorded.
type failed struct{ err error }

func (f failed) Done() (bool, error)        { return false, f.err }
func (f failed) Sync(context.Context) error { return f.err }
func (f failed) Time() time.Time            { return time.Time{} }
