package kernels

import (
	"fmt"

	"github.com/goddp/goddp/device"
)

// Of returns the operations of a device. It panics if dev implements [device.Kernels] alone.
func Of(dev device.Device) Kernels {
	k, ok := dev.Kernels().(Kernels)
	if !ok {
		panic(fmt.Errorf("kernels: %v has none of the operations of this module", dev))
	}
	return k
}

// Activation is what a fused Linear applies to its result.
type Activation uint8

// The fused activations.
const (
	NoActivation Activation = iota
	ActReLU
)

// Kernels is the one set of operations, enqueued on a stream. Operands are of
// the same floating-point type unless said otherwise, and dst overlaps no
// other operand unless said otherwise. A NaN passes: what an operation
// computes from a NaN is NaN, forwards and backwards, unless said otherwise.
// Every implementation passes the conformance suite in internal/devicetest.
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
	Indexing
	Convolution
	Pooling

	// Values returns the per-device state of the packages above.
	Values() *Values

	// Uniform fills dst with numbers from [lo, hi): element i is a function
	// of (seed, offset+i) alone, so that ranks can each draw their part of
	// one sequence. The package documentation defines it to the bit.
	Uniform(s device.Stream, dst device.Tensor, lo, hi float64, seed, offset uint64) error
	// Normal is Uniform's peer for the normal distribution (Box-Muller).
	Normal(s device.Stream, dst device.Tensor, mean, std float64, seed, offset uint64) error

	// Unary computes dst = op(x); dst may be x.
	Unary(s device.Stream, op UnaryOp, dst, x device.Tensor) error
	// UnaryGrad accumulates g·op'(x) into dst, given x and y = op(x). It reads
	// the one of them that op.Given says, and the others need not be there. dst
	// may be g when acc.Beta is 0.
	UnaryGrad(s device.Stream, op UnaryOp, dst device.Tensor, acc device.Accum, g, x, y device.Tensor) error
	// Binary computes dst = x op y with x and y broadcast to dst's shape.
	// dst may be an operand of its own shape.
	Binary(s device.Stream, op BinaryOp, dst, x, y device.Tensor) error
	// Sum accumulates into dst the sum of src over the axes that dst lacks
	// or has with size 1, aligned at the last axis: the adjoint of
	// broadcasting dst to src. Equal inputs give bitwise equal results, with
	// an error of at most 16 roundings of the sum of magnitudes at any length.
	Sum(s device.Stream, dst device.Tensor, acc device.Accum, src device.Tensor) error

	// MatMul accumulates op(x)·op(y) into dst [... m n], where op(x) is x, or
	// with tx its matrices transposed: [... m k], and op(y) likewise [... k n].
	// Leading axes of x and y are broadcast to dst's.
	MatMul(s device.Stream, dst device.Tensor, acc device.Accum, x device.Tensor, tx bool, y device.Tensor, ty bool) error
	// Linear computes dst = act(x·wᵀ + bias): x [m k], w [n k], bias [n] or
	// not there, dst [m n].
	Linear(s device.Stream, dst, x, w, bias device.Tensor, act Activation) error
	// LinearGrad accumulates the gradients for the parameters of a Linear
	// without activation, given g [m n], that for its result, and x [m k]:
	// gᵀ·x into dw [n k], and the sum of g's rows into db [n], whose error is
	// at most that of the product with a column of ones.
	LinearGrad(s device.Stream, dw device.Tensor, accW device.Accum, db device.Tensor, accB device.Accum, g, x device.Tensor) error
	// PrepareLinearGrad loads and chooses, where a device does that at first
	// use, what will compute the gradients of the Linear that gave y: a MatMul
	// with w for x, and a LinearGrad, or a MatMul without bias. Loading can
	// wait for the whole device, and in a backward pass collectives run
	// beside the kernels. Nothing is written.
	PrepareLinearGrad(s device.Stream, y, x, w, bias device.Tensor) error

	// MSE computes dst, a scalar, = mean((x-y)²); NaN of nothing.
	MSE(s device.Stream, dst, x, y device.Tensor) error
	// MSEGrad accumulates g·2(x-y)/n into dst, g a scalar in device memory:
	// the gradient for x, and with -Alpha for y.
	MSEGrad(s device.Stream, dst device.Tensor, acc device.Accum, g, x, y device.Tensor) error
	// CrossEntropy computes loss, a scalar, = mean over rows of
	// -log(softmax(logits)[label]), and the probabilities: logits and probs
	// [m n], labels Int64 [m] within [0, n): else, where the host can tell, a
	// panic with a [*device.IndexError].
	CrossEntropy(s device.Stream, loss, probs, logits, labels device.Tensor) error
	// CrossEntropyGrad accumulates g·(probs - onehot(labels))/m into dst
	// [m n], g a scalar in device memory.
	CrossEntropyGrad(s device.Stream, dst device.Tensor, acc device.Accum, g, probs, labels device.Tensor) error

	// SGD makes one step of stochastic gradient descent in place, by the
	// rule of PyTorch's optimizer: see [SGDStep].
	SGD(s device.Stream, p SGDStep) error
	// AdamW makes one step of Adam in place, by the rule of PyTorch's
	// optimizers: see [AdamWStep].
	AdamW(s device.Stream, p AdamWStep) error

	// NonFinite sets flag, a scalar of Uint8, to 1 if an element of x is NaN
	// or infinite, and else leaves it alone: any number of arrays can share
	// one flag, or have neighbouring ones that are cleared by one Fill and
	// read by one copy. x is of any floating-point type.
	NonFinite(s device.Stream, flag, x device.Tensor) error
	// Hash adds the hash of x's bytes to dst, a scalar of Int64, wrapping; x is
	// of any type. Equal bytes have equal hashes on every device: the package
	// documentation defines them. What dst held comes on top, so that the
	// hashes of many arrays can go to neighbours that are cleared by one Fill.
	Hash(s device.Stream, dst, x device.Tensor) error

	// Quantize writes x, of Float32, to dst as blocks of 8-bit numbers: Uint8
	// [QuantizedLen(n)] for n numbers, from a multiple of 4 bytes on. The
	// package documentation defines them to the bit.
	Quantize(s device.Stream, dst, x device.Tensor) error
	// Dequantize accumulates into dst, of Float32, the numbers that Quantize
	// wrote to x.
	Dequantize(s device.Stream, dst device.Tensor, acc device.Accum, x device.Tensor) error
	// Orthonormalize makes the rows of x [r n], r at most n, orthonormal, of
	// Float32 or Float64. From each it takes what those before it span, twice,
	// as roundings leave some the first time (modified Gram-Schmidt), and
	// divides what is left by its norm. A row of which less than 2^-14 is left,
	// or that is not finite, gives way to the same row of spare [r n], and where
	// that is no better to zeros.
	Orthonormalize(s device.Stream, x, substitute device.Tensor) error
}
