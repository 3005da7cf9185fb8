package autograd

import "github.com/goddp/goddp/device"

// Softmax computes e^x divided by its sum along an axis. A negative axis counts from the end.
func Softmax(x *Variable, axis int) *Variable { return softmaxAlong("Softmax", x, axis, false) }

// LogSoftmax computes the logarithm of [Softmax]. It is accurate where Softmax is near 0.
func LogSoftmax(x *Variable, axis int) *Variable { return softmaxAlong("LogSoftmax", x, axis, true) }

func softmaxAlong(name string, x *Variable, axis int, log bool) *Variable {
	shape := x.t.Shape
	if len(shape) == 0 {
		shape = device.Shape{1} // a scalar has one element along one axis
	}
	return Apply(softmax{name, axisOf(name, axis, shape), log}, x)
}

type softmax struct {
	name string
	axis int
	log  bool
}

func (f softmax) Name() string { return f.name }

func (softmax) Shape(in []device.Shape) device.Shape { return in[0] }

func (softmax) Saves(_, j int) bool { return j == Output }

func (f softmax) Forward(c *Call) error {
	return c.kernels.Softmax(c.Stream, c.Out, c.In[0], f.axis, f.log)
}

func (f softmax) Backward(c *Call, _ int, dst device.Tensor, acc device.Accum, g device.Tensor) error {
	return c.kernels.SoftmaxGrad(c.Stream, dst, acc, g, c.Out, f.axis, f.log)
}
