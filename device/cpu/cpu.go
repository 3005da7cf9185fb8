package cpu

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"unsafe"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/internal/arena"
	"github.com/goddp/goddp/device/internal/operand"
	"github.com/goddp/goddp/internal/kernels"
)

// Options configure [New].
type Options struct {
	// Threads is the maximum number of threads of a kernel; default GOMAXPROCS. If several ranks
	// share a host, the caller divides its cores among them.
	Threads int
	// BLAS selects the library of matrix products.
	BLAS BLAS
	// MemoryLimit is the maximum memory of the device, in bytes. 0 means the memory available on the
	// host at the time of an allocation.
	MemoryLimit int64
	// Log receives the name of the BLAS; default slog.Default().
	Log *slog.Logger
}

// New opens a device on the host's cores. It panics if opts selects OpenBLAS and the library cannot
// be loaded. With the zero Options it never fails.
func New(opts *Options) device.Device {
	o := *cmp.Or(opts, &Options{})
	if o.Threads <= 0 {
		o.Threads = runtime.GOMAXPROCS(0)
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	d := &cpu{kernels: kernelSet{threads: o.Threads, blas: o.BLAS.open(o.Log), oneDNN: oneDNNOnce{log: o.Log}}}
	d.arena = arena.New(d.raw(o.MemoryLimit))
	return d
}

// cpu implements device.Device.
type cpu struct {
	kernels kernelSet
	compute stream
	arena   *arena.Arena
}

// kernelSet implements kernels.Kernels. A kernel checks its operands and calls a generic
// function for their type.
type kernelSet struct {
	threads int
	blas    blas
	oneDNN  oneDNNOnce
	values  kernels.Values
}

// Values returns the state that other packages keep for the device.
func (k *kernelSet) Values() *kernels.Values { return &k.values }

// raw returns the functions with which the arena allocates and frees memory. The memory is on Go's
// heap, so a buffer stays valid while it is reachable, even after the device is closed.
func (d *cpu) raw(limit int64) (alloc func(int) (device.Buffer, error), release func(device.Buffer)) {
	var held int64 // needs no lock, because the arena calls one function at a time
	alloc = func(size int) (device.Buffer, error) {
		if limit > 0 && held+int64(size) > limit {
			return device.Buffer{}, &device.OutOfMemoryError{
				Device: d.String(), Asked: int64(size), InUse: held, Free: limit - held,
			}
		}
		if err := kernels.CheckMemory(size); err != nil {
			return device.Buffer{}, err
		}
		held += int64(size)
		return device.HostBuffer(aligned(size), nil), nil
	}
	release = func(b device.Buffer) { held -= int64(b.Len()) }
	return alloc, release
}

// aligned returns zeroed memory whose address is a multiple of device.Align.
func aligned(size int) []byte {
	mem := make([]byte, size+device.Align-1)
	addr := int(uintptr(unsafe.Pointer(unsafe.SliceData(mem))))
	off := device.AlignUp(addr) - addr
	return mem[off : off+size : off+size]
}

func (d *cpu) String() string                         { return device.CPU }
func (d *cpu) Type() string                           { return device.CPU }
func (d *cpu) Alloc(size int) (device.Buffer, error)  { return d.arena.Alloc(size) }
func (d *cpu) AllocHost(n int) (device.Buffer, error) { return d.arena.Alloc(n) }
func (d *cpu) Free(b device.Buffer)                   { d.arena.Free(b) }
func (d *cpu) Compute() device.Stream                 { return &d.compute }
func (d *cpu) NewStream(bool) (device.Stream, error)  { return &stream{}, nil }
func (d *cpu) Kernels() device.Kernels                { return &d.kernels }
func (d *cpu) Memory() device.MemoryStats             { return d.arena.Stats() }

// Copy copies src to dst before it returns. Their lengths must be equal.
func (d *cpu) Copy(_ device.Stream, dst, src device.Buffer) error {
	operand.Bytes("Copy", dst.Len(), src.Len())
	copy(dst.Host(), src.Host())
	return nil
}

// CopyIn copies src to dst before it returns. Their lengths must be equal.
func (d *cpu) CopyIn(_ device.Stream, dst device.Buffer, src []byte) error {
	operand.Bytes("CopyIn", dst.Len(), len(src))
	copy(dst.Host(), src)
	return nil
}

// CopyOut copies src to dst. Their lengths must be equal.
func (d *cpu) CopyOut(ctx context.Context, _ device.Stream, dst []byte, src device.Buffer) error {
	operand.Bytes("CopyOut", len(dst), src.Len())
	if err := context.Cause(ctx); err != nil {
		return fmt.Errorf("cpu: CopyOut of %d bytes: %w", src.Len(), err)
	}
	copy(dst, src.Host())
	return nil
}

// Close drops the arena. Memory that is still reachable stays valid.
func (d *cpu) Close() error {
	d.kernels.values.Close()
	d.arena.Close()
	return nil
}
