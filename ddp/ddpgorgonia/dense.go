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

// FromDense is a leaf over d: float32 or float64, row by row, contiguous and
// without a mask, or FromDense panics. On a device whose memory the host
// addresses it shares d's memory; else it holds a copy.
func FromDense(dev device.Device, d *tensor.Dense) *autograd.Variable {
	if !d.IsNativelyAccessible() || d.RequiresIterator() || d.DataOrder().IsColMajor() || len(d.Mask()) > 0 {
		panic(fmt.Errorf("ddpgorgonia: FromDense: a tensor of shape %v, %v, that is not plain rows in the host's memory", d.Shape(), d.DataOrder()))
	}
	shape := slices.Clone([]int(d.Shape()))
	switch d.Dtype() {
	case tensor.Float32:
		return fromHost(dev, d.Float32s(), shape)
	case tensor.Float64:
		return fromHost(dev, d.Float64s(), shape)
	}
	panic(fmt.Errorf("ddpgorgonia: FromDense: elements of %v, want float32 or float64", d.Dtype()))
}

func fromHost[T float32 | float64](dev device.Device, data []T, shape device.Shape) *autograd.Variable {
	if !onHost(dev) {
		return autograd.FromSlice(dev, data, shape...)
	}
	t := device.HostTensor(data, device.Invalid)
	return autograd.FromTensor(dev, t.Reshape(shape...))
}

// onHost tells whether the host addresses the device's memory.
func onHost(dev device.Device) bool {
	b, err := dev.Alloc(1)
	if err != nil {
		return false
	}
	defer dev.Free(b)
	return b.Host() != nil
}

// Dense is v, of float32 or float64, as a tensor. On a device whose memory the
// host addresses it shares v's memory, and v is retained as long as the tensor
// is in use; else it is a copy, made once the device has computed v or given
// up when ctx ends. A write to memory that the two share is announced by
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
		// The collector must not give the memory back under the tensor.
		runtime.AddCleanup(d, func(*autograd.Variable) {}, v.Retain())
	}
	return d, nil
}
