//go:build cgo && linux

package fakegpu

/*
#include <stddef.h>
#include <stdint.h>

#define FUNCTIONS(X) \
	X(cuCtxSetCurrent, int, (uintptr_t)) \
	X(cuDevicePrimaryCtxRetain, int, (uintptr_t *, int)) \
	X(cuDevicePrimaryCtxRelease_v2, int, (int)) \
	X(cuStreamCreateWithPriority, int, (uintptr_t *, unsigned, int)) \
	X(cuStreamDestroy_v2, int, (uintptr_t)) \
	X(cuStreamWaitEvent, int, (uintptr_t, uintptr_t, unsigned)) \
	X(cuEventCreate, int, (uintptr_t *, unsigned)) \
	X(cuEventRecord, int, (uintptr_t, uintptr_t)) \
	X(cuEventQuery, int, (uintptr_t)) \
	X(fakegpu_event_time, int64_t, (uintptr_t)) \
	X(cuMemAlloc_v2, int, (uint64_t *, size_t)) \
	X(cuMemFree_v2, int, (uint64_t)) \
	X(cuMemcpyHtoDAsync_v2, int, (uint64_t, const void *, size_t, uintptr_t)) \
	X(cuMemHostAlloc, int, (void **, size_t, unsigned)) \
	X(cuMemFreeHost, int, (void *)) \
	X(cuMemcpyDtoHAsync_v2, int, (void *, uint64_t, size_t, uintptr_t)) \
	X(cuMemcpyDtoDAsync_v2, int, (uint64_t, uint64_t, size_t, uintptr_t)) \
	X(cuModuleLoadData, int, (uintptr_t *, const void *)) \
	X(cuModuleGetFunction, int, (uintptr_t *, uintptr_t, const char *))

#define FIELD(name, result, args) result (*name) args;
#define NAME(name, result, args) #name,
typedef struct { FUNCTIONS(FIELD) } table;
static const char *const symbols[] = { FUNCTIONS(NAME) };
enum { symbol_count = sizeof symbols / sizeof *symbols };
static const char *symbol(int i) { return symbols[i]; }
static void set(table *t, int i, void *f) { ((void **)t)[i] = f; }

#define IN_CONTEXT(call) t->cuCtxSetCurrent(ctx); return (call)
static int retain(table *t, uintptr_t *ctx, int dev) { return t->cuDevicePrimaryCtxRetain(ctx, dev); }
static int release(table *t, int dev) { return t->cuDevicePrimaryCtxRelease_v2(dev); }
static int stream_create(table *t, uintptr_t ctx, uintptr_t *s) { IN_CONTEXT(t->cuStreamCreateWithPriority(s, 1, 0)); }
static int stream_destroy(table *t, uintptr_t ctx, uintptr_t s) { IN_CONTEXT(t->cuStreamDestroy_v2(s)); }
static int stream_wait(table *t, uintptr_t ctx, uintptr_t s, uintptr_t e) { IN_CONTEXT(t->cuStreamWaitEvent(s, e, 0)); }
static int event_create(table *t, uintptr_t ctx, uintptr_t *e) { IN_CONTEXT(t->cuEventCreate(e, 0)); }
static int event_record(table *t, uintptr_t ctx, uintptr_t *e, uintptr_t s) {
	int r = event_create(t, ctx, e);
	return r != 0 ? r : t->cuEventRecord(*e, s);
}
static int event_query(table *t, uintptr_t e) { return t->cuEventQuery(e); }
static int64_t event_time(table *t, uintptr_t e) { return t->fakegpu_event_time(e); }
static int mem_alloc(table *t, uintptr_t ctx, uint64_t *p, size_t size) { IN_CONTEXT(t->cuMemAlloc_v2(p, size)); }
static int mem_free(table *t, uintptr_t ctx, uint64_t p) { IN_CONTEXT(t->cuMemFree_v2(p)); }
static int host_alloc(table *t, uintptr_t ctx, void **p, size_t size) { IN_CONTEXT(t->cuMemHostAlloc(p, size, 0)); }
static int host_free(table *t, uintptr_t ctx, void *p) { IN_CONTEXT(t->cuMemFreeHost(p)); }
static int copy_in(table *t, uintptr_t ctx, uint64_t dst, const void *src, size_t n, uintptr_t s) { IN_CONTEXT(t->cuMemcpyHtoDAsync_v2(dst, src, n, s)); }
static int copy_out(table *t, uintptr_t ctx, void *dst, uint64_t src, size_t n, uintptr_t s) { IN_CONTEXT(t->cuMemcpyDtoHAsync_v2(dst, src, n, s)); }
static int module_load(table *t, uintptr_t ctx, uintptr_t *m, const void *image) { IN_CONTEXT(t->cuModuleLoadData(m, image)); }
static int module_function(table *t, uintptr_t ctx, uintptr_t *f, uintptr_t m, const char *name) { IN_CONTEXT(t->cuModuleGetFunction(f, m, name)); }
static int copy_within(table *t, uintptr_t ctx, uint64_t dst, uint64_t src, size_t n, uintptr_t s) { IN_CONTEXT(t->cuMemcpyDtoDAsync_v2(dst, src, n, s)); }
*/
// #include <stdlib.h>
import "C"

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
	"unsafe"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/dl"
	"github.com/goddp/goddp/internal/kernels"
)

