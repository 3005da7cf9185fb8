package operand

import (
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

// Compare checks the operands of a Compare.
func (ts Types) Compare(c kernels.Comparison, dst, x, y device.Tensor) {
	op := c.String()
	checkType(op, dst, device.Uint8)
	if x.DType.IsFloat() || !x.DType.Valid() {
		ts.Float(op, x)
	}
	checkType(op, y, x.DType)
	checkBroadcast(op, x.Shape, dst.Shape)
	checkBroadcast(op, y.Shape, dst.Shape)
}

// MaskedCopy checks the operands of a MaskedCopy.
func MaskedCopy(dst, mask, x device.Tensor) {
	const op = "MaskedCopy"
	if !dst.DType.Valid() {
		panic(&device.DTypeError{Op: op, Got: dst.DType, Want: device.Float32})
	}
	checkType(op, x, dst.DType)
	checkType(op, mask, device.Uint8)
	checkBroadcast(op, x.Shape, dst.Shape)
	checkBroadcast(op, mask.Shape, dst.Shape)
}

// FindExtreme checks the operands of a FindExtreme.
func (ts Types) FindExtreme(e kernels.Extreme, values, indices, src device.Tensor) (outer, n, inner int) {
	op := e.String()
	ts.Float(op, src)
	if len(src.Shape) != 3 {
		panic(&device.ShapeError{Op: op, A: src.Shape, B: values.Shape})
	}
	outer, n, inner = src.Shape[0], src.Shape[1], src.Shape[2]
	want := device.Shape{outer, inner}
	if !values.IsZero() {
		checkType(op, values, src.DType)
		checkShape(op, want, values)
	}
	if !indices.IsZero() {
		checkType(op, indices, device.Int64)
		checkShape(op, want, indices)
	}
	if n == 0 && want.Len() > 0 {
		panic(&device.ShapeError{Op: op + " of nothing", A: src.Shape, B: want})
	}
	return outer, n, inner
}
