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
func (ts Types) AttendLast(o, q, keys, values, last device.Tensor) {
	const op = "AttendLast"
	ts.Float(op, o, q, keys, values)
	checkType(op, last, device.Int64)
	checkShape(op, q.Shape, o)
	checkShape(op, keys.Shape, values)
	k := keys.Shape
	if len(q.Shape) != 3 || len(k) != 4 || q.Shape[0] != k[0] || k[2] == 0 || q.Shape[1]%k[2] != 0 || q.Shape[2] != k[3] || k[3] > kernels.MaxHeadSize {
		panic(&device.ShapeError{Op: op, A: q.Shape, B: k})
	}
	checkShape(op, k[:1], last)
}
