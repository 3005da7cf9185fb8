package kernels

import "github.com/goddp/goddp/device"

// AvgPool says what AvgPool2d takes the mean over.
type AvgPool struct {
	Window // without dilation
	// ExcludePadding has means be those of elements alone; else padding counts as zeros.
	ExcludePadding bool
	// Adaptive cuts an image into as many regions as the result has elements, in place of a
	// window: element i of m along an axis of n is the mean of those from ⌊i·n/m⌋ to
	// ⌈(i+1)·n/m⌉.
	Adaptive bool
}

// Region is what element i of out along an axis of n elements is the mean of: those in
// [from, to), of which there are size with the padding that counts.
func (p AvgPool) Region(axis, i, n, out int) (from, to, size int) {
	if p.Adaptive {
		from, to = i*n/out, ((i+1)*n+out-1)/out
		return from, to, to - from
	}
	begin := i*p.Stride[axis] - p.Padding[axis]
	end := min(begin+p.Kernel[axis], n+p.Padding[axis])
	from, to = max(begin, 0), min(end, n)
	if p.ExcludePadding {
		return from, to, to - from
	}
	return from, to, end - begin
}

// Pooling are the kernels that make images smaller. x is [n c h w], results [n c oh ow].
type Pooling interface {
	// MaxPool2d computes the largest element in each window, the first of several, and NaN
	// where there is one. index, of Int32, becomes where it is: row·w + column. Padding is
	// smaller than any element: a window without one gives -Inf, and index -1.
	MaxPool2d(s device.Stream, dst, index, x device.Tensor, w Window) error
	// MaxPool2dGrad accumulates into dst [n c h w] the gradient for x of a MaxPool2d, given
	// g, that for its result.
	MaxPool2dGrad(s device.Stream, dst device.Tensor, acc device.Accum, g, index device.Tensor, w Window) error
	// AvgPool2d computes means; that of a region without an element is 0.
	AvgPool2d(s device.Stream, dst, x device.Tensor, p AvgPool) error
	// AvgPool2dGrad accumulates into dst [n c h w] the gradient for x of an AvgPool2d, given
	// g, that for its result.
	AvgPool2dGrad(s device.Stream, dst device.Tensor, acc device.Accum, g device.Tensor, p AvgPool) error
}
