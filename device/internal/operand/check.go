package operand

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

// Types lists the element types that a device computes in. Each method checks the operands of one
// kernel.
type Types []device.DType

// These are the types of kernels that support the same types on every device. They are variables to
// avoid an allocation: a slice literal in a call would escape, because the error keeps it.
var (
	floats = Types{device.Float32, device.Float64, device.Float16, device.BFloat16}
	wide   = Types{device.Float32, device.Float64}
)

// Float checks that dst has a type that the device computes in, and that the others have the same
// type.
func (ts Types) Float(op string, dst device.Tensor, others ...device.Tensor) {
	if !slices.Contains(ts, dst.DType) {
		panic(&device.DTypeError{Op: op, Got: dst.DType, Want: device.Float32, Computes: ts})
	}
	for _, t := range others {
		checkType(op, t, dst.DType)
	}
}

// Axpby checks the operands of an Axpby, which all devices support for every floating-point type.
func Axpby(dst, x device.Tensor) {
	floats.Same("Axpby", dst, x)
}

// Same checks that the operands have one type and one shape.
func (ts Types) Same(op string, dst device.Tensor, others ...device.Tensor) {
	ts.Float(op, dst, others...)
	checkShape(op, dst.Shape, others...)
}

// UnaryGrad checks the operands of a UnaryGrad. It returns the operand, x or y, from which op's
// derivative is computed, or g if the derivative is constant.
func (ts Types) UnaryGrad(op kernels.UnaryOp, dst, g, x, y device.Tensor) (known device.Tensor) {
	known = g
	switch op.Given() {
	case kernels.GivenX:
		known = x
	case kernels.GivenY:
		known = y
	}
	ts.Same(op.String(), dst, g, known)
	return known
}

// SwiGLU checks the operands of a SwiGLU.
func (ts Types) SwiGLU(dst, gate, up device.Tensor) { ts.Same("SwiGLU", dst, gate, up) }

// SwiGLUGrad checks the operands of a SwiGLUGrad.
func (ts Types) SwiGLUGrad(to kernels.SwiGLUGrads, g, gate, up device.Tensor) {
	const op = "SwiGLUGrad"
	ts.Same(op, g, gate, up)
	for _, dst := range []device.Tensor{to.Gate, to.Up} {
		if !dst.IsZero() {
			ts.Same(op, g, dst)
		}
	}
}

// ScaleBy checks the operands of a ScaleBy.
func (ts Types) ScaleBy(dst, factor, x device.Tensor) {
	const op = "ScaleBy"
	ts.Same(op, dst, x)
	checkScalar(op, factor)
	checkType(op, factor, sumsOf(dst.DType))
}

// sumsOf returns the type of losses and other sums over numbers of type dt.
func sumsOf(dt device.DType) device.DType {
	if dt == device.Float64 {
		return dt
	}
	return device.Float32
}

// Binary checks the operands of a Binary.
func (ts Types) Binary(op kernels.BinaryOp, dst, x, y device.Tensor) {
	ts.Float(op.String(), dst, x, y)
	checkBroadcast(op.String(), x.Shape, dst.Shape)
	checkBroadcast(op.String(), y.Shape, dst.Shape)
}

// Sum checks the operands of a Sum.
func (ts Types) Sum(dst, src device.Tensor) {
	ts.Float("Sum", dst, src)
	checkBroadcast("Sum", dst.Shape, src.Shape)
}

// Product describes a MatMul. For every step of the iteration space Batch it multiplies op(x) [m k]
// by op(y) [k n]. The axes of Batch count matrices. The product of step i is matrix i of dst.
type Product struct {
	M, N, K int
	Batch   []Axis // has at least one axis; callers must not change it
}

// one is the iteration space of a product of two matrices.
var one = []Axis{{1, 1, 1}}

