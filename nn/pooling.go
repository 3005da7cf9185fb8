package nn

import (
	"github.com/goddp/goddp/autograd"
)

// PoolOptions are the choices of [MaxPool2d] and [AvgPool2d]; the zero value is the good
// default.
type PoolOptions struct {
	Stride  int // 0: the kernel's size
	Padding int
	// Dilation is the distance between the elements of a window, of MaxPool2d alone; 0: 1.
	Dilation int
	// CeilMode has windows count that are partly beyond the padding.
	CeilMode bool
	// ExcludePadding has AvgPool2d count no padding: PyTorch's count_include_pad=False.
	ExcludePadding bool
}

func (o PoolOptions) both() *autograd.Pool2dOptions {
	return &autograd.Pool2dOptions{
		Stride: twice(o.Stride), Padding: twice(o.Padding), Dilation: twice(o.Dilation),
		Ceil: o.CeilMode, ExcludePadding: o.ExcludePadding,
	}
}

func twice(n int) [2]int { return [2]int{n, n} }

func poolOptions(opts []PoolOptions) (o PoolOptions) {
	if len(opts) > 0 {
		o = opts[0]
	}
	return o
}

// pool is a layer without parameters.
type pool func(x *autograd.Variable) *autograd.Variable

func (f pool) Forward(x *autograd.Variable) *autograd.Variable { return f(x) }
func (pool) Parameters() []*Parameter                          { return nil }

// MaxPool2d is a layer with the largest element of x [n c h w] in each window of kernel ×
// kernel. opts is nothing, or one.
func MaxPool2d(kernel int, opts ...PoolOptions) Module {
	o := poolOptions(opts).both()
	return pool(func(x *autograd.Variable) *autograd.Variable { return autograd.MaxPool2d(x, twice(kernel), o) })
}

// AvgPool2d is a layer with the mean of x [n c h w] in each window of kernel × kernel. opts
// is nothing, or one.
func AvgPool2d(kernel int, opts ...PoolOptions) Module {
	o := poolOptions(opts).both()
	return pool(func(x *autograd.Variable) *autograd.Variable { return autograd.AvgPool2d(x, twice(kernel), o) })
}

// AdaptiveAvgPool2d is a layer with the mean of x [n c ...] in each of h × w regions:
// [n c h w].
func AdaptiveAvgPool2d(h, w int) Module {
	return pool(func(x *autograd.Variable) *autograd.Variable { return autograd.AdaptiveAvgPool2d(x, h, w) })
}
