package operand

import "github.com/goddp/goddp/device"

// Axis is one axis of an iteration space over two operands: its size N, and the strides X and Y of
// the operands in elements. The stride is 0 for an operand that is broadcast along the axis.
type Axis struct{ N, X, Y int }

// Space returns the iteration space of x and y broadcast to shape, innermost axis first. Contiguous
// axes are coalesced, and axes of size 1 are dropped. The result has at least one axis. Along the
// first axis, each operand's stride is 0 or 1.
func Space(shape, x, y device.Shape) []Axis {
	out := make([]Axis, 0, max(len(shape), 1))
	sx, sy := 1, 1 // strides along the axis, in elements
	for i := 1; i <= len(shape); i++ {
		a := Axis{N: shape[len(shape)-i]}
		if a.N == 1 {
			continue
		}
		if i <= len(x) && x[len(x)-i] != 1 {
			a.X, sx = sx, sx*a.N
		}
		if i <= len(y) && y[len(y)-i] != 1 {
			a.Y, sy = sy, sy*a.N
		}
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

// Offset returns the positions of step i of a space in x and in y.
func Offset(space []Axis, i int) (x, y int) {
	for _, a := range space {
		x += i % a.N * a.X
		y += i % a.N * a.Y
		i /= a.N
	}
	return x, y
}

// Reduction describes a sum by the axes of src. The axes that dst keeps select an output. The
// other axes select the terms of an output.
//
// If src's innermost axis is summed, Width is 1, and each output is the sum of runs of src. If that axis is
// kept, Width is its size, and Width outputs are summed together, row by row, which reads src in order.
type Reduction struct {
	Kept  []Axis // without the innermost axis; X is the stride in src
	Terms []Axis // with the innermost axis, if that is summed
	Width int
	N     int // the number of terms per output
}

// NewReduction returns the reduction of a tensor of shape src to shape dst. Neither may be empty.
func NewReduction(dst, src device.Shape) Reduction {
	r := Reduction{Width: 1, N: 1}
	for i, a := range Space(src, src, dst) {
		switch {
		case a.Y == 0:
			r.Terms = append(r.Terms, a)
			r.N *= a.N
		case i == 0:
			r.Width = a.N
		default:
			r.Kept = append(r.Kept, a)
		}
	}
	return r
}
