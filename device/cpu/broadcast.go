package cpu

import "github.com/goddp/goddp/device"

func (k *kernels) Binary(_ device.Stream, op device.BinaryOp, dst, x, y device.Tensor) error {
	checkFloat(op.String(), dst, x, y)
	checkBroadcast(op.String(), x.Shape, dst.Shape)
	checkBroadcast(op.String(), y.Shape, dst.Shape)
	if dst.DType == device.Float32 {
		binary[float32](k, op, dst, x, y)
	} else {
		binary[float64](k, op, dst, x, y)
	}
	return nil
}

// axis is one axis of an iteration space over two operands: how many steps it
// has, and how many elements each takes in x and in y, 0 where the operand is
// broadcast.
type axis struct{ n, x, y int }

// axes is the iteration space of x and y broadcast to shape, innermost first,
// with as few axes as will do: those that both operands cross evenly are
// joined, those of size 1 left out. There is always one.
func axes(shape, x, y device.Shape) []axis {
	out := make([]axis, 0, max(len(shape), 1))
	sx, sy := 1, 1 // elements from one step along the axis to the next
	for i := 1; i <= len(shape); i++ {
		a := axis{n: shape[len(shape)-i]}
		if a.n == 1 {
			continue
		}
		if i <= len(x) && x[len(x)-i] != 1 {
			a.x, sx = sx, sx*a.n
		}
		if i <= len(y) && y[len(y)-i] != 1 {
			a.y, sy = sy, sy*a.n
		}
		if n := len(out); n > 0 && a.x == out[n-1].x*out[n-1].n && a.y == out[n-1].y*out[n-1].n {
			out[n-1].n *= a.n
			continue
		}
		out = append(out, a)
	}
	if len(out) == 0 {
		out = append(out, axis{1, 1, 1})
	}
	return out
}

// offset is where step i of the space is in x and y.
func offset(space []axis, i int) (x, y int) {
	for _, a := range space {
		x += i % a.n * a.x
		y += i % a.n * a.y
		i /= a.n
	}
	return x, y
}

func binary[T float](k *kernels, op device.BinaryOp, dst, x, y device.Tensor) {
	d, xs, ys := device.Elements[T](dst), device.Elements[T](x), device.Elements[T](y)
	space := axes(dst.Shape, x.Shape, y.Shape)
	row, rows := space[0], space[1:]
	k.each(len(d), 1, func(lo, hi int) {
		for lo < hi {
			i := lo % row.n
			xo, yo := offset(rows, lo/row.n)
			n := min(row.n-i, hi-lo)
			binaryRow(op, d[lo:lo+n], xs[xo+i*row.x:], row.x, ys[yo+i*row.y:], row.y)
			lo += n
		}
	})
}

// binaryRow computes dst = x op y. An operand with stride 0 is one number.
func binaryRow[T float](op device.BinaryOp, dst, x []T, sx int, y []T, sy int) {
	if sx == 1 && sy == 1 {
		combine(op, dst, x, y)
		return
	}
	var bx, by [tile]T
	if sx == 0 {
		fill(bx[:min(tile, len(dst))], x[0])
	}
	if sy == 0 {
		fill(by[:min(tile, len(dst))], y[0])
	}
	for i := 0; i < len(dst); i += tile {
		tx, ty := bx[:], by[:]
		if sx != 0 {
			tx = x[i:]
		}
		if sy != 0 {
			ty = y[i:]
		}
		combine(op, dst[i:min(i+tile, len(dst))], tx, ty)
	}
}

// combine computes dst = x op y elementwise.
func combine[T float](op device.BinaryOp, dst, x, y []T) {
	x, y = x[:len(dst)], y[:len(dst)]
	switch op {
	case device.Add:
		for i := range dst {
			dst[i] = x[i] + y[i]
		}
	case device.Sub:
		for i := range dst {
			dst[i] = x[i] - y[i]
		}
	case device.Mul:
		for i := range dst {
			dst[i] = x[i] * y[i]
		}
	case device.Div:
		for i := range dst {
			dst[i] = x[i] / y[i]
		}
	}
}
