package autograd_test

import (
	"bytes"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
)

// FromBytes restores what Bytes read, for every type and shape.
func TestBytes(t *testing.T) {
	dev := newDevice(t)
	for _, v := range []*autograd.Variable{
		autograd.FromSlice(dev, []float32{1, -2.5, 0, 1e30, 7, 8}, 2, 3), autograd.FromSlice(dev, []float64{0.1}), autograd.Scalar(dev, 3),
		autograd.FromSlice(dev, []int64{-1, 1 << 60}), autograd.Zeros(dev, device.Int64), autograd.Zeros(dev, device.BFloat16, 3),
		autograd.Zeros(dev, device.Float32, 0, 4),
	} {
		data, err := v.Bytes(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		again := autograd.FromBytes(dev, v.DType(), v.Shape(), data)
		back, err := again.Bytes(t.Context())
		if err != nil || again.DType() != v.DType() || !again.Shape().Equal(v.Shape()) || !bytes.Equal(back, data) || len(data) != v.Tensor().Bytes() {
			t.Errorf("%v%v of %v became %v%v of %v, %v", v.DType(), v.Shape(), data, again.DType(), again.Shape(), back, err)
		}
	}
	for _, shape := range []device.Shape{{3}, {-2, -1}, {1 << 62, 4}, {1 << 32, 1 << 32}, {}} {
		for _, n := range []int{0, 16} {
			if err := panics[*device.ShapeError](t, func() { autograd.FromBytes(dev, device.Int64, shape, make([]byte, n)) }); err == nil {
				t.Errorf("%d bytes are taken for int64%v", n, shape)
			}
		}
	}
}
