//go:build cgo && linux

package cuda

// #include "driver.h"
import "C"

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/internal/arena"
	"github.com/goddp/goddp/internal/kernels"
)

// gpuDevice implements device.Device on one GPU.
type gpuDevice struct {
	ordinal int
	name    string // "cuda:0"
	props   *properties
	drv     *driver
	ctx     C.uintptr_t // the primary context, which all libraries in this process share
	log     *slog.Logger
	cache   string                // Options.CacheDir
	ended   atomic.Pointer[error] // a LostError or ErrClosed; once it is set, no method calls CUDA
	life    context.Context       // for waits that no caller bounds; ends at the end of Close
	end     context.CancelFunc

	compute *gpuStream
	kernels *kernelSet
	events  eventPool // CUevents with a time
	marks   eventPool // CUevents without a time
	clock   clock
	memory  *arena.Arena
	pinned  *arena.Arena // pinned host memory
	staging *staging

	limit     int64                   // the maximum of held; 0 means no limit
	held      atomic.Int64            // bytes that the arena has allocated from the driver
	rec       atomic.Pointer[capture] // nil unless Capture is running
	pools     atomic.Pointer[[]*pool] // the memory of graphs; nil if there are none
	condemned []device.Buffer         // memory that the arena released while a stream still used it; only the arena's calls, one at a time, access it

	mu             sync.Mutex
	streams        map[*gpuStream]struct{}
	freeWorkspaces []workspace // workspaces of closed streams
	modules        []C.uintptr_t
}

// drainWait is the maximum wait for work in flight before memory is released to the driver.
const drainWait = 10 * time.Second

func open(ordinal int, o Options) (_ device.Device, err error) {
	d, err := openBare(ordinal, o)
	if err != nil {
		return nil, err
	}
	if d.kernels, err = newKernels(d, o); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	d.log.Debug("cuda: device opened", "device", d.name, "gpu", d.props.name, "arch", d.props.arch(), "multiprocessors", d.props.sms,
		"driver", d.props.driver, "libcuda", d.drv.lib, "libcublasLt", d.kernels.blas, "libnvrtc", d.kernels.compiler)
	return d, nil
}

// openBare opens a device without kernels, which needs only libcuda.
func openBare(ordinal int, o Options) (_ *gpuDevice, err error) {
	drv, err := openDriver()
	if err != nil {
		return nil, err
	}
	props, err := drv.properties(ordinal)
	if err != nil {
		drv.free()
		return nil, err
	}
	d := &gpuDevice{
		ordinal: ordinal, name: fmt.Sprintf("cuda:%d", ordinal), props: props, drv: drv, log: o.Log, cache: o.CacheDir,
		limit: o.MemoryLimit, streams: map[*gpuStream]struct{}{},
	}
	d.life, d.end = context.WithCancel(context.Background()) // a device outlives the call that opens it
	if err := d.check("cuDevicePrimaryCtxRetain", C.drv_retain(drv.fns, &d.ctx, props.handle)); err != nil {
		drv.free()
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.Close())
		}
	}()
	d.events.d, d.events.timed, d.marks.d = d, true, d
	d.memory = arena.New(d.allocRaw, d.releaseRaw)
	d.pinned = arena.New(d.pin, d.unpin)
	d.staging = &staging{d: d}
	if d.compute, err = d.newStream(false); err != nil {
		return nil, err
	}
	if err = d.clock.start(d); err != nil {
		return nil, err
	}
	return d, nil
}

// String returns the device's name, such as "cuda:1".
func (d *gpuDevice) String() string { return d.name }

func (d *gpuDevice) Type() string { return device.CUDA }

// Ordinal returns the ordinal that the device was opened with.
func (d *gpuDevice) Ordinal() int { return d.ordinal }

// BusID returns the GPU's bus id on PCI, such as "0000:3B:00.0".
func (d *gpuDevice) BusID() string { return d.props.busID }

// Context returns the device's CUcontext, which is the GPU's primary context. It is for packages
// that call CUDA's libraries themselves. They must make the context current in the same cgo call
// that uses it.
func (d *gpuDevice) Context() uintptr { return uintptr(d.ctx) }

// Lookup returns the address of a function of the driver, for example cuCtxSetCurrent.
func (d *gpuDevice) Lookup(symbol string) (unsafe.Pointer, error) { return d.drv.lib.Lookup(symbol) }

// Err returns the device's [*LostError], [ErrClosed] after Close, or nil.
func (d *gpuDevice) Err() error {
	if e := d.ended.Load(); e != nil {
		return *e
	}
	return nil
}

// check converts the code that a driver call returned into an error. After an error from which CUDA
// cannot recover, the device is lost.
func (d *gpuDevice) check(call string, code C.int) error {
	if code == 0 {
		return nil
	}
	return d.failed(d.drv.check(d.name, call, code))
}

// failed marks the device as lost if CUDA cannot recover from err. Every later call returns the
// first such error.
func (d *gpuDevice) failed(err error) error {
	var e *Error
	if !errors.As(err, &e) || !lasting(e.Code) {
		return err
	}
	var lost error = &LostError{Device: d.name, Cause: e}
	if d.ended.CompareAndSwap(nil, &lost) {
		d.log.Error("cuda: device lost", "device", d.name, "cause", e)
	}
	return d.Err()
}

