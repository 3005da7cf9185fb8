package ddpgorgonia

import (
	"fmt"
	"unsafe"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/goddp/goddp/device"
)

// accumulate writes a gradient to its place in the buckets, or adds it to the gradient there if
// fresh is false.
func (m *Model) accumulate(dst device.Tensor, grad G.Value, fresh bool) error {
	src, err := elements(grad)
	if err != nil {
		return err
	}
	if src.DType != dst.DType || src.Len() != dst.Len() {
		return fmt.Errorf("the gradient is %v, but the learnable is %v", src, dst)
	}
	k, s := m.pg.Device().Kernels(), m.pg.Device().Compute()
	src = src.Reshape(dst.Shape...)
	if fresh {
		return k.Copy(s, dst, src)
	}
	return k.Axpby(s, dst, device.Accum{Alpha: 1, Beta: 1}, src)
}

// elements returns the elements of v in row-major order. They share v's memory if it has that
// order.
func elements(v G.Value) (device.Tensor, error) {
	switch x := v.(type) {
	case *G.F32:
		return device.HostTensor(unsafe.Slice((*float32)(x), 1), device.Float32), nil
	case *G.F64:
		return device.HostTensor(unsafe.Slice((*float64)(x), 1), device.Float64), nil
	case *tensor.Dense:
		switch {
		case x.DataOrder().IsColMajor():
		case x.Dtype() == tensor.Float32:
			return device.HostTensor(rows(x, x.Float32s()), device.Float32), nil
		case x.Dtype() == tensor.Float64:
			return device.HostTensor(rows(x, x.Float64s()), device.Float64), nil
		}
		return device.Tensor{}, fmt.Errorf("gradient has type %v and data order %v: want float32 or float64 in row-major order", x.Dtype(), x.DataOrder())
	}
	return device.Tensor{}, fmt.Errorf("unsupported gradient type %T: want a *tensor.Dense or a scalar of float32 or float64", v)
}

// rows returns the elements of d in row-major order. data is d's memory; d may be a transposed view
// of it.
func rows[T any](d *tensor.Dense, data []T) []T {
	if !d.RequiresIterator() {
		return data
	}
	out := make([]T, 0, d.Shape().TotalSize())
	it := d.Iterator()
	for at, err := it.Next(); err == nil; at, err = it.Next() {
		out = append(out, data[at])
	}
	return out
}
