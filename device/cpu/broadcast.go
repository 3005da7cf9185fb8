package cpu

import (
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/internal/operand"
	"github.com/goddp/goddp/internal/kernels"
)

func (k *kernelSet) Binary(_ device.Stream, op kernels.BinaryOp, dst, x, y device.Tensor) error {
	operands.Binary(op, dst, x, y)
	pick(dst, binary[float32], binary[float64])(k, op, dst, x, y)
	return nil
}

func binary[T float](k *kernelSet, op kernels.BinaryOp, dst, x, y device.Tensor) {
	d, xs, ys := device.Elements[T](dst), device.Elements[T](x), device.Elements[T](y)
	space := operand.Space(dst.Shape, x.Shape, y.Shape)
	row, rows := space[0], space[1:]
	k.each(len(d), 1, func(lo, hi int) {
		for lo < hi {
			i := lo % row.N
			xo, yo := operand.Offset(rows, lo/row.N)
			n := min(row.N-i, hi-lo)
			binaryRow(op, d[lo:lo+n], xs[xo+i*row.X:], row.X, ys[yo+i*row.Y:], row.Y)
			lo += n
		}
	})
}

// binaryRow computes dst = x op y. An operand with stride 0 is a single number.
func binaryRow[T float](op kernels.BinaryOp, dst, x []T, sx int, y []T, sy int) {
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

// combine computes dst = x op y element by element.
func combine[T float](op kernels.BinaryOp, dst, x, y []T) {
	x, y = x[:len(dst)], y[:len(dst)]
	switch op {
	case kernels.Add:
		for i := range dst {
			dst[i] = x[i] + y[i]
		}
	case kernels.Sub:
		for i := range dst {
			dst[i] = x[i] - y[i]
		}
	case kernels.Mul:
		for i := range dst {
			dst[i] = x[i] * y[i]
		}
	case kernels.Div:
		for i := range dst {
			dst[i] = x[i] / y[i]
		}
	}
}