// Alloc returns size bytes of device memory.
func (d *gpuDevice) Alloc(size int) (device.Buffer, error) {
	if err := d.Err(); err != nil {
		return device.Buffer{}, err
	}
	if r := d.capture(); r != nil {
		return r.pool.memory.Alloc(size)
	}
	return d.memory.Alloc(size)
}

// AllocOutside implements kernels.Capturer.
func (d *gpuDevice) AllocOutside(size int) (device.Buffer, error) {
	if err := d.Err(); err != nil {
		return device.Buffer{}, err
	}
	return d.memory.Alloc(size)
}

// AllocHost returns size bytes of pinned host memory.
func (d *gpuDevice) AllocHost(size int) (device.Buffer, error) {
	if err := d.Err(); err != nil {
		return device.Buffer{}, err
	}
	return d.pinned.Alloc(size)
}

// Free releases a Buffer that Alloc or AllocHost returned.
func (d *gpuDevice) Free(b device.Buffer) {
	if b.Host() != nil {
		d.pinned.Free(b)
	} else if p := d.poolOf(b); p != nil {
		p.free(b)
	} else {
		d.memory.Free(b)
	}
}

// allocRaw allocates device memory for the arena, within the limit.
func (d *gpuDevice) allocRaw(size int) (device.Buffer, error) {
	if held := d.held.Load(); d.limit > 0 && held+int64(size) > d.limit {
		return device.Buffer{}, &device.OutOfMemoryError{Device: d.name, Asked: int64(size), InUse: held, Free: d.limit - held}
	}
	b, err := d.allocDriver(size)
	if err == nil {
		d.held.Add(int64(size))
	}
	return b, err
}

// allocDriver allocates device memory from the driver.
func (d *gpuDevice) allocDriver(size int) (device.Buffer, error) {
	var addr C.uint64_t
	code := C.drv_alloc(d.drv.fns, d.ctx, &addr, C.size_t(size))
	if code == codeOutOfMemory {
		oom := &device.OutOfMemoryError{Device: d.name, Asked: int64(size), InUse: d.held.Load(), Free: -1}
		var free, total C.size_t
		if C.drv_mem_info(d.drv.fns, d.ctx, &free, &total) == 0 {
			oom.Free = int64(free)
		}
		return device.Buffer{}, oom
	}
	if err := d.check("cuMemAlloc", code); err != nil {
		return device.Buffer{}, err
	}
	return device.DeviceBuffer(uintptr(addr), size, nil), nil
}

// releaseRaw returns memory of the arena to the driver. The driver would block until all work in
// flight is done, and a collective with a dead peer never ends. So releaseRaw waits itself, for a
// bounded time. Memory that is still in use after that time stays allocated until Close.
func (d *gpuDevice) releaseRaw(b device.Buffer) {
	ctx, cancel := context.WithTimeout(d.life, drainWait)
	defer cancel()
	if err := d.drain(ctx); err != nil {
		d.condemned = append(d.condemned, b)
		return
	}
	d.freeDriver(b)
	d.held.Add(-int64(b.Len()))
}

func (d *gpuDevice) freeDriver(b device.Buffer) error {
	if d.Err() != nil {
		return nil // the memory was freed with the context
	}
	return d.check("cuMemFree", C.drv_free(d.drv.fns, d.ctx, C.uint64_t(b.Addr())))
}

// drain waits until all streams are idle.
func (d *gpuDevice) drain(ctx context.Context) error {
	d.mu.Lock()
	streams := make([]*gpuStream, 0, len(d.streams))
	for s := range d.streams {
		streams = append(streams, s)
	}
	d.mu.Unlock()
	for _, s := range streams {
		if err := kernels.Poll(ctx, s.idle); err != nil {
			return fmt.Errorf("%s: waiting for work in flight: %w", d.name, err)
		}
	}
	return nil
}

// Compute returns the stream that runs the program's kernels.
func (d *gpuDevice) Compute() device.Stream { return d.compute }

// Kernels returns the device's operations.
func (d *gpuDevice) Kernels() device.Kernels { return d.kernels }

// Memory returns the statistics of the arena.
func (d *gpuDevice) Memory() device.MemoryStats { return d.memory.Stats() }

// Close frees everything. It waits for work in flight, for a bounded time. If the work does not
// end, or the device is lost, the memory is leaked, and Close returns an error that says so.
func (d *gpuDevice) Close() error {
	if errors.Is(d.Err(), ErrClosed) {
		return nil
	}
	defer d.end()
	ctx, cancel := context.WithTimeout(d.life, drainWait)
	defer cancel()
	err := d.Err()
	if err == nil {
		err = d.drain(ctx)
	}
	if d.kernels != nil {
		d.kernels.values.Close()
	}
	if err == nil {
		err = d.release()
	}
	closed := ErrClosed
	d.ended.Store(&closed)
	return err
}

// release frees the resources of an idle device.
func (d *gpuDevice) release() error {
	errs := []error{d.kernels.close(), d.unload()}
	d.memory.Close()
	for _, b := range d.condemned {
		errs = append(errs, d.freeDriver(b))
	}
	d.pinned.Close()
	for s := range d.streams {
		errs = append(errs, s.destroy())
	}
	for _, w := range d.freeWorkspaces {
		errs = append(errs, d.freeDriver(w.mem))
	}
	errs = append(errs, d.events.close(), d.marks.close())
	if err := errors.Join(errs...); err != nil {
		return err
	}
	err := d.check("cuDevicePrimaryCtxRelease", C.drv_release(d.drv.fns, d.props.handle))
	d.drv.free()
	return err
}
