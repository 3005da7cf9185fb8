package kernels

import (
	"fmt"

	"github.com/goddp/goddp/device"
)

// Of returns the operations of a device. It panics if dev implements only [device.Kernels].
func Of(dev device.Device) Kernels {
	k, ok := dev.Kernels().(Kernels)
	if !ok {
		panic(fmt.Errorf("kernels: %v does not implement kernels.Kernels", dev))
	}
	return k
}

// Activation is a function that a fused Linear applies to its result.
type Activation uint8

// The fused activations.
const (
	NoActivation Activation = iota
	ActReLU
)

// Projection is a Linear of Linears, without its operand x [m k]: Dst [m n], W [n k], and Bias [n] or absent.
type Projection struct{ Dst, W, Bias device.Tensor }

// Kernels are the operations of a device. Each call enqueues work on a stream. Unless documented otherwise,
// operands must have the same floating-point type, dst must not overlap another operand, and NaN propagates,
// in both forward and backward kernels. Every implementation passes the conformance suite in
// internal/testkit/devicetest.
type Kernels interface {
	device.Kernels
	Softmax
	Dropout
	Attention
	Rearranging
	Selection
	Rotary
	RMSProp
	Normalization
	BatchNormalization
	Indexing
	Convolution
	Pooling
	Clipping
	FeedForward
	SwiGLU
	Decoding

	// Values returns the per-device state of other packages.
	Values() *Values

	// Uniform fills dst with numbers from [lo, hi). Element i depends only on (seed, offset+i), so each rank
	// can draw its part of one sequence. The package documentation defines the bits.
	Uniform(s device.Stream, dst device.Tensor, lo, hi float64, seed, offset uint64) error
	// Normal fills dst with normally distributed numbers (Box-Muller), indexed as for Uniform.
	Normal(s device.Stream, dst device.Tensor, mean, std float64, seed, offset uint64) error

	// Unary computes dst = op(x). dst may be x.
	Unary(s device.Stream, op UnaryOp, dst, x device.Tensor) error
	// UnaryGrad accumulates g·op'(x) into dst, given x and y = op(x). It reads only the operand
	// that op.Given returns; the other may be absent. dst may be g if acc.Beta is 0.
	UnaryGrad(s device.Stream, op UnaryOp, dst device.Tensor, acc device.Accum, g, x, y device.Tensor) error
	// ScaleBy accumulates factor·x into dst. factor is a scalar in device memory, of Float64 for operands
	// of Float64, else of Float32.
	ScaleBy(s device.Stream, dst device.Tensor, acc device.Accum, factor, x device.Tensor) error
	// Binary computes dst = x op y with x and y broadcast to dst's shape. dst may be an operand
	// that has its shape.
	Binary(s device.Stream, op BinaryOp, dst, x, y device.Tensor) error
	// Sum accumulates into dst the sum of src over the axes that dst lacks or has with size 1, aligned at
	// the last axis. It is the adjoint of broadcasting dst to src, and deterministic. The error is at most
	// 16 roundings of the sum of magnitudes, for any length.
	Sum(s device.Stream, dst device.Tensor, acc device.Accum, src device.Tensor) error

	// MatMul accumulates op(x)·op(y) into dst [... m n]. op(x) [... m k] is x, or its matrices
	// transposed if tx; op(y) [... k n] is y, or its matrices transposed if ty. Leading axes of x
	// and y are broadcast to dst's.
	MatMul(s device.Stream, dst device.Tensor, acc device.Accum, x device.Tensor, tx bool, y device.Tensor, ty bool) error
	// Linear computes dst = act(x·wᵀ + bias) for x [m k], w [n k], bias [n] or absent, and
	// dst [m n].
	Linear(s device.Stream, dst, x, w, bias device.Tensor, act Activation) error
	// Linears computes several Linears of x [m k] without activation.
	Linears(s device.Stream, x device.Tensor, of []Projection) error
	// LinearGrad accumulates the gradients of the parameters of a Linear without activation, given
	// x [m k] and g [m n], the gradient of the result: gᵀ·x into dw [n k], and the sum of g's rows
	// into db [n]. The error of db is at most that of a product with a column of ones.
	LinearGrad(s device.Stream, dw device.Tensor, accW device.Accum, db device.Tensor, accB device.Accum, g, x device.Tensor) error
	// PrepareLinearGrad loads and chooses the kernels for the gradients of a Linear with result y: a MatMul
	// with w for the gradient of x, and a LinearGrad, or a MatMul if there is no bias. Without this call, a
	// device may load kernels at their first use and wait until it is idle, which would stall collectives
	// that overlap a backward pass. PrepareLinearGrad writes nothing.
	PrepareLinearGrad(s device.Stream, y, x, w, bias device.Tensor) error

	// MSE computes the scalar dst = mean((x-y)²). Without elements, dst is NaN.
	MSE(s device.Stream, dst, x, y device.Tensor) error
	// MSEGrad accumulates g·2(x-y)/n into dst, with g a scalar in device memory. This is the
	// gradient of x; with -Alpha it is the gradient of y.
	MSEGrad(s device.Stream, dst device.Tensor, acc device.Accum, g, x, y device.Tensor) error
	// CrossEntropy computes the scalar loss, the mean over rows of -log(softmax(logits)[label]), of Float64
	// for logits of Float64, else of Float32. sums [2 m], of Float64, receives the loss of each row, and
	// then log Σ exp(logits) of each row. A loss near 0 is accurate. logits are [m n], labels are Int64 [m]
	// within [0, n). If the host can read the labels, a label out of range panics with a
	// [*device.IndexError]; else its row's loss and gradient are NaN.
	CrossEntropy(s device.Stream, loss, sums, logits, labels device.Tensor) error
	// CrossEntropyGrad accumulates g·(softmax(logits) - onehot(labels))/m into dst [m n], of the type of
	// logits. g is a scalar in device memory, of the type of loss. sums is the result of CrossEntropy. At
	// the label, the difference is computed as e^-loss - 1, which is accurate near 0.
	CrossEntropyGrad(s device.Stream, dst device.Tensor, acc device.Accum, g, sums, logits, labels device.Tensor) error

	// CrossEntropyInPlace computes losses [m], the loss of each row of logits, and overwrites logits by
	// softmax(logits) - onehot(labels), the gradient of the sum of these losses. losses has the type of
	// CrossEntropy's loss. Labels are as for CrossEntropy, except that a row with the label [NoLabel] has the
	// loss 0 and the gradient 0.
	CrossEntropyInPlace(s device.Stream, losses, logits, labels device.Tensor) error

	// SGD performs steps of stochastic gradient descent in place, each on a different parameter: see
	// [SGDStep]. Consecutive steps that differ only in their tensors are fused into one kernel.
	SGD(s device.Stream, steps ...SGDStep) error
	// AdamW is like SGD, for steps of Adam or AdamW: see [AdamWStep].
	AdamW(s device.Stream, steps ...AdamWStep) error

	// NonFinite sets flag, a scalar of Uint8, to 1 if an element of x is NaN or infinite, and otherwise does
	// not write it. So several arrays can share a flag, and neighbouring flags can be cleared by one Fill
	// and read by one copy. x is of any floating-point type.
	NonFinite(s device.Stream, flag, x device.Tensor) error
	// Hash adds the hash of x's bytes to dst, a scalar of Int64, and wraps. x is of any type. Equal
	// bytes have equal hashes on every device: see the package documentation. Neighbouring hashes
	// can be cleared by one Fill.
	Hash(s device.Stream, dst, x device.Tensor) error

	// Quantize writes x, of Float32, to dst as blocks of 8-bit numbers: see the package
	// documentation. dst is Uint8 [QuantizedLen(n)] for n numbers, aligned to 4 bytes.
	Quantize(s device.Stream, dst, x device.Tensor) error
	// Dequantize accumulates into dst, of Float32, the numbers that Quantize wrote to x.
	Dequantize(s device.Stream, dst device.Tensor, acc device.Accum, x device.Tensor) error
	// Orthonormalize makes the rows of x [r n] orthonormal, where r is at most n, in Float32 or Float64.
	// From each row it subtracts its projections on the rows before it, twice, because roundings leave a
	// remainder the first time (modified Gram-Schmidt), and divides the row by its norm. It replaces a row
	// that is not finite, or whose norm shrinks below 2^-14 of its original norm, by the same row of
	// substitute [r n], or by zeros if that row fails the same test.
	Orthonormalize(s device.Stream, x, substitute device.Tensor) error
}
