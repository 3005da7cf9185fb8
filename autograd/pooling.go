package autograd

import (
	"cmp"
	"slices"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

// Pool2dOptions are the choices of [MaxPool2d], [AvgPool2d] and [AdaptiveAvgPool2d]. Each pair has one value for the
// first axis of an image and one for the second.
type Pool2dOptions struct {
	Stride   [2]int // 0: the size of the window
	Padding  [2]int // at most half the size of the window
	Dilation [2]int // the distance between the elements of a window of MaxPool2d; 0 means 1
	// Ceil adds a last window that reaches beyond the padding: PyTorch's ceil_mode.
	Ceil bool
	// ExcludePadding makes AvgPool2d leave padding out of its means: PyTorch's
	// count_include_pad=False.
	ExcludePadding bool
	// ChannelsLast makes images [n h w c] instead of [n c h w].
	ChannelsLast bool
}

// window returns the window of the given size. A nil o is the zero value.
func (o *Pool2dOptions) window(size [2]int) kernels.AvgPool {
	if o == nil {
		o = &Pool2dOptions{}
	}
	stride := [2]int{cmp.Or(o.Stride[0], size[0]), cmp.Or(o.Stride[1], size[1])}
	w := kernels.Window{Kernel: size, Stride: stride, Padding: o.Padding, Dilation: orOne(o.Dilation), Ceil: o.Ceil, ChannelsLast: o.ChannelsLast}
	return kernels.AvgPool{Window: w, ExcludePadding: o.ExcludePadding}
}

// MaxPool2d computes the largest element of x [n c h w] in each window of the given size;
// the gradient goes to the first of several largest elements. MaxPool2d panics with a
// [*device.ShapeError] if the window does not fit or its padding is more than half of its size.
func MaxPool2d(x *Variable, size [2]int, opts *Pool2dOptions) *Variable {
	return Apply(&maxPool{w: opts.window(size).Window}, x)
}

type maxPool struct {
	w     kernels.Window
	index device.Tensor // the positions of the largest elements
}

func (*maxPool) Name() string { return "MaxPool2d" }

func (f *maxPool) Shape(in []device.Shape) device.Shape { return pooled("MaxPool2d", in[0], f.w) }

// pooled returns the shape of the result of a window over x.
func pooled(op string, x device.Shape, w kernels.Window) device.Shape {
	fits := len(x) == 4 && w.Valid()
	var out device.Shape
	if fits {
		_, rows, cols := kernels.ImageAxes(w.ChannelsLast)
		out = slices.Clone(x)
		out[rows], out[cols] = w.Out(0, x[rows]), w.Out(1, x[cols])
		fits = out[rows] > 0 && out[cols] > 0 && 2*w.Padding[0] <= w.Kernel[0] && 2*w.Padding[1] <= w.Kernel[1]
	}
	if !fits {
		panic(&device.ShapeError{Op: op, A: x, B: w.Kernel[:]})
	}
	return out
}

func (*maxPool) Saves(_, _ int) bool { return false }

func (f *maxPool) Forward(c *Call) (err error) {
	if f.index, err = c.New(device.Int32, c.Out.Shape...); err != nil {
		return err
	}
	return c.kernels.MaxPool2d(c.Stream, c.Out, f.index, c.In[0], f.w)
}

func (f *maxPool) Backward(c *Call, _ int, dst device.Tensor, acc device.Accum, g device.Tensor) error {
	return c.kernels.MaxPool2dGrad(c.Stream, dst, acc, g, f.index, f.w)
}

// AvgPool2d computes the mean of x [n c h w] in each window of the given size. It panics as
// MaxPool2d does.
func AvgPool2d(x *Variable, size [2]int, opts *Pool2dOptions) *Variable {
	p := opts.window(size)
	p.Dilation = [2]int{1, 1}
	return Apply(&avgPool{p: p}, x)
}

// AdaptiveAvgPool2d computes the mean of x [n c ...] in each of h × w regions. The result is [n c h w]. opts may
// be nil; only ChannelsLast has an effect.
func AdaptiveAvgPool2d(x *Variable, h, w int, opts *Pool2dOptions) *Variable {
	p := kernels.AvgPool{Adaptive: true}
	p.ChannelsLast = opts != nil && opts.ChannelsLast
	return Apply(&avgPool{p: p, h: h, w: w}, x)
}

type avgPool struct {
	p    kernels.AvgPool
	h, w int // the result's size, if p.Adaptive
}

func (f *avgPool) Name() string {
	if f.p.Adaptive {
		return "AdaptiveAvgPool2d"
	}
	return "AvgPool2d"
}

func (f *avgPool) Shape(in []device.Shape) device.Shape {
	x := in[0]
	if !f.p.Adaptive {
		return pooled(f.Name(), x, f.p.Window)
	}
	_, rows, cols := kernels.ImageAxes(f.p.ChannelsLast)
	if len(x) != 4 || x[rows] < 1 || x[cols] < 1 || f.h < 0 || f.w < 0 {
		panic(&device.ShapeError{Op: f.Name(), A: x, B: device.Shape{f.h, f.w}})
	}
	out := slices.Clone(x)
	out[rows], out[cols] = f.h, f.w
	return out
}

func (*avgPool) Saves(_, _ int) bool { return false }

func (f *avgPool) Forward(c *Call) error {
	return c.kernels.AvgPool2d(c.Stream, c.Out, c.In[0], f.p)
}

func (f *avgPool) Backward(c *Call, _ int, dst device.Tensor, acc device.Accum, g device.Tensor) error {
	return c.kernels.AvgPool2dGrad(c.Stream, dst, acc, g, f.p)
}
