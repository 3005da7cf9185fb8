package cpu

import (
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/internal/operand"
	"github.com/goddp/goddp/internal/kernels"
)

// float is a type that kernels compute in.
type float interface{ float32 | float64 }

// operands checks the operands of kernels.
var operands = operand.Types{device.Float32, device.Float64}

// pick returns the version of a function for the type of t.
func pick[F any](t device.Tensor, f32, f64 F) F {
	if t.DType == device.Float32 {
		return f32
	}
	return f64
}

// checkLabels panics if a label is not one of the classes. With skips, kernels.NoLabel is valid too.
func checkLabels(labels []int64, classes int, skips bool) {
	for i, l := range labels {
		if (l < 0 || l >= int64(classes)) && !(skips && l == kernels.NoLabel) {
			panic(&device.IndexError{Op: "CrossEntropy", At: i, Index: l, Limit: classes, Label: true})
		}
	}
}
