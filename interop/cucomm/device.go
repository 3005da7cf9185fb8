package cucomm

// #include <cuda.h>
import "C"

import (
	"context"
	"fmt"
	"unsafe"

	"gorgonia.org/cu"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/cuda"
)

// Device is a GPU as comm takes it in Options.Device, for the memory and one
// stream of a cu program.
type Device struct {
	gpu
	stream *stream
}

// gpu is goddp's own device.
type gpu interface {
	device.Device
	Context() uintptr
	Lookup(symbol string) (unsafe.Pointer, error)
	Compile(ctx context.Context, name, text string, functions ...string) ([]uintptr, error)
}

// Open makes the device of a GPU, whose compute stream is s, which stays the
// program's. cu.NoStream is the default stream of the thread's current context.
// The error is a [*ForeignContextError] where s is not of the GPU's primary
// context, else that of cuda.Open. Close does not end s or the context, which
// the program has retained.
func Open(g cu.Device, s cu.Stream, opts *cuda.Options) (*Device, error) {
	handle := C.CUstream(unsafe.Pointer(s.C()))
	var of C.CUcontext
	if err := check("cuStreamGetCtx", C.cuStreamGetCtx(handle, &of)); err != nil {
		return nil, err
	}
	dev, err := cuda.Open(int(g), opts)
	if err != nil {
		return nil, err
	}
	d := &Device{gpu: dev.(gpu)}
	if err := d.own(fmt.Sprintf("stream %#x", uintptr(unsafe.Pointer(handle))), of); err != nil {
		dev.Close()
		return nil, err
	}
	if d.stream, err = newStream(d, handle); err != nil {
		dev.Close()
		return nil, err
	}
	return d, nil
}

// own is the error of what is not of the primary context.
func (d *Device) own(what string, of C.CUcontext) error {
	if got := uintptr(unsafe.Pointer(of)); got != d.Context() {
		return &ForeignContextError{What: what, Device: d.String(), Context: got, Primary: d.Context()}
	}
	return nil
}

// Tensor is the program's memory from p on, as comm takes it: without a copy, and
// owned by the program as before. It panics when the tensor reaches beyond the
// allocation. The error is a [*ForeignContextError] where p is not of the GPU's
// primary context, else the driver's word on an address that it does not know.
func (d *Device) Tensor(p cu.DevicePtr, dt device.DType, shape ...int) (device.Tensor, error) {
	var of C.CUcontext
	code := C.cuPointerGetAttribute(unsafe.Pointer(&of), C.CU_POINTER_ATTRIBUTE_CONTEXT, C.CUdeviceptr(p))
	if err := check("cuPointerGetAttribute", code); err != nil {
		return device.Tensor{}, fmt.Errorf("memory at %v: %w", p, err)
	}
	if err := d.own(fmt.Sprintf("memory at %v", p), of); err != nil {
		return device.Tensor{}, err
	}
	size, base, err := p.AddressRange()
	if err != nil {
		return device.Tensor{}, err
	}
	buf := device.DeviceBuffer(p.Uintptr(), int(base)+int(size)-int(p), nil)
	return device.NewTensor(buf, dt, shape...), nil
}

// Compute is the program's stream.
func (d *Device) Compute() device.Stream { return d.stream }

// Free gives back what comm allocated, behind what the program's stream was given.
func (d *Device) Free(b device.Buffer) {
	d.stream.enter() // that failed: then the device does not run anything any more
	d.gpu.Free(b)
}

// Copy enqueues a copy.
func (d *Device) Copy(s device.Stream, dst, src device.Buffer) error {
	return d.on(s, func(s device.Stream) error { return d.gpu.Copy(s, dst, src) })
}

// CopyIn enqueues a copy to the device.
func (d *Device) CopyIn(s device.Stream, dst device.Buffer, src []byte) error {
	return d.on(s, func(s device.Stream) error { return d.gpu.CopyIn(s, dst, src) })
}

// CopyOut copies from the device.
func (d *Device) CopyOut(ctx context.Context, s device.Stream, dst []byte, src device.Buffer) error {
	return d.on(s, func(s device.Stream) error { return d.gpu.CopyOut(ctx, s, dst, src) })
}

// on has goddp's stream do what the program's would.
func (d *Device) on(s device.Stream, do func(device.Stream) error) error {
	if s != d.stream {
		return do(s)
	}
	if err := d.stream.enter(); err != nil {
		return err
	}
	if err := do(d.stream.proxy); err != nil {
		return err
	}
	return d.stream.leave()
}

// Close closes goddp's device.
func (d *Device) Close() error {
	d.stream.end()
	return d.gpu.Close()
}
