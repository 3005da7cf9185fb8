package operand

import (
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

// WriteRows checks the operands of a WriteRows.
func (ts Types) WriteRows(dst, src, first device.Tensor) {
	const op = "WriteRows"
	ts.Float(op, dst, src)
	checkType(op, first, device.Int64)
	if len(dst.Shape) != 3 || len(src.Shape) != 3 || src.Shape[0] != dst.Shape[0] || src.Shape[2] != dst.Shape[2] {
		panic(&device.ShapeError{Op: op, A: dst.Shape, B: src.Shape})
	}
	checkShape(op, dst.Shape[:1], first)
}

// AttendLast checks the operands of an AttendLast.
func (ts Types) AttendLast(o device.Tensor, a kernels.Last) {
	const op = "AttendLast"
	q := a.Q
	ts.Float(op, o, q, a.K, a.V, a.Keys, a.Values)
	checkType(op, a.Last, device.Int64)
	checkShape(op, q.Shape, o)
	checkShape(op, a.Keys.Shape, a.Values)
	k := a.Keys.Shape
	if len(q.Shape) != 3 || len(k) != 4 || q.Shape[0] != k[0] || k[2] == 0 || q.Shape[1]%k[2] != 0 || q.Shape[2] != k[3] || k[3] > kernels.MaxHeadSize {
		panic(&device.ShapeError{Op: op, A: q.Shape, B: k})
	}
	checkShape(op, device.Shape{k[0], k[2], k[3]}, a.K)
	checkShape(op, a.K.Shape, a.V)
	checkShape(op, k[:1], a.Last)
	checkType(op, a.Arrived, device.Int32)
	checkShape(op, device.Shape{k[0], k[2]}, a.Arrived)
}
