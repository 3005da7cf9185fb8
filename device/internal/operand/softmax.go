package operand

import "github.com/goddp/goddp/device"

// Lines describes the lines of a tensor along one axis: Outer·Inner lines of N elements each, whose
// elements are Inner apart in memory. Line l begins at element l/Inner·N·Inner + l%Inner.
type Lines struct{ Outer, N, Inner int }

// LinesAlong returns the lines of a shape along an axis. A scalar is a line of one element.
func LinesAlong(op string, shape device.Shape, axis int) Lines {
	if len(shape) == 0 {
		shape = device.Shape{1}
	}
	if axis < 0 || axis >= len(shape) {
		panic(&device.ShapeError{Op: op, A: shape, B: device.Shape{axis}})
	}
	return Lines{device.Shape(shape[:axis]).Len(), shape[axis], device.Shape(shape[axis+1:]).Len()}
}

// Softmax checks the operands of a Softmax.
func (ts Types) Softmax(dst, x device.Tensor, axis int) Lines {
	ts.Same("Softmax", dst, x)
	return LinesAlong("Softmax", x.Shape, axis)
}

// SoftmaxGrad checks the operands of a SoftmaxGrad.
func (ts Types) SoftmaxGrad(dst, g, y device.Tensor, axis int) Lines {
	ts.Same("SoftmaxGrad", dst, g, y)
	return LinesAlong("SoftmaxGrad", dst.Shape, axis)
}