// MatMul checks the operands of a MatMul.
func (ts Types) MatMul(dst, x device.Tensor, tx bool, y device.Tensor, ty bool) Product {
	const op = "MatMul"
	if len(dst.Shape) == 2 && len(x.Shape) == 2 && len(y.Shape) == 2 {
		m, n, k := ts.product(op, dst, x, tx, y, ty)
		return Product{m, n, k, one}
	}
	ts.Float(op, dst, x, y)
	lead := func(t device.Tensor) (batch device.Shape, matrix device.Tensor) {
		at := len(t.Shape) - 2
		if at < 0 {
			panic(&device.ShapeError{Op: op, A: t.Shape, B: device.Shape{0, 0}})
		}
		return t.Shape[:at], device.Tensor{DType: t.DType, Shape: t.Shape[at:]}
	}
	batch, d := lead(dst)
	xBatch, xm := lead(x)
	yBatch, ym := lead(y)
	checkBroadcast(op, xBatch, batch)
	checkBroadcast(op, yBatch, batch)
	m, n, k := ts.product(op, d, xm, tx, ym, ty)
	return Product{m, n, k, Space(batch, xBatch, yBatch)}
}

// Linear checks the operands of a Linear, x [m k] and w [n k].
func (ts Types) Linear(dst, x, w, bias device.Tensor) (m, n, k int) {
	m, n, k = ts.product("Linear", dst, x, false, w, true)
	if !bias.IsZero() {
		checkType("Linear", bias, dst.DType)
		checkShape("Linear", device.Shape{n}, bias)
	}
	return m, n, k
}

// LinearGrad checks the operands of a LinearGrad, g [m n] and x [m k].
func (ts Types) LinearGrad(dw, db, g, x device.Tensor) (m, n, k int) {
	n, k, m = ts.product("LinearGrad", dw, g, true, x, false)
	checkType("LinearGrad", db, dw.DType)
	checkShape("LinearGrad", device.Shape{n}, db)
	return m, n, k
}

// LinearUnary checks the operands of a LinearUnary, x [m k] and w [n k].
func (ts Types) LinearUnary(op kernels.UnaryOp, dst, pre, x, w, bias device.Tensor) {
	ts.Linear(dst, x, w, bias)
	if !pre.IsZero() {
		ts.Same("LinearUnary", dst, pre)
	}
	checkGivenX(op)
}

// LinearUnaryGrad checks the operands of a LinearUnaryGrad, g [m n] and w [n k].
func (ts Types) LinearUnaryGrad(op kernels.UnaryOp, dst, db, g, w, pre device.Tensor) (m, n, k int) {
	m, k, n = ts.product("LinearUnaryGrad", dst, g, false, w, false)
	ts.Same("LinearUnaryGrad", dst, pre)
	if !db.IsZero() {
		checkType("LinearUnaryGrad", db, dst.DType)
		checkShape("LinearUnaryGrad", device.Shape{k}, db)
	}
	checkGivenX(op)
	return m, n, k
}

// checkGivenX panics unless op's derivative is computed from its operand.
func checkGivenX(op kernels.UnaryOp) {
	if op.Given() != kernels.GivenX {
		panic(fmt.Errorf("%v: the derivative does not use the operand, want a function whose derivative does", op))
	}
}

func (ts Types) product(op string, dst, x device.Tensor, tx bool, y device.Tensor, ty bool) (m, n, k int) {
	ts.Float(op, dst, x, y)
	m, n = matrix(op, dst, false)
	xm, xk := matrix(op, x, tx)
	yk, yn := matrix(op, y, ty)
	if xk != yk {
		panic(&device.ShapeError{Op: op, A: x.Shape, B: y.Shape})
	}
	if xm != m || yn != n {
		panic(&device.ShapeError{Op: op, A: dst.Shape, B: device.Shape{xm, yn}})
	}
	return m, n, xk
}

// MSE checks the operands of an MSE.
func (ts Types) MSE(dst, x, y device.Tensor) {
	ts.Float("MSE", dst, x, y)
	checkShape("MSE", x.Shape, y)
	checkScalar("MSE", dst)
}

