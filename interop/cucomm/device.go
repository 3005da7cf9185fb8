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

// Device is a GPU for Options.Device of comm. It supports the memory and one stream of a cu program.
type Device struct {
	gpu
	stream *stream
}

// gpu is goddp's own device for a GPU.
type gpu interface {
	device.Device
	Context() uintptr
	Lookup(symbol string) (unsafe.Pointer, error)
	Compile(ctx context.Context, name, text string, functions ...string) ([]uintptr, error)
}

// Open opens the device of a GPU for a program whose stream is s. The program keeps ownership of the
// stream and of the context that it has retained; Close ends neither. cu.NoStream is the default
// stream of the thread's current context. The error is an [*OtherContextError] if s does not belong
// to the GPU's primary context.
func Open(g cu.Device, s cu.Stream, opts *cuda.Options) (*Device, error) {
	handle := C.CUstream(unsafe.Pointer(s.C()))
	var owner C.CUcontext
	if err := check("cuStreamGetCtx", C.cuStreamGetCtx(handle, &owner)); err != nil {
		return nil, err
	}
	dev, err := cuda.Open(int(g), opts)
	if err != nil {
		return nil, err
	}
	d := &Device{gpu: dev.(gpu)}
	if err := d.checkContext(fmt.Sprintf("stream %#x", uintptr(unsafe.Pointer(handle))), owner); err != nil {
		dev.Close()
		return nil, err
	}
	if d.stream, err = newStream(d, handle); err != nil {
		dev.Close()
		return nil, err
	}
	return d, nil
}

// checkContext returns an error if owner, the context of what, is not the primary context.
func (d *Device) checkContext(what string, owner C.CUcontext) error {
	if got := uintptr(unsafe.Pointer(owner)); got != d.Context() {
		return &OtherContextError{What: what, Device: d.String(), Context: got, Primary: d.Context()}
	}
	return nil
}

// Tensor returns the program's memory that begins at p as a tensor. It copies nothing, and the
// program keeps ownership of the memory. It panics if the tensor reaches beyond the allocation. The
// error is an [*OtherContextError] if p does not belong to the GPU's primary context, or the
// driver's error if p is not a valid address.
func (d *Device) Tensor(p cu.DevicePtr, dt device.DType, shape ...int) (device.Tensor, error) {
	var owner C.CUcontext
	code := C.cuPointerGetAttribute(unsafe.Pointer(&owner), C.CU_POINTER_ATTRIBUTE_CONTEXT, C.CUdeviceptr(p))
	if err := check("cuPointerGetAttribute", code); err != nil {
		return device.Tensor{}, fmt.Errorf("memory at %v: %w", p, err)
	}
	if err := d.checkContext(fmt.Sprintf("memory at %v", p), owner); err != nil {
		return device.Tensor{}, err
	}
	size, base, err := p.AddressRange()
	if err != nil {
		return device.Tensor{}, err
	}
	buf := device.DeviceBuffer(p.Uintptr(), int(base)+int(size)-int(p), nil)
	return device.NewTensor(buf, dt, shape...), nil
}

// Compute returns the program's stream.
func (d *Device) Compute() device.Stream { return d.stream }

// Free frees memory that comm allocated, after the work that is enqueued on the program's stream.
func (d *Device) Free(b device.Buffer) {
	d.stream.enter() // an error needs no handling: the device then runs nothing any more
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

// on calls do with goddp's stream in place of the program's, and orders the two streams.
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
