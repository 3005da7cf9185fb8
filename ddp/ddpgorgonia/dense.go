package ddpgorgonia

import (
	"context"
	"fmt"
	"runtime"
	"slices"

	"gorgonia.org/tensor"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
)

// FromDense returns a leaf with the values of d. d must be float32 or float64, row-major,
// contiguous and without a mask; otherwise FromDense panics. On a device whose memory the host
// addresses the leaf shares d's memory; on others it holds a copy.
func FromDense(dev device.Device, d *tensor.Dense) *autograd.Variable {
	if !d.IsNativelyAccessible() || d.RequiresIterator() || d.DataOrder().IsColMajor() || len(d.Mask()) > 0 {
		panic(fmt.Errorf("ddpgorgonia: FromDense: the tensor has shape %v and data order %v: want it row-major, contiguous, in host memory and without a mask", d.Shape(), d.DataOrder()))
	}
	shape := slices.Clone([]int(d.Shape()))
	switch d.Dtype() {
	case tensor.Float32:
		return fromHost(dev, d.Float32s(), shape)
	case tensor.Float64:
		return fromHost(dev, d.Float64s(), shape)
	}
	panic(fmt.Errorf("ddpgorgonia: FromDense: the elements are of type %v, want float32 or float64", d.Dtype()))
}

func fromHost[T float32 | float64](dev device.Device, data []T, shape device.Shape) *autograd.Variable {
	if !onHost(dev) {
		return autograd.FromSlice(dev, data, shape...)
	}
	t := device.HostTensor(data, device.Invalid)
	return autograd.FromTensor(dev, t.Reshape(shape...))
}

// onHost reports whether the host addresses the device's memory.
func onHost(dev device.Device) bool {
	b, err := dev.Alloc(1)
	if err != nil {
		return false
	}
	defer dev.Free(b)
	return b.Host() != nil
}

// Dense returns v, of float32 or float64, as a tensor. On a device whose memory the host addresses
// the tensor shares v's memory and keeps it alive. On others it is a copy: Dense waits until the
// device has computed v, or ctx ends. After a write to shared memory the program must call
// [autograd.Variable.BumpVersion].
func Dense(ctx context.Context, v *autograd.Variable) (*tensor.Dense, error) {
	t := v.Tensor()
	if err := v.Err(); err != nil {
		return nil, err
	}
	switch t.DType {
	case device.Float32:
		return toDense[float32](ctx, v, t)
	case device.Float64:
		return toDense[float64](ctx, v, t)
	}
	panic(&device.DTypeError{Op: "Dense", Got: t.DType, Want: device.Float32})
}

func toDense[T float32 | float64](ctx context.Context, v *autograd.Variable, t device.Tensor) (*tensor.Dense, error) {
	defer runtime.KeepAlive(v)
	shared := t.Buf.Host() != nil
	var data []T
	if shared {
		if err := v.Device().Compute().Sync(ctx); err != nil {
			return nil, err
		}
		data = device.Elements[T](t)
	} else {
		data = make([]T, t.Len())
		host := device.HostTensor(data, device.Invalid)
		if err := v.Device().CopyOut(ctx, v.Device().Compute(), host.Buf.Host(), t.Buf); err != nil {
			return nil, err
		}
	}
	d := tensor.New(tensor.WithShape(t.Shape...), tensor.WithBacking(data))
	if shared {
		// The cleanup keeps the memory alive as long as the tensor.
		runtime.AddCleanup(d, func(*autograd.Variable) {}, v.Retain())
	}
	return d, nil
}