// MSEGrad checks the operands of an MSEGrad.
func (ts Types) MSEGrad(dst, g, x, y device.Tensor) {
	ts.Float("MSEGrad", dst, g, x, y)
	checkShape("MSEGrad", dst.Shape, x, y)
	checkScalar("MSEGrad", g)
}

// CrossEntropy checks the operands of a CrossEntropy, logits [m n].
func (ts Types) CrossEntropy(loss, sums, logits, labels device.Tensor) (m, n int) {
	return ts.crossEntropy("CrossEntropy", loss, sums, logits, labels)
}

// CrossEntropyGrad checks the operands of a CrossEntropyGrad, dst [m n].
func (ts Types) CrossEntropyGrad(dst, g, sums, logits, labels device.Tensor) (m, n int) {
	const op = "CrossEntropyGrad"
	ts.Float(op, dst, logits)
	checkShape(op, logits.Shape, dst)
	return ts.crossEntropy(op, g, sums, logits, labels)
}

// CrossEntropyInPlace checks the operands of a CrossEntropyInPlace, logits [m n].
func (ts Types) CrossEntropyInPlace(losses, logits, labels device.Tensor) (m, n int) {
	const op = "CrossEntropyInPlace"
	m, n = ts.labelled(op, logits, labels)
	checkShape(op, device.Shape{m}, losses)
	checkType(op, losses, sumsOf(logits.DType))
	return m, n
}

// crossEntropy checks logits, labels, the two sums of each row, and a scalar of the type of losses.
func (ts Types) crossEntropy(op string, scalar, sums, logits, labels device.Tensor) (m, n int) {
	m, n = ts.labelled(op, logits, labels)
	checkShape(op, device.Shape{2, m}, sums)
	checkType(op, sums, device.Float64)
	checkScalar(op, scalar)
	checkType(op, scalar, sumsOf(logits.DType))
	return m, n
}

// labelled checks logits and their labels.
func (ts Types) labelled(op string, logits, labels device.Tensor) (m, n int) {
	ts.Float(op, logits)
	checkType(op, labels, device.Int64)
	m, n = matrix(op, logits, false)
	checkShape(op, device.Shape{m}, labels)
	return m, n
}

// Update checks the operands of an optimizer's step, which all devices support for every floating-point type.
func Update(u *kernels.Update) {
	op, state := u.Op, u.Param.DType
	switch {
	case u.Master.IsZero():
		if !state.IsFloat() {
			panic(&device.DTypeError{Op: op, Got: state, Want: device.Float32})
		}
		checkType(op, *u.Grad, state)
	default:
		if state != device.Float16 && state != device.BFloat16 {
			panic(&device.DTypeError{Op: op + " with a master", Got: state, Want: device.BFloat16})
		}
		if u.Grad.DType != device.Float32 {
			checkType(op, *u.Grad, state)
		}
		state = device.Float32
		checkType(op, *u.Master, state)
		checkShape(op, u.Param.Shape, *u.Master)
	}
	checkShape(op, u.Param.Shape, *u.Grad)
	state = cmp.Or(u.Narrow, state)
	for _, t := range u.State {
		if t != nil {
			checkType(op, *t, state)
			checkShape(op, u.Param.Shape, *t)
		}
	}
	if !u.Skip.IsZero() {
		checkType(op, *u.Skip, device.Uint8)
	}
	if !u.Overflow.IsZero() {
		checkType(op, *u.Overflow, device.Uint8)
	}
	if !u.At.IsZero() {
		checkType(op, *u.At, device.Float64)
		checkShape(op, device.Shape{u.Varying}, *u.At)
	}
}

// PowerSum checks the operands of a PowerSum.
func PowerSum(dst device.Tensor, xs []device.Tensor) {
	clipped("PowerSum", dst, xs)
}

// ScaleToNorm checks the operands of a ScaleToNorm.
func ScaleToNorm(norm, total device.Tensor, xs []device.Tensor) {
	const op = "ScaleToNorm"
	wide.Float(op, norm)
	checkScalar(op, norm)
	clipped(op, total, xs)
}

