package autograd

import "github.com/goddp/goddp/device"

// MaxPool2d is the largest element of x [n c h w] in each window, the first of several. It
// panics with a [*device.ShapeError] where the window does not fit, or its padding is more
// than half of it.
func MaxPool2d(x *Variable, w device.Window) *Variable { return Apply(&maxPool{w: w}, x) }

type maxPool struct {
	w     device.Window
	index device.Tensor // where the largest elements are
}

func (*maxPool) Name() string { return "MaxPool2d" }

func (f *maxPool) Shape(in []device.Shape) device.Shape { return pooled("MaxPool2d", in[0], f.w) }

// pooled is the shape of what a window gives over x.
func pooled(op string, x device.Shape, w device.Window) device.Shape {
	fits := len(x) == 4 && w.Valid()
	var out device.Shape
	if fits {
		out = device.Shape{x[0], x[1], w.Out(0, x[2]), w.Out(1, x[3])}
		fits = out[2] > 0 && out[3] > 0 && 2*w.Padding[0] <= w.Kernel[0] && 2*w.Padding[1] <= w.Kernel[1]
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
	return c.Kernels.MaxPool2d(c.Stream, c.Out, f.index, c.In[0], f.w)
}

func (f *maxPool) Backward(c *Call, _ int, dst device.Tensor, acc device.Accum, g device.Tensor) error {
	return c.Kernels.MaxPool2dGrad(c.Stream, dst, acc, g, f.index, f.w)
}

// AvgPool2d is the mean of x [n c h w] in each window. It panics as MaxPool2d does.
func AvgPool2d(x *Variable, p device.AvgPool) *Variable { return Apply(&avgPool{p: p}, x) }

// AdaptiveAvgPool2d is the mean of x [n c h w] in each of h × w regions: [n c h w].
func AdaptiveAvgPool2d(x *Variable, h, w int) *Variable {
	return Apply(&avgPool{p: device.AvgPool{Adaptive: true}, h: h, w: w}, x)
}

type avgPool struct {
	p    device.AvgPool
	h, w int // of Adaptive
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
	if len(x) != 4 || x[2] < 1 || x[3] < 1 || f.h < 0 || f.w < 0 {
		panic(&device.ShapeError{Op: f.Name(), A: x, B: device.Shape{f.h, f.w}})
	}
	return device.Shape{x[0], x[1], f.h, f.w}
}

func (*avgPool) Saves(_, _ int) bool { return false }

func (f *avgPool) Forward(c *Call) error {
	return c.Kernels.AvgPool2d(c.Stream, c.Out, c.In[0], f.p)
}

func (f *avgPool) Backward(c *Call, _ int, dst device.Tensor, acc device.Accum, g device.Tensor) error {
	return c.Kernels.AvgPool2dGrad(c.Stream, dst, acc, g, f.p)
}