// Device implements device.Device on the fake libcuda, except for Kernels.
type Device struct {
	ordinal int
	lib     *dl.Library
	fns     *C.table
	ctx     C.uintptr_t
	compute *Stream
	values  kernels.Values

	mu    sync.Mutex
	inUse map[uintptr]int
}

var _ device.Device = (*Device)(nil)

// Open opens a device on a fake GPU. The ordinal is 0 to 15. Libraries must have been called.
func Open(ordinal int) (*Device, error) {
	lib, err := dl.Open(dl.Search{Name: "the fake libcuda", Env: "GODDP_LIBCUDA"})
	if err != nil {
		return nil, err
	}
	d := &Device{ordinal: ordinal, lib: lib, fns: (*C.table)(C.calloc(1, C.sizeof_table)), inUse: map[uintptr]int{}}
	for i := range C.int(C.symbol_count) {
		f, err := lib.Lookup(C.GoString(C.symbol(i)))
		if err != nil {
			return nil, err
		}
		C.set(d.fns, i, f)
	}
	if code := C.retain(d.fns, &d.ctx, C.int(ordinal)); code != 0 {
		return nil, fmt.Errorf("fakegpu: retaining context %d: %d", ordinal, code)
	}
	s, err := d.NewStream(false)
	if err != nil {
		return nil, err
	}
	d.compute = s.(*Stream)
	return d, nil
}

func (d *Device) check(call string, code C.int) error {
	if code == 0 {
		return nil
	}
	return fmt.Errorf("%v: %s: error %d", d, call, code)
}

func (d *Device) String() string { return fmt.Sprintf("fakegpu:%d", d.ordinal) }

// Type returns [device.CUDA].
func (d *Device) Type() string { return device.CUDA }

// Context returns the CUcontext.
func (d *Device) Context() uintptr { return uintptr(d.ctx) }

// Lookup returns a function of libcuda.
func (d *Device) Lookup(symbol string) (unsafe.Pointer, error) { return d.lib.Lookup(symbol) }

// Compile returns kernels by name. The fake libcuda implements those of comm/internal/nccl.
func (d *Device) Compile(_ context.Context, name, text string, functions ...string) ([]uintptr, error) {
	cname := C.CString(text)
	defer C.free(unsafe.Pointer(cname))
	var module C.uintptr_t
	if err := d.check("cuModuleLoadData", C.module_load(d.fns, d.ctx, &module, unsafe.Pointer(cname))); err != nil {
		return nil, err
	}
	out := make([]uintptr, len(functions))
	for i, f := range functions {
		cname := C.CString(f)
		var h C.uintptr_t
		err := d.check("cuModuleGetFunction of "+f+" in "+name, C.module_function(d.fns, d.ctx, &h, module, cname))
		C.free(unsafe.Pointer(cname))
		if err != nil {
			return nil, err
		}
		out[i] = uintptr(h)
	}
	return out, nil
}

