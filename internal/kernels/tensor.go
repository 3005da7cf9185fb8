package kernels

import "github.com/goddp/goddp/device"

// Broadcast returns the shape that a and b broadcast to by NumPy's rule: the shapes are aligned at
// the last axis, and the sizes of an axis are equal or one of them is 1. If the shapes do not
// match, Broadcast panics with a [*device.ShapeError] that names the operation op.
func Broadcast(op string, a, b device.Shape) device.Shape {
	out := make(device.Shape, max(len(a), len(b)))
	for i := 1; i <= len(out); i++ {
		x, y := sizeFromEnd(a, i), sizeFromEnd(b, i)
		if x != y && x != 1 && y != 1 {
			panic(&device.ShapeError{Op: op, A: a, B: b})
		}
		if x == 1 {
			x = y
		}
		out[len(out)-i] = x
	}
	return out
}

// sizeFromEnd returns the size of the i-th last axis of s, or 1 if s has fewer axes.
func sizeFromEnd(s device.Shape, i int) int {
	if i > len(s) {
		return 1
	}
	return s[len(s)-i]
}

// Distinct returns the tensors without duplicates. A duplicate is a tensor on the same memory as an
// earlier tensor, such as a parameter that two layers share.
func Distinct(tensors []device.Tensor) []device.Tensor {
	type memory struct {
		addr uintptr
		size int
	}
	var out []device.Tensor
	seen := map[memory]bool{}
	for _, t := range tensors {
		if m := (memory{t.Buf.Addr(), t.Bytes()}); !seen[m] {
			seen[m] = true
			out = append(out, t)
		}
	}
	return out
}
