package kernels

import "github.com/goddp/goddp/device"

// AvgPool are the parameters of AvgPool2d.
type AvgPool struct {
	Window // without dilation
	// ExcludePadding excludes padding from means; otherwise padding counts as zeros.
	ExcludePadding bool
	// Adaptive divides an image into as many regions as the result has elements, instead of using
	// a window: element i of m along an axis of n is the mean of the elements ⌊i·n/m⌋ to
	// ⌈(i+1)·n/m⌉-1.
	Adaptive bool
}

// Region returns which elements [from, to) are averaged for element i of the result, along an axis on which the
// image has n elements and the result has out elements. size is the divisor, which may include padding.
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

// Pooling contains the pooling kernels. x is [n c h w], results are [n c oh ow]. If the window has
// ChannelsLast, x is [n h w c], and results are [n oh ow c].
type Pooling interface {
	// MaxPool2d computes the largest element in each window, or NaN if the window contains one. index, of
	// Int32, is set to its position row·w + column, the first of equal elements. Padding is smaller than any
	// element. A window without elements gives -Inf and index -1.
	MaxPool2d(s device.Stream, dst, index, x device.Tensor, w Window) error
	// MaxPool2dGrad accumulates into dst [n c h w] the gradient of x of a MaxPool2d, given g, the
	// gradient of the result.
	MaxPool2dGrad(s device.Stream, dst device.Tensor, acc device.Accum, g, index device.Tensor, w Window) error
	// AvgPool2d computes means. The mean of a region without elements is 0.
	AvgPool2d(s device.Stream, dst, x device.Tensor, p AvgPool) error
	// AvgPool2dGrad accumulates into dst [n c h w] the gradient of x of an AvgPool2d, given g, the
	// gradient of the result.
	AvgPool2dGrad(s device.Stream, dst device.Tensor, acc device.Accum, g device.Tensor, p AvgPool) error
}