// Alloc allocates device memory. Nothing is cached.
func (d *Device) Alloc(size int) (device.Buffer, error) {
	if size == 0 {
		return device.Buffer{}, nil
	}
	var p C.uint64_t
	if err := d.check("cuMemAlloc", C.mem_alloc(d.fns, d.ctx, &p, C.size_t(size))); err != nil {
		return device.Buffer{}, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.inUse[uintptr(p)] = size
	return device.DeviceBuffer(uintptr(p), size, nil), nil
}

// AllocHost allocates host memory.
func (d *Device) AllocHost(size int) (device.Buffer, error) {
	if size == 0 {
		return device.Buffer{}, nil
	}
	var p unsafe.Pointer
	if err := d.check("cuMemHostAlloc", C.host_alloc(d.fns, d.ctx, &p, C.size_t(size))); err != nil {
		return device.Buffer{}, err
	}
	return device.HostBuffer(unsafe.Slice((*byte)(p), size), nil), nil
}

// Free frees memory after the work on the compute stream has run.
func (d *Device) Free(b device.Buffer) {
	if b.Len() == 0 {
		return
	}
	d.compute.Sync(context.Background())
	if b.Host() != nil {
		C.host_free(d.fns, d.ctx, unsafe.Pointer(unsafe.SliceData(b.Host())))
		return
	}
	d.mu.Lock()
	if d.inUse[b.Addr()] != b.Len() {
		panic(fmt.Errorf("%v: Free of %d bytes where %d were allocated", d, b.Len(), d.inUse[b.Addr()]))
	}
	delete(d.inUse, b.Addr())
	d.mu.Unlock()
	C.mem_free(d.fns, d.ctx, C.uint64_t(b.Addr()))
}

// Compute returns the compute stream.
func (d *Device) Compute() device.Stream { return d.compute }

// NewStream makes a stream.
func (d *Device) NewStream(bool) (device.Stream, error) {
	s := &Stream{d: d}
	return s, d.check("cuStreamCreate", C.stream_create(d.fns, d.ctx, &s.handle))
}

// Kernels returns an implementation that keeps values and has no operations.
func (d *Device) Kernels() device.Kernels { return noKernels{values: &d.values} }

// noKernels panics if an operation is called.
type noKernels struct {
	kernels.Kernels // nil
	values          *kernels.Values
}

func (k noKernels) Values() *kernels.Values { return k.values }

// Copy enqueues a copy between buffers of the device.
func (d *Device) Copy(s device.Stream, dst, src device.Buffer) error {
	if dst.Len() != src.Len() {
		panic(fmt.Errorf("%v: Copy of %d bytes to %d", d, src.Len(), dst.Len()))
	}
	return d.check("cuMemcpyDtoDAsync", C.copy_within(d.fns, d.ctx, C.uint64_t(dst.Addr()), C.uint64_t(src.Addr()), C.size_t(src.Len()), s.(*Stream).handle))
}

// CopyIn enqueues a copy from the host to the device.
func (d *Device) CopyIn(s device.Stream, dst device.Buffer, src []byte) error {
	if len(src) == 0 {
		return nil
	}
	return d.check("cuMemcpyHtoDAsync", C.copy_in(d.fns, d.ctx, C.uint64_t(dst.Addr()), unsafe.Pointer(&src[0]), C.size_t(len(src)), s.(*Stream).handle))
}

// CopyOut copies from the device to the host, after the work on the stream. If ctx ends, the copy
// may still run, so its intermediate memory is not freed.
func (d *Device) CopyOut(ctx context.Context, s device.Stream, dst []byte, src device.Buffer) error {
	if len(dst) == 0 {
		return nil
	}
	mem := C.malloc(C.size_t(len(dst)))
	err := d.check("cuMemcpyDtoHAsync", C.copy_out(d.fns, d.ctx, mem, C.uint64_t(src.Addr()), C.size_t(len(dst)), s.(*Stream).handle))
	if err == nil {
		err = s.Sync(ctx)
	}
	if err != nil {
		return err
	}
	copy(dst, unsafe.Slice((*byte)(mem), len(dst)))
	C.free(mem)
	return nil
}

// Memory returns how much memory is allocated.
func (d *Device) Memory() device.MemoryStats {
	d.mu.Lock()
	defer d.mu.Unlock()
	var st device.MemoryStats
	for _, n := range d.inUse {
		st.InUse += int64(n)
	}
	return st
}

// Close closes the compute stream. When the last device of the process is closed, memory that was
// not freed no longer counts as used.
func (d *Device) Close() error {
	return errors.Join(d.compute.Close(), d.check("cuDevicePrimaryCtxRelease", C.release(d.fns, C.int(d.ordinal))))
}

// Stream implements device.Stream.
type Stream struct {
	d      *Device
	handle C.uintptr_t
	order  sync.Mutex // held while an event is recorded, as on a real device
}

// Handle returns the CUstream.
func (s *Stream) Handle() uintptr { return uintptr(s.handle) }

// Record records an event with a time.
func (s *Stream) Record() device.Event { return s.record(true) }

// Mark records an event without a time.
func (s *Stream) Mark() device.Event { return s.record(false) }

func (s *Stream) record(timed bool) *Event {
	s.order.Lock()
	defer s.order.Unlock()
	e := &Event{d: s.d, timed: timed}
	e.err = s.d.check("cuEventRecord", C.event_record(s.d.fns, s.d.ctx, &e.handle, s.handle))
	return e
}

// Enqueue returns an event that f records behind the work it enqueues.
func (s *Stream) Enqueue(timed bool, f func(stream, event uintptr) error) (device.Event, error) {
	s.order.Lock()
	defer s.order.Unlock()
	e := &Event{d: s.d, timed: timed}
	if err := s.d.check("cuEventCreate", C.event_create(s.d.fns, s.d.ctx, &e.handle)); err != nil {
		return nil, err
	}
	return e, f(uintptr(s.handle), uintptr(e.handle))
}

// WaitFor makes later work on the stream wait for e.
func (s *Stream) WaitFor(e device.Event) error {
	ev, ok := e.(*Event)
	if !ok {
		return e.Sync(context.Background())
	}
	return s.d.check("cuStreamWaitEvent", C.stream_wait(s.d.fns, s.d.ctx, s.handle, ev.handle))
}

// Sync waits for all work on the stream.
func (s *Stream) Sync(ctx context.Context) error { return s.Record().Sync(ctx) }

// Close destroys the stream.
func (s *Stream) Close() error {
	s.order.Lock()
	defer s.order.Unlock()
	return s.d.check("cuStreamDestroy", C.stream_destroy(s.d.fns, s.d.ctx, s.handle))
}

// Event implements device.Event.
type Event struct {
	d      *Device
	handle C.uintptr_t
	timed  bool
	err    error
}

// Done reports whether the event was reached.
func (e *Event) Done() (bool, error) {
	if e.err != nil {
		return false, e.err
	}
	return C.event_query(e.d.fns, e.handle) == 0, nil
}

// Sync waits until the event is reached.
func (e *Event) Sync(ctx context.Context) error {
	for {
		if done, err := e.Done(); done || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(50 * time.Microsecond):
		}
	}
}

// Time returns when the event was reached. It is zero for events without a time.
func (e *Event) Time() time.Time {
	if done, err := e.Done(); !done || err != nil || !e.timed {
		return time.Time{}
	}
	return time.Unix(0, int64(C.event_time(e.d.fns, e.handle)))
}
