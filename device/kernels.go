package device

// Accum says how a kernel's value meets what dst already holds:
// dst = Alpha·value + Beta·dst. With Beta 0, dst is never read.
type Accum struct{ Alpha, Beta float64 }

// Store overwrites dst with the value.
var Store = Accum{Alpha: 1}

// BinaryOp is an elementwise function of two operands.
type BinaryOp uint8

// The elementwise functions of two operands.
const (
	Add BinaryOp = iota
	Sub
	Mul
	Div
)

func (o BinaryOp) String() string { return [...]string{"Add", "Sub", "Mul", "Div"}[o] }

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
	Softmax
	Dropout
	Custom
	Attention
	Rearranging
	Selection
	Rotary
	RMSProp
	Normalization
	Indexing
	Convolution
	Pooling

	// Fill sets every element of dst, of any type, to v.
	Fill(s Stream, dst Tensor, v float64) error
	// Copy copies src to dst, of as many elements, converting between any
	// two types: to a float, to nearest, ties to even; from a float to an
	// integer, towards zero, saturating, NaN to 0; between integers, wrapping.
	Copy(s Stream, dst, src Tensor) error
	// Uniform fills dst with numbers from [lo, hi): element i is a function
	// of (seed, offset+i) alone, so that ranks can each draw their part of
	// one sequence. The package documentation defines it to the bit.
	Uniform(s Stream, dst Tensor, lo, hi float64, seed, offset uint64) error
	// Normal is Uniform's peer for the normal distribution (Box-Muller).
	Normal(s Stream, dst Tensor, mean, std float64, seed, offset uint64) error

	// Axpby computes dst = acc.Alpha·x + acc.Beta·dst; dst may be x. Every
	// device makes it in all floating-point types.
	Axpby(s Stream, dst Tensor, acc Accum, x Tensor) error
	// Unary computes dst = op(x); dst may be x.
	Unary(s Stream, op UnaryOp, dst, x Tensor) error
	// UnaryGrad accumulates g·op'(x) into dst, given x and y = op(x). It reads
	// the one of them that op.Given says, and the others need not be there. dst
	// may be g when acc.Beta is 0.
	UnaryGrad(s Stream, op UnaryOp, dst Tensor, acc Accum, g, x, y Tensor) error
	// Binary computes dst = x op y with x and y broadcast to dst's shape.
	// dst may be an operand of its own shape.
	Binary(s Stream, op BinaryOp, dst, x, y Tensor) error
	// Sum accumulates into dst the sum of src over the axes that dst lacks
	// or has with size 1, aligned at the last axis: the adjoint of
	// broadcasting dst to src. Equal inputs give bitwise equal results, with
	// an error of at most 16 roundings of the sum of magnitudes at any length.
	Sum(s Stream, dst Tensor, acc Accum, src Tensor) error

	// MatMul accumulates op(x)·op(y) into dst [... m n], where op(x) is x, or
	// with tx its matrices transposed: [... m k], and op(y) likewise [... k n].
	// Leading axes of x and y are broadcast to dst's.
	MatMul(s Stream, dst Tensor, acc Accum, x Tensor, tx bool, y Tensor, ty bool) error
	// Linear computes dst = act(x·wᵀ + bias): x [m k], w [n k], bias [n] or
	// not there, dst [m n].
	Linear(s Stream, dst, x, w, bias Tensor, act Activation) error
	// LinearGrad accumulates the gradients for the parameters of a Linear
	// without activation, given g [m n], that for its result, and x [m k]:
	// gᵀ·x into dw [n k], and the sum of g's rows into db [n], whose error is
	// at most that of the product with a column of ones.
	LinearGrad(s Stream, dw Tensor, accW Accum, db Tensor, accB Accum, g, x Tensor) error
	// PrepareLinearGrad loads and chooses, where a device does that at first
	// use, what will compute the gradients of the Linear that gave y: a MatMul
	// with w for x, and a LinearGrad, or a MatMul without bias. Loading can
	// wait for the whole device, and in a backward pass collectives run
	// beside the kernels. Nothing is written.
	PrepareLinearGrad(s Stream, y, x, w, bias Tensor) error

	// MSE computes dst, a scalar, = mean((x-y)²); NaN of nothing.
	MSE(s Stream, dst, x, y Tensor) error
	// MSEGrad accumulates g·2(x-y)/n into dst, g a scalar in device memory:
	// the gradient for x, and with -Alpha for y.
	MSEGrad(s Stream, dst Tensor, acc Accum, g, x, y Tensor) error
	// CrossEntropy computes loss, a scalar, = mean over rows of
	// -log(softmax(logits)[label]), and the probabilities: logits and probs
	// [m n], labels Int64 [m] within [0, n): else, where the host can tell, a
	// panic with a [*LabelError].
	CrossEntropy(s Stream, loss, probs, logits, labels Tensor) error
	// CrossEntropyGrad accumulates g·(probs - onehot(labels))/m into dst
	// [m n], g a scalar in device memory.
	CrossEntropyGrad(s Stream, dst Tensor, acc Accum, g, probs, labels Tensor) error

	// SGD makes one step of stochastic gradient descent in place, by the
	// rule of PyTorch's optimizer: see [SGDStep].
	SGD(s Stream, p SGDStep) error
	// AdamW makes one step of Adam in place, by the rule of PyTorch's
	// optimizers: see [AdamWStep].
	AdamW(s Stream, p AdamWStep) error

	// NonFinite sets flag, a scalar of Uint8, to 1 if an element of x is NaN
	// or infinite, and else leaves it alone: any number of arrays can share
	// one flag, or have neighbouring ones that are cleared by one Fill and
	// read by one copy. x is of any floating-point type.
	NonFinite(s Stream, flag, x Tensor) error
	// Hash adds the hash of x's bytes to dst, a scalar of Int64, wrapping; x is
	// of any type. Equal bytes have equal hashes on every device: the package
	// documentation defines them. What dst held comes on top, so that the
	// hashes of many arrays can go to neighbours that are cleared by one Fill.
	Hash(s Stream, dst, x Tensor) error

	// Quantize writes x, of Float32, to dst as blocks of 8-bit numbers: Uint8
	// [QuantizedLen(n)] for n numbers, from a multiple of 4 bytes on. The
	// package documentation defines them to the bit.
	Quantize(s Stream, dst, x Tensor) error
	// Dequantize accumulates into dst, of Float32, the numbers that Quantize
	// wrote to x.
	Dequantize(s Stream, dst Tensor, acc Accum, x Tensor) error
	// Orthonormalize makes the rows of x [r n], r at most n, orthonormal, of
	// Float32 or Float64. From each it takes what those before it span, twice,
	// as roundings leave some the first time (modified Gram-Schmidt), and
	// divides what is left by its norm. A row of which less than 2^-14 is left,
	// or that is not finite, gives way to the same row of spare [r n], and where
	// that is no better to zeros.
	Orthonormalize(s Stream, x, spare Tensor) error
}

