package host

import (
	"unsafe"

	"gonum.org/v1/gonum/blas/gonum"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/kernels"
)

// cacheBlock is the number of bytes of each source that are reduced at a time. The partial result
// and one block of an operand fit in the L1 cache, so main memory is read once and written once for
// any number of ranks.
const cacheBlock = 8 << 10

// reduceScratch is the scratch memory of reductions. A group needs only one, because its
// collectives run one after the other. It is aligned for every element type.
type reduceScratch struct {
	acc     [cacheBlock / 8]int64
	operand [cacheBlock / 8]int64 // a block of 16-bit floats, widened to float32
}

// reduce combines srcs element by element, in their order, and stores the result in each of dsts.
// All have the same length, and a dst may be a src. Avg divides by n.
//
// Integers wrap around; their average is rounded towards zero. Min and Max of floats are NaN if any
// operand is NaN. The 16-bit floats are reduced in float32 and rounded once, to nearest even.
func (b *reduceScratch) reduce(dsts, srcs [][]byte, dt device.DType, op backend.ReduceOp, n int) {
	switch dt {
	case device.Float32:
		reduceNative(b, dsts, srcs, op, n, combineFloat32, scale[float32])
	case device.Float64:
		reduceNative(b, dsts, srcs, op, n, combineFloat64, scale[float64])
	case device.Int32:
		reduceNative(b, dsts, srcs, op, n, combine[int32], quotient[int32])
	case device.Int64:
		reduceNative(b, dsts, srcs, op, n, combine[int64], quotient[int64])
	case device.Uint8:
		reduceNative(b, dsts, srcs, op, n, combine[uint8], quotient[uint8])
	case device.BFloat16:
		b.reduceHalf(dsts, srcs, op, n, widenBF16, narrowBF16)
	case device.Float16:
		b.reduceHalf(dsts, srcs, op, n, widenF16, narrowF16)
	}
}

// partial returns the reduction that combines two operands of op. It is Sum for Avg, which divides at
// the end, and Sum for PreMulSum, whose operands are already multiplied. Otherwise it is op.
func partial(op backend.ReduceOp) backend.ReduceOp {
	if op == backend.Avg || op == backend.PreMulSum {
		return backend.Sum
	}
	return op
}

type native interface {
	float32 | float64 | int32 | int64 | uint8
}

// view returns memory as elements of type T. The memory must be aligned for T.
func view[T native | uint16](b []byte) []T {
	var t T
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/int(unsafe.Sizeof(t)))
}

// floats returns a block as float32s.
func floats(block *[cacheBlock / 8]int64) []float32 {
	return unsafe.Slice((*float32)(unsafe.Pointer(block)), cacheBlock/4)
}

// reduceNative reduces elements that are combined in their own type.
func reduceNative[T native](b *reduceScratch, dsts, srcs [][]byte, op backend.ReduceOp, n int, combine func(op backend.ReduceOp, acc, x []T), average func(acc []T, n int)) {
	block := unsafe.Slice((*byte)(unsafe.Pointer(&b.acc)), cacheBlock)
	for lo := 0; lo < len(srcs[0]); lo += cacheBlock {
		hi := min(lo+cacheBlock, len(srcs[0]))
		acc := block[:hi-lo]
		copy(acc, srcs[0][lo:hi])
		for _, src := range srcs[1:] {
			combine(partial(op), view[T](acc), view[T](src[lo:hi]))
		}
		if op == backend.Avg {
			average(view[T](acc), n)
		}
		for _, dst := range dsts {
			copy(dst[lo:hi], acc)
		}
	}
}

// combine computes acc = acc op x.
func combine[T native](op backend.ReduceOp, acc, x []T) {
	x = x[:len(acc)]
	switch op {
	case backend.Sum:
		for i := range acc {
			acc[i] += x[i]
		}
	case backend.Product:
		for i := range acc {
			acc[i] *= x[i]
		}
	case backend.Min:
		for i := range acc {
			acc[i] = min(acc[i], x[i])
		}
	case backend.Max:
		for i := range acc {
			acc[i] = max(acc[i], x[i])
		}
	}
}

