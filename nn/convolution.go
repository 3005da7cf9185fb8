package nn

import (
	"cmp"
	"math"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
)

// ConvOptions are the choices of [Conv2d].
type ConvOptions struct {
	Stride, Padding, Dilation int // 0 means 1 for the stride and the dilation
	// Groups is the number of groups of channels. An output channel depends only on the input channels of
	// its group. 0 means 1.
	Groups int
	// Height sets the kernel's size, stride, padding and dilation along the first axis of images
	// if they differ from those along the second axis.
	Height *ConvHeight
	// NoBias omits the bias.
	NoBias bool
	// ChannelsLast makes images [n h w in] and [n oh ow out], which is faster on the CPU, and on GPUs in 16-bit types. The
	// parameters keep their shapes.
	ChannelsLast bool
	// DType is the type of the parameters; Invalid means Float32.
	DType device.DType
	// Compute is the type of the products and of the result: see [LinearOptions]. Invalid means
	// the parameters' type.
	Compute device.DType
}

// ConvHeight configures a [Conv2d] along the first axis of images.
type ConvHeight struct{ Kernel, Stride, Padding, Dilation int }

// ConvLayer is a convolution: see [Conv2d].
type ConvLayer struct {
	Weight *Parameter // [out in/groups kh kw]
	Bias   *Parameter // [out], or nil

	conv    autograd.Conv2dOptions
	compute device.DType // Invalid means the weight's type
}

// Conv2d is a layer from x [n in h w] to [n out oh ow] with kernels of size kernel × kernel. Weight and
// bias start uniformly distributed in ±1/√(in/groups·kernel²), as in PyTorch.
func Conv2d(in, out, kernel int, opts *ConvOptions) *ConvLayer {
	o := *cmp.Or(opts, &ConvOptions{})
	if o.DType == device.Invalid {
		o.DType = device.Float32
	}
	groups := max(o.Groups, 1)
	width := ConvHeight{kernel, max(o.Stride, 1), o.Padding, max(o.Dilation, 1)}
	height := width
	if o.Height != nil {
		height = *o.Height
		height.Stride, height.Dilation = max(height.Stride, 1), max(height.Dilation, 1)
	}
	init := Constant(0)
	if n := in / groups * height.Kernel * width.Kernel; n > 0 {
		bound := 1 / math.Sqrt(float64(n))
		init = Uniform(-bound, bound)
	}
	if in%groups != 0 || out%groups != 0 {
		panic(&device.ShapeError{Op: "Conv2d", A: device.Shape{in, out}, B: device.Shape{groups, groups}})
	}
	l := &ConvLayer{
		Weight: NewUnplacedParameter("weight", init, o.DType, out, in/groups, height.Kernel, width.Kernel),
		conv: autograd.Conv2dOptions{
			Stride: [2]int{height.Stride, width.Stride}, Padding: [2]int{height.Padding, width.Padding},
			Dilation: [2]int{height.Dilation, width.Dilation}, Groups: groups,
			ChannelsLast: o.ChannelsLast,
		},
		compute: o.Compute,
	}
	if !o.NoBias {
		l.Bias = NewUnplacedParameter("bias", init, o.DType, out)
	}
	return l
}

// Forward applies the layer to x [n in h w].
func (l *ConvLayer) Forward(x *autograd.Variable) *autograd.Variable {
	dt := l.compute
	if dt == device.Invalid {
		dt = l.Weight.DType()
	}
	weight := autograd.Cast(l.Weight.Var(), dt)
	var bias *autograd.Variable
	if l.Bias != nil {
		bias = autograd.Cast(l.Bias.Var(), dt)
	}
	return autograd.Conv2d(autograd.Cast(x, dt), weight, bias, &l.conv)
}

// Parameters returns "weight" and, if there is one, "bias".
func (l *ConvLayer) Parameters() []*Parameter {
	if l.Bias == nil {
		return []*Parameter{l.Weight}
	}
	return []*Parameter{l.Weight, l.Bias}
}
