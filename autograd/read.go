package autograd

import (
	"context"
	"math"
	"runtime"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

// Item returns the one element of v. It waits for the device. If v could not be computed or read, Item
// returns NaN, and [Variable.TryItem] returns the error. Item panics with a [*device.ShapeError] if v
// has more than one element.
func (v *Variable) Item() float64 {
	x, err := v.TryItem(kernels.Unbounded)
	if err != nil {
		return math.NaN()
	}
	return x
}

// TryItem is [Variable.Item] with an error.
func (v *Variable) TryItem(ctx context.Context) (float64, error) {
	if v.t.Len() != 1 {
		panic(&device.ShapeError{Op: "Item", A: v.t.Shape, B: device.Shape{}})
	}
	x, err := v.Read(ctx)
	if err != nil {
		return 0, err
	}
	return x[0], nil
}

// Read copies v's elements, of any type, to the host, in row-major order. It waits
// until the device has computed v, or until ctx ends.
func (v *Variable) Read(ctx context.Context) ([]float64, error) {
	src := v.Tensor()
	if err := v.Err(); err != nil {
		return nil, err
	}
	data := make([]float64, src.Len())
	if len(data) == 0 {
		return data, nil
	}
	dev, s := v.s.dev, v.s.dev.Compute()
	wide, err := v.s.alloc(device.Float64, src.Shape)
	if err != nil {
		return nil, err
	}
	defer dev.Free(wide.Buf)
	defer runtime.KeepAlive(v)
	if err := dev.Kernels().Copy(s, wide, src); err != nil {
		return nil, err
	}
	return data, dev.CopyOut(ctx, s, device.HostTensor(data, device.Float64).Buf.Host(), wide.Buf)
}

// Bytes copies the memory of v to the host. [FromBytes] makes a variable of it again. Bytes waits
// until the device has computed v, or until ctx ends.
func (v *Variable) Bytes(ctx context.Context) ([]byte, error) {
	src := v.Tensor()
	if err := v.Err(); err != nil {
		return nil, err
	}
	defer runtime.KeepAlive(v)
	data := make([]byte, src.Bytes())
	if err := v.s.dev.CopyOut(ctx, v.s.dev.Compute(), data, src.Buf); err != nil {
		return nil, err
	}
	return data, nil
}