// combineFloat32 is combine with a vectorized Sum, the reduction of gradients.
func combineFloat32(op backend.ReduceOp, acc, x []float32) {
	if op == backend.Sum {
		gonum.Implementation{}.Saxpy(len(acc), 1, x, 1, acc, 1)
		return
	}
	combine(op, acc, x)
}

// combineFloat64 is combine with a vectorized Sum.
func combineFloat64(op backend.ReduceOp, acc, x []float64) {
	if op == backend.Sum {
		gonum.Implementation{}.Daxpy(len(acc), 1, x, 1, acc, 1)
		return
	}
	combine(op, acc, x)
}

func scale[T float32 | float64](acc []T, n int) { multiply(acc, acc, 1/T(n)) }

// multiply computes dst = src * f.
func multiply[T float32 | float64](dst, src []T, f T) {
	src = src[:len(dst)]
	for i := range dst {
		dst[i] = src[i] * f
	}
}

func quotient[T int32 | int64 | uint8](acc []T, n int) {
	for i := range acc {
		acc[i] = T(int64(acc[i]) / int64(n))
	}
}

// multiply stores src times f in dst, which may be src. f and the products are rounded to the
// element type, to nearest even.
func (b *reduceScratch) multiply(dst, src []byte, dt device.DType, f float64) {
	switch dt {
	case device.Float32:
		multiply(view[float32](dst), view[float32](src), float32(f))
	case device.Float64:
		multiply(view[float64](dst), view[float64](src), f)
	case device.BFloat16:
		b.multiplyHalf(dst, src, kernels.FromBF16(kernels.BF16(float32(f))), widenBF16, narrowBF16)
	case device.Float16:
		b.multiplyHalf(dst, src, kernels.FromF16(kernels.F16(float32(f))), widenF16, narrowF16)
	}
}

// multiplyHalf multiplies 16-bit floats. The product of two of them is exact in float32.
func (b *reduceScratch) multiplyHalf(dst, src []byte, f float32, widen func(dst []float32, src []byte), narrow func(dst []byte, src []float32)) {
	for lo := 0; lo < len(src); lo += cacheBlock / 2 {
		hi := min(lo+cacheBlock/2, len(src))
		x := floats(&b.operand)[:(hi-lo)/2]
		widen(x, src[lo:hi])
		multiply(x, x, f)
		narrow(dst[lo:hi], x)
	}
}

// reduceHalf reduces 16-bit floats in float32.
func (b *reduceScratch) reduceHalf(dsts, srcs [][]byte, op backend.ReduceOp, n int, widen func(dst []float32, src []byte), narrow func(dst []byte, src []float32)) {
	for lo := 0; lo < len(srcs[0]); lo += cacheBlock / 2 {
		hi := min(lo+cacheBlock/2, len(srcs[0]))
		acc, x := floats(&b.acc)[:(hi-lo)/2], floats(&b.operand)[:(hi-lo)/2]
		widen(acc, srcs[0][lo:hi])
		for _, src := range srcs[1:] {
			widen(x, src[lo:hi])
			combineFloat32(partial(op), acc, x)
		}
		if op == backend.Avg {
			scale(acc, n)
		}
		narrow(dsts[0][lo:hi], acc)
		for _, dst := range dsts[1:] {
			copy(dst[lo:hi], dsts[0][lo:hi])
		}
	}
}

// Each conversion has a separate loop, so that the compiler can inline the function in it.

func widenBF16(dst []float32, src []byte) {
	for i, b := range view[uint16](src)[:len(dst)] {
		dst[i] = kernels.FromBF16(b)
	}
}

func narrowBF16(dst []byte, src []float32) {
	d := view[uint16](dst)[:len(src)]
	for i, f := range src {
		d[i] = kernels.BF16(f)
	}
}

func widenF16(dst []float32, src []byte) {
	for i, b := range view[uint16](src)[:len(dst)] {
		dst[i] = kernels.FromF16(b)
	}
}

func narrowF16(dst []byte, src []float32) {
	d := view[uint16](dst)[:len(src)]
	for i, f := range src {
		d[i] = kernels.F16(f)
	}
}
