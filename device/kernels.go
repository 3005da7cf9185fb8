package device

// Accum says how a kernel combines its value with what dst holds:
// dst = Alpha·value + Beta·dst. With Beta 0, dst is never read.
type Accum struct{ Alpha, Beta float64 }

// Store overwrites dst with the value.
var Store = Accum{Alpha: 1}

// Accumulate writes the value v into one element of dst by acc. A program's own Go
// kernels call it.
func Accumulate[T float32 | float64](dst *T, acc Accum, v T) {
	v *= T(acc.Alpha)
	if acc.Beta != 0 {
		v += T(acc.Beta) * *dst
	}
	*dst = v
}

// Kernels are the operations that communication hooks, optimizers and differentiable
// operations outside this module build on. Each call enqueues work on a stream.
// An error means that the device failed, not that operands do not fit: operands that do
// not fit are a panic with a [*ShapeError] or a [*DTypeError].
type Kernels interface {
	// Fill sets every element of dst, of any type, to v.
	Fill(s Stream, dst Tensor, v float64) error
	// Copy copies src to dst, which has as many elements, and converts between any two
	// types. A conversion to a float rounds to nearest, ties to even. A conversion from
	// a float to an integer rounds towards zero, saturates, and turns NaN into 0. A
	// conversion between integers wraps.
	Copy(s Stream, dst, src Tensor) error
	// Axpby computes dst = acc.Alpha·x + acc.Beta·dst; dst may be x. Every device
	// computes it in all floating-point types.
	Axpby(s Stream, dst Tensor, acc Accum, x Tensor) error
	// Launch runs a kernel of the program's own: on the CPU its Go function, on a GPU
	// its CUDA function over the grid. args holds a [Tensor] for each slice of the Go
	// function, and for each other parameter a value of exactly its type. Launch panics
	// with a [*LaunchError] if grid or arguments do not fit the kernel, and with a
	// [*DTypeError] if the device has no version of the kernel for the tensors'
	// floating-point type. The error is a [*CompileError] if the source does not compile.
	Launch(s Stream, k *Kernel, g Grid, args ...any) error
}