// clipped checks the sum over arrays of any floating-point types.
func clipped(op string, sum device.Tensor, xs []device.Tensor) {
	checkType(op, sum, device.Float64)
	checkScalar(op, sum)
	for _, x := range xs {
		floats.Float(op, x)
	}
}

// Fill checks the operand of a Fill, which may be of any type.
func Fill(dst device.Tensor) {
	if !dst.DType.Valid() {
		panic(&device.DTypeError{Op: "Fill", Got: dst.DType, Want: device.Float32})
	}
}

// Copy checks the operands of a Copy, which may be of any types.
func Copy(dst, src device.Tensor) {
	switch {
	case !dst.DType.Valid():
		panic(&device.DTypeError{Op: "Copy", Got: dst.DType, Want: device.Float32})
	case !src.DType.Valid():
		panic(&device.DTypeError{Op: "Copy", Got: src.DType, Want: dst.DType})
	case dst.Len() != src.Len():
		panic(&device.ShapeError{Op: "Copy", A: dst.Shape, B: src.Shape})
	}
}

// NonFinite checks the operands of a NonFinite: x may be of any
// floating-point type.
func NonFinite(flag, x device.Tensor) {
	checkType("NonFinite", flag, device.Uint8)
	checkScalar("NonFinite", flag)
	if !x.DType.IsFloat() {
		panic(&device.DTypeError{Op: "NonFinite", Got: x.DType, Want: device.Float32})
	}
}

// Hash checks the operands of a Hash: x may be of any type.
func Hash(dst, x device.Tensor) {
	checkType("Hash", dst, device.Int64)
	checkScalar("Hash", dst)
	if !x.DType.Valid() {
		panic(&device.DTypeError{Op: "Hash", Got: x.DType, Want: dst.DType})
	}
}

// Quantize checks the operands of a Quantize or a Dequantize: the numbers, and the memory of the
// quantised blocks.
func Quantize(op string, numbers, blocks device.Tensor) {
	checkType(op, numbers, device.Float32)
	checkType(op, blocks, device.Uint8)
	if n := kernels.QuantizedLen(numbers.Len()); blocks.Len() != n {
		panic(&device.ShapeError{Op: op, A: blocks.Shape, B: device.Shape{n}})
	}
}

// Orthonormalize checks the operands of an Orthonormalize, x [r n].
func Orthonormalize(x, substitute device.Tensor) (r, n int) {
	const op = "Orthonormalize"
	wide.Same(op, x, substitute)
	r, n = matrix(op, x, false)
	if r > n {
		panic(&device.ShapeError{Op: op, A: x.Shape, B: device.Shape{n, n}})
	}
	return r, n
}

// Bytes checks that the source and the destination of a copy between host and device have the same
// size.
func Bytes(op string, dst, src int) {
	if dst != src {
		panic(fmt.Errorf("device: %s of %d bytes to a destination of %d bytes: want equal sizes", op, src, dst))
	}
}

func checkType(op string, t device.Tensor, want device.DType) {
	if t.DType != want {
		panic(&device.DTypeError{Op: op, Got: t.DType, Want: want})
	}
}

// checkShape checks that all tensors have the shape want.
func checkShape(op string, want device.Shape, ts ...device.Tensor) {
	for _, t := range ts {
		if !t.Shape.Equal(want) {
			panic(&device.ShapeError{Op: op, A: t.Shape, B: slices.Clone(want)}) // a clone, so that want can be on the stack
		}
	}
}

// Position checks the position of random numbers.
func Position(op string, at kernels.Position) {
	if !at.From.IsZero() {
		checkType(op, at.From, device.Int64)
		checkScalar(op, at.From)
	}
}

// checkScalar checks that t has one element.
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

// matrix returns the rows and columns of t, or of its transpose.
func matrix(op string, t device.Tensor, transpose bool) (rows, cols int) {
	if len(t.Shape) != 2 {
		panic(&device.ShapeError{Op: op, A: t.Shape, B: device.Shape{0, 0}})
	}
	if transpose {
		return t.Shape[1], t.Shape[0]
	}
	return t.Shape[0], t.Shape[1]
}