// SGDStep is one step of stochastic gradient descent on one parameter:
//
//	d = Grad/LossScale + WeightDecay·Param
//	Momentum != 0:  v = d on the first step, else Momentum·v + (1-Dampening)·d
//	                d = Nesterov ? d + Momentum·v : v
//	Param -= LR·d
//
// It is the update rule of torch.optim.SGD. Every device makes it in all
// floating-point types; Param, Grad and Velocity are of one.
//
// A Master is what a Param of a 16-bit type is the rounding of: the rule is
// applied to the Master, in Float32, and Param then becomes what rounds it. Small
// steps add up there that each alone would be lost in Param. Velocity is Float32
// then too, and Grad of Param's type or Float32.
//
// Where any byte of Skip or of Overflow is not zero nothing is written: a
// gradient that some rank could not make, or that is not finite, must not be
// applied, and the host need not wait to know.
type SGDStep struct {
	Param, Grad, Velocity   Tensor // Velocity is not there without momentum
	Master                  Tensor // Float32, or not there
	LR, Momentum, Dampening float64
	WeightDecay             float64
	LossScale               float64 // what the loss was multiplied by; 0: nothing
	Nesterov, First         bool
	Skip, Overflow          Tensor // bytes, Uint8, or not there
}

// Unscale is what LossScale has Grad multiplied by.
func (p *SGDStep) Unscale() float64 {
	if p.LossScale == 0 {
		return 1
	}
	return 1 / p.LossScale
}
