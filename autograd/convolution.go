package autograd

import (
	"cmp"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

// Conv2dOptions are the choices of [Conv2d]. Each pair has one value for the first axis of an image and one for
// the second. 0 counts as 1 in Stride, Dilation and Groups.
type Conv2dOptions struct {
	Stride, Padding, Dilation [2]int
	// Groups is the number of groups that the channels are divided into. An output channel depends only
	// on the input channels of its group.
	Groups int
	// ChannelsLast makes x [n h w c] and the result [n oh ow o]: see [Conv2d].
	ChannelsLast bool
}

// Conv2d computes the convolution of x [n c h w] with weight [o c/Groups kh kw], plus bias
// [o], which may be nil. The result is [n o oh ow]. A nil opts is the zero value.
//
// With ChannelsLast, which is faster on the CPU, and on GPUs in 16-bit types, x is [n h w c] and the result [n oh ow o].
// The weight keeps its shape, so that a model's parameters do not depend on the layout of images. Conv2d
// then copies the weight in another order, unless kh·kw is 1.
func Conv2d(x, weight, bias *Variable, opts *Conv2dOptions) *Variable {
	o := *cmp.Or(opts, &Conv2dOptions{})
	p := conv2d{Stride: orOne(o.Stride), Padding: o.Padding, Dilation: orOne(o.Dilation), Groups: cmp.Or(o.Groups, 1), ChannelsLast: o.ChannelsLast}
	if shape := weight.Shape(); o.ChannelsLast && len(shape) == 4 {
		if _, fit := kernels.Conv(p).TryShape(x.t.Shape, device.Shape{shape[0], shape[2], shape[3], shape[1]}); !fit {
			defer nameLayer(p, []*Variable{weight}) // the weight in another order has no name
			panic(kernels.Conv(p).Misfit(x.t.Shape, shape, 1))
		}
		if shape[2]*shape[3] == 1 {
			weight = Reshape(weight, shape[0], 1, 1, shape[1])
		} else {
			weight = Permute(weight, 0, 2, 3, 1)
		}
	}
	if bias == nil {
		return Apply(p, x, weight)
	}
	return Apply(p, x, weight, bias)
}

// orOne returns v with 1 in place of 0.
func orOne(v [2]int) [2]int { return [2]int{cmp.Or(v[0], 1), cmp.Or(v[1], 1)} }

type conv2d kernels.Conv

func (conv2d) Name() string { return "Conv2d" }

func (f conv2d) Shape(in []device.Shape) device.Shape {
	out := kernels.Conv(f).Shape(in[0], in[1])
	if len(in) == 3 && !in[2].Equal(in[1][:1]) {
		panic(&device.ShapeError{Op: "Conv2d", A: in[2], B: in[1][:1]})
	}
	return out
}

func (conv2d) Saves(i, j int) bool { return i < 2 && j == 1-i }

func (f conv2d) Forward(c *Call) error {
	var bias device.Tensor
	if len(c.In) == 3 {
		bias = c.In[2]
	}
	if c.Recorded {
		if err := c.kernels.PrepareConv2d(c.Stream, c.Out, c.In[0], c.In[1], kernels.Conv(f)); err != nil {
			return err
		}
	}
	return c.kernels.Conv2d(c.Stream, c.Out, c.In[0], c.In[1], bias, kernels.Conv(f))
}

func (f conv2d) Backward(c *Call, i int, dst device.Tensor, acc device.Accum, g device.Tensor) error {
	switch i {
	case 0:
		return c.kernels.Conv2dGradInput(c.Stream, dst, acc, g, c.In[1], kernels.Conv(f))
	case 1:
		return c.kernels.Conv2dGradWeight(c.Stream, dst, acc, g, c.In[0], kernels.Conv(f))
	}
	if f.ChannelsLast {
		return c.kernels.Sum(c.Stream, dst, acc, g.Reshape(g.Shape[:3].Len(), dst.Len()))
	}
	return c.kernels.Sum(c.Stream, dst.Reshape(dst.Len(), 1, 1), acc, g)
}
