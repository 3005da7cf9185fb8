package operand

import (
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

// Rotate checks the operands of a Rotate, x [B T N D].
func (ts Types) Rotate(dst, x device.Tensor, r kernels.Rotation) {
	const op = "Rotate"
	ts.Same(op, dst, x)
	want := device.Float32
	if x.DType == device.Float64 {
		want = device.Float64
	}
	checkType(op, r.Cos, want)
	checkType(op, r.Sin, want)
	checkShape(op, r.Cos.Shape, r.Sin)
	if len(x.Shape) != 4 || len(r.Cos.Shape) != 2 || r.Cos.Shape[0] < x.Shape[1] || 2*r.Cos.Shape[1] > x.Shape[3] || r.Heads < 0 || r.Heads > x.Shape[2] {
		panic(&device.ShapeError{Op: op, A: x.Shape, B: r.Cos.Shape})
	}
}
