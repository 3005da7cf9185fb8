package autograd

import "github.com/goddp/goddp/device"

// Conv2d is the convolution of x [n c h w] by weight [o c/p.Groups kh kw], plus bias [o],
// which may be nil: [n o oh ow].
func Conv2d(x, weight, bias *Variable, p device.Conv) *Variable {
	if bias == nil {
		return Apply(conv2d(p), x, weight)
	}
	return Apply(conv2d(p), x, weight, bias)
}

type conv2d device.Conv

func (conv2d) Name() string { return "Conv2d" }

func (f conv2d) Shape(in []device.Shape) device.Shape {
	out := device.Conv(f).Shape(in[0], in[1])
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
	return c.Kernels.Conv2d(c.Stream, c.Out, c.In[0], c.In[1], bias, device.Conv(f))
}

func (f conv2d) Backward(c *Call, i int, dst device.Tensor, acc device.Accum, g device.Tensor) error {
	switch i {
	case 0:
		return c.Kernels.Conv2dGradInput(c.Stream, dst, acc, g, c.In[1], device.Conv(f))
	case 1:
		return c.Kernels.Conv2dGradWeight(c.Stream, dst, acc, g, c.In[0], device.Conv(f))
	}
	return c.Kernels.Sum(c.Stream, dst.Reshape(dst.Len(), 1, 1), acc, g)
}
