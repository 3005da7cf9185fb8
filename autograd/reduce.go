package autograd

import (
	"slices"

	"github.com/goddp/goddp/device"
)

// Sum sums x to the given shape, which broadcasts to x's: over the axes that
// it lacks, aligned at the last one, or has with size 1. Without a shape it
// sums all elements to a scalar.
func Sum(x *Variable, shape ...int) *Variable {
	return Apply(&reduction{name: "Sum", shape: slices.Clone(shape), factor: 1}, x)
}

// Mean is [Sum] divided by the number of elements that each sum is of.
func Mean(x *Variable, shape ...int) *Variable {
	n := float64(x.t.Len()) / float64(device.Shape(shape).Len())
	return Apply(&reduction{name: "Mean", shape: slices.Clone(shape), factor: 1 / n}, x)
}

// reduction is a sum times a factor.
type reduction struct {
	name   string
	shape  device.Shape
	factor float64
}

func (f *reduction) Name() string { return f.name }

func (f *reduction) Shape(in []device.Shape) device.Shape {
	if !device.Broadcast(f.name, in[0], f.shape).Equal(in[0]) {
		panic(&device.ShapeError{Op: f.name, A: in[0], B: f.shape})
	}
	return f.shape
}

func (*reduction) Saves(_, _ int) bool { return false }

func (f *reduction) Forward(c *Call) error {
	return c.Kernels.Sum(c.Stream, c.Out, device.Accum{Alpha: f.factor}, c.In[0])
}

// Backward broadcasts the gradient, scaled while it is still small.
func (f *reduction) Backward(c *Call, _ int, dst device.Tensor, acc device.Accum, g device.Tensor) error {
	k, s := c.Kernels, c.Stream
	scaled, err := c.New(g.DType, g.Shape...)
	if err != nil {
		return err
	}
	if err := k.Axpby(s, scaled, device.Accum{Alpha: acc.Alpha * f.factor}, g); err != nil {
		return err
	}
	switch acc.Beta {
	case 0:
		err = k.Fill(s, dst, 0)
	case 1:
	default:
		err = k.Axpby(s, dst, device.Accum{Alpha: acc.Beta}, dst)
	}
	if err != nil {
		return err
	}
	return k.Binary(s, device.Add, dst, dst, scaled)
}

// Reshape is x with another shape of as many elements: a view of x's memory.
// It panics with a [*device.ShapeError] when the shapes do not fit.
func Reshape(x *Variable, shape ...int) *Variable {
	in := []*Variable{x}
	operands("Reshape", in)
	if device.Shape(shape).Len() != x.t.Len() {
		panic(&device.ShapeError{Op: "Reshape", A: x.t.Shape, B: shape})
	}
	x.s.advance("Reshape", in)
	out := x.alias()
	out.op, out.name = "Reshape", ""
	out.t.Shape = slices.Clone(shape)
	x.s.record(reshape{}, in, out)
	return out
}

// reshape is what Reshape leaves in the graph: it has no Forward of its own.
type reshape struct{}

func (reshape) Name() string { return "Reshape" }

func (reshape) Shape(in []device.Shape) device.Shape { return in[0] }

func (reshape) Saves(_, _ int) bool { return false }

func (reshape) Forward(*Call) error { return nil }

func (reshape) Backward(c *Call, _ int, dst device.Tensor, acc device.Accum, g device.Tensor) error {
	return c.Kernels.Axpby(c.Stream, dst.Flat(), acc, g.Flat())
}
