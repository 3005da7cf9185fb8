package nn

import (
	"github.com/goddp/goddp/autograd"
)

// PoolOptions are the choices of [MaxPool2d], [AvgPool2d] and [AdaptiveAvgPool2d].
type PoolOptions struct {
	Stride  int // 0 means the kernel's size
	Padding int
	// Dilation is the distance between the elements of a window of MaxPool2d; 0 means 1.
	Dilation int
	// CeilMode adds a last window that extends beyond the padding.
	CeilMode bool
	// ExcludePadding makes AvgPool2d exclude padding from its means: PyTorch's count_include_pad=False.
	ExcludePadding bool
	// ChannelsLast makes images [n h w c] instead of [n c h w].
	ChannelsLast bool
}

// both returns the options for both axes of an image.
func (o *PoolOptions) both() *autograd.Pool2dOptions {
	if o == nil {
		return nil
	}
	return &autograd.Pool2dOptions{
		Stride: twice(o.Stride), Padding: twice(o.Padding), Dilation: twice(o.Dilation),
		Ceil: o.CeilMode, ExcludePadding: o.ExcludePadding, ChannelsLast: o.ChannelsLast,
	}
}

func twice(n int) [2]int { return [2]int{n, n} }

// MaxPool2d is a layer that computes the largest element of x [n c h w] in each window of
// kernel × kernel.
func MaxPool2d(kernel int, opts *PoolOptions) Module {
	return &maxPool{twice(kernel), opts.both()}
}

// maxPool is a separate type so that [Sequential] can apply it before a ReLU.
type maxPool struct {
	kernel [2]int
	opts   *autograd.Pool2dOptions
}

func (m *maxPool) Forward(x *autograd.Variable) *autograd.Variable {
	return autograd.MaxPool2d(x, m.kernel, m.opts)
}
func (m *maxPool) Parameters() []*Parameter { return nil }

// empty reports whether windows may lie in the padding. Their largest element is -Inf.
func (m *maxPool) empty() bool {
	return m.opts != nil && m.opts.Padding[0] > 0 && m.opts.Dilation[0] > 1
}

// AvgPool2d is a layer that computes the mean of x [n c h w] in each window of kernel × kernel.
func AvgPool2d(kernel int, opts *PoolOptions) Module {
	o := opts.both()
	return activation(func(x *autograd.Variable) *autograd.Variable { return autograd.AvgPool2d(x, twice(kernel), o) })
}

// AdaptiveAvgPool2d is a layer that computes the mean of x [n c ...] in each of h × w regions. The result
// is [n c h w]. Of the options only ChannelsLast has an effect.
func AdaptiveAvgPool2d(h, w int, opts *PoolOptions) Module {
	o := opts.both()
	return activation(func(x *autograd.Variable) *autograd.Variable { return autograd.AdaptiveAvgPool2d(x, h, w, o) })
}
