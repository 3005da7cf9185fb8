package cpu

import (
	"fmt"

	"github.com/goddp/goddp/device"
)

// float is what kernels compute in.
type float interface{ float32 | float64 }

// checkFloat checks that dst is of a type that kernels compute in, and the
// others of the same.
func checkFloat(op string, dst device.Tensor, others ...device.Tensor) {
	if dst.DType != device.Float32 && dst.DType != device.Float64 {
		panic(&device.DTypeError{Op: op, Got: dst.DType, Want: device.Float32})
	}
	for _, t := range others {
		checkType(op, t, dst.DType)
	}
}

func checkType(op string, t device.Tensor, want device.DType) {
	if t.DType != want {
		panic(&device.DTypeError{Op: op, Got: t.DType, Want: want})
	}
}

// checkShape checks that tensors are all of one shape.
func checkShape(op string, want device.Shape, ts ...device.Tensor) {
	for _, t := range ts {
		if !t.Shape.Equal(want) {
			panic(&device.ShapeError{Op: op, A: t.Shape, B: want})
		}
	}
}

// checkScalar checks that t holds one number.
func checkScalar(op string, t device.Tensor) {
	if t.Len() != 1 {
		panic(&device.ShapeError{Op: op, A: t.Shape, B: device.Shape{}})
	}
}

// checkBroadcast checks that small can be broadcast to big.
func checkBroadcast(op string, small, big device.Shape) {
	ok := len(small) <= len(big)
	for i := 1; ok && i <= len(small); i++ {
		s := small[len(small)-i]
		ok = s == 1 || s == big[len(big)-i]
	}
	if !ok {
		panic(&device.ShapeError{Op: op, A: small, B: big})
	}
}

// matrix is the rows and columns of t, or of its transpose.
func matrix(op string, t device.Tensor, transpose bool) (rows, cols int) {
	if len(t.Shape) != 2 {
		panic(&device.ShapeError{Op: op, A: t.Shape, B: device.Shape{0, 0}})
	}
	if transpose {
		return t.Shape[1], t.Shape[0]
	}
	return t.Shape[0], t.Shape[1]
}

func checkLabels(labels []int64, classes int) {
	for i, l := range labels {
		if l < 0 || l >= int64(classes) {
			panic(&device.LabelError{Row: i, Label: l, Classes: classes})
		}
	}
}

func checkCopy(op string, dst, src int) {
	if dst != src {
		panic(fmt.Errorf("cpu: %s of %d bytes to %d", op, src, dst))
	}
}
