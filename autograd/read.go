package autograd

import (
	"context"
	"math"
	"runtime"

	"github.com/goddp/goddp/device"
)

// Item is the one element of v, NaN when it could not be computed or read:
// [Variable.TryItem] tells why. It waits for the device, and panics with a
// [*device.ShapeError] when v has more elements.
func (v *Variable) Item() float64 {
	x, err := v.TryItem(context.Background())
	if err != nil {
		return math.NaN()
	}
	return x
}

// TryItem is [Variable.Item] with the error.
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

// Read copies v's elements, of any type, to the host, row by row. It waits for
// the device as long as ctx lasts.
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

// Bytes copies v's elements, of any type, to the host as the device holds them, row by
// row: what [FromBytes] makes a variable of again. It waits for the device as long as
// ctx lasts.
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
