package operand

import (
	"fmt"
	"slices"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

// CopyStrided checks the operands of a CopyStrided. It returns the axes of the copied box, starting
// with the smallest stride in dst. X is the stride in dst, Y the stride in src. Contiguous axes are
// coalesced, and axes of size 1 are dropped. The result has at least one axis, of size 0 for an
// empty box.
func (ts Types) CopyStrided(shape device.Shape, dst device.Tensor, to kernels.Layout, acc device.Accum, src device.Tensor, from kernels.Layout) []Axis {
	const op = "CopyStrided"
	switch {
	case !dst.DType.Valid():
		panic(&device.DTypeError{Op: op, Got: dst.DType, Want: device.Float32})
	case acc == device.Store:
		checkType(op, src, dst.DType)
	default:
		ts.Float(op, dst, src)
	}
	for _, l := range []kernels.Layout{to, from} {
		if len(l.Strides) != len(shape) {
			panic(&device.ShapeError{Op: op + ", strides", A: shape, B: l.Strides})
		}
	}
	if shape.Len() == 0 {
		return nil
	}
	checkWithin(op, shape, dst, to)
	checkWithin(op, shape, src, from)

	axes := make([]Axis, 0, max(len(shape), 1))
	for i, n := range shape {
		if n != 1 {
			axes = append(axes, Axis{n, to.Strides[i], from.Strides[i]})
		}
	}
	slices.SortStableFunc(axes, func(a, b Axis) int { return magnitude(a.X) - magnitude(b.X) })
	out := axes[:0]
	for _, a := range axes {
		if n := len(out); n > 0 && a.X == out[n-1].X*out[n-1].N && a.Y == out[n-1].Y*out[n-1].N {
			out[n-1].N *= a.N
			continue
		}
		out = append(out, a)
	}
	if len(out) == 0 {
		out = append(out, Axis{1, 1, 1})
	}
	return out
}

// checkWithin checks that a box lies within t.
func checkWithin(op string, shape device.Shape, t device.Tensor, l kernels.Layout) {
	lo, hi := l.Offset, l.Offset
	for i, n := range shape {
		if reach := (n - 1) * l.Strides[i]; reach < 0 {
			lo += reach
		} else {
			hi += reach
		}
	}
	if lo < 0 || hi >= t.Len() {
		panic(fmt.Errorf("device: %s of elements %d to %d is out of range for %v", op, lo, hi, t))
	}
}

func magnitude(x int) int { return max(x, -x) }

// Second returns the index of the axis, other than the first, with the smallest stride in src. In
// the plane of these two axes, a kernel can write dst and read src in order. Second returns 0 if
// there is only one axis.
func Second(axes []Axis) int {
	second := 0
	for i := 1; i < len(axes); i++ {
		if second == 0 || magnitude(axes[i].Y) < magnitude(axes[second].Y) {
			second = i
		}
	}
	return second
}
