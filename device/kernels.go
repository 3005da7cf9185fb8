package device

// Accum says how a kernel combines its result with dst: dst = Alpha·value + Beta·dst. With Beta 0,
// dst is never read.
type Accum struct{ Alpha, Beta float64 }

// Store overwrites dst with the value.
var Store = Accum{Alpha: 1}

// Accumulate combines v with an element of dst as acc says. Custom Go kernels call it.
func Accumulate[T float32 | float64](dst *T, acc Accum, v T) {
	v *= T(acc.Alpha)
	if acc.Beta != 0 {
		v += T(acc.Beta) * *dst
	}
	*dst = v
}

// Kernels are the operations for communication hooks, optimizers and differentiable operations
// outside this module. Each call enqueues work on a stream. An error means that the device failed.
// Mismatched operands panic with a [*ShapeError] or a [*DTypeError].
type Kernels interface {
	// Fill sets every element of dst, of any type, to v.
	Fill(s Stream, dst Tensor, v float64) error
	// Copy copies src to dst, which has the same number of elements, and converts between any two
	// types. A conversion to a float rounds to nearest, ties to even. A conversion from a float to
	// an integer rounds towards zero, saturates, and turns NaN into 0. A conversion between
	// integers wraps.
	Copy(s Stream, dst, src Tensor) error
	// Axpby computes dst = acc.Alpha·x + acc.Beta·dst; dst may be x. Every device
	// computes it in all floating-point types.
	Axpby(s Stream, dst Tensor, acc Accum, x Tensor) error
	// Launch runs a custom kernel: on the CPU its Go function, on a GPU its CUDA function over the
	// grid. args contains a [Tensor] for each slice parameter of the Go function, and a value of
	// exactly the parameter's type for each other parameter. Launch panics with a [*LaunchError] if
	// the grid or the arguments are invalid for the kernel, and with a [*DTypeError] if the kernel
	// does not support the tensors' floating-point type on this device. The error is a
	// [*CompileError] if the source does not compile.
	Launch(s Stream, k *Kernel, g Grid, args ...any) error
}
