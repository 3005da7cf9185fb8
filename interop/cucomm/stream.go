package cucomm

/*
#include <cuda.h>

// order makes a stream wait for what another was given so far. The thread's
// current context stays as it is: a cu program relies on it.
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

// stream is the program's stream as device.Stream. Its points are those of
// proxy, a stream of goddp's own, of whose kind everything below comm wants
// events to be.
type stream struct {
	ctx    C.CUcontext
	handle C.CUstream
	proxy  device.Stream
	inner  C.CUstream // proxy's

	mu    sync.Mutex
	event C.CUevent // recorded anew for each order: a wait is for the latest point
}

func newStream(d *Device, handle C.CUstream) (*stream, error) {
	proxy := d.gpu.Compute()
	s := &stream{ctx: C.CUcontext(pointer(d.Context())), handle: handle, proxy: proxy}
	s.inner = C.CUstream(pointer(proxy.(interface{ Handle() uintptr }).Handle()))
	return s, check("cuEventCreate", C.event(s.ctx, &s.event))
}

// pointer is a handle of the driver's, which is no address of Go's.
func pointer(handle uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&handle)) }

// enter makes proxy wait for the program's stream, and leave the reverse.
func (s *stream) enter() error { return s.order(s.handle, s.inner) }

func (s *stream) leave() error { return s.order(s.inner, s.handle) }

func (s *stream) order(before, after C.CUstream) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return check("ordering streams", C.order(s.ctx, s.event, before, after))
}

// end gives the event back.
func (s *stream) end() { C.cuEventDestroy(s.event) }

// Handle is the CUstream.
func (s *stream) Handle() uintptr { return uintptr(unsafe.Pointer(s.handle)) }

// Record marks the point behind everything that the program's stream was given.
func (s *stream) Record() device.Event { return s.point(s.proxy.Record) }

// Mark marks a point without a time.
func (s *stream) Mark() device.Event { return s.point(s.proxy.Mark) }

func (s *stream) point(record func() device.Event) device.Event {
	if err := s.enter(); err != nil {
		return failed{err}
	}
	return record()
}

// WaitFor makes what the program's stream is given from now on run after e.
func (s *stream) WaitFor(ctx context.Context, e device.Event) error {
	if err := s.proxy.WaitFor(ctx, e); err != nil {
		return err
	}
	return s.leave()
}

// Sync waits for everything that the program's stream was given.
func (s *stream) Sync(ctx context.Context) error { return s.Mark().Sync(ctx) }

// Close does nothing: the stream is the program's.
func (s *stream) Close() error { return nil }

// failed is a point that could not be marked.
type failed struct{ err error }

func (f failed) Done() (bool, error)        { return false, f.err }
func (f failed) Sync(context.Context) error { return f.err }
func (f failed) Time() time.Time            { return time.Time{} }
