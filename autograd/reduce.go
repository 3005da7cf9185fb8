package autograd

import (
	"slices"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

// Sum sums x to the given shape, which must broadcast to x's shape. The shapes are aligned at the last axis.
// Sum sums over the axes that shape lacks, and over the axes that have size 1 in shape. Without a shape it sums
// all elements to a scalar.
func Sum(x *Variable, shape ...int) *Variable {
	return Apply(&reduction{name: "Sum", shape: slices.Clone(shape), factor: 1}, x)
}

// Mean is [Sum] divided by the number of elements in each sum.
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
	if !kernels.Broadcast(f.name, in[0], f.shape).Equal(in[0]) {
		panic(&device.ShapeError{Op: f.name, A: in[0], B: f.shape})
	}
	return f.shape
}

func (*reduction) Saves(_, _ int) bool { return false }

func (f *reduction) Forward(c *Call) error {
	return c.kernels.Sum(c.Stream, c.Out, device.Accum{Alpha: f.factor}, c.In[0])
}

// Backward multiplies the gradient by the factor, and then broadcasts it: before the broadcast it has fewer
// elements.
func (f *reduction) Backward(c *Call, _ int, dst device.Tensor, acc device.Accum, g device.Tensor) error {
	k, s := c.kernels, c.Stream
	scaled, err := c.New(g.DType, g.Shape...)
	if err != nil {
		return err
	}
	if err := k.Axpby(s, scaled, device.Accum{Alpha: acc.Alpha * f.factor}, g); err != nil {
		return err
	}
	if err := c.scale(dst, acc.Beta); err != nil {
		return err
	}
	return k.Binary(s, kernels.Add, dst, dst, scaled)
}

// scale multiplies dst by beta, before a kernel adds to some of its elements. With beta 0 it does not
// read dst.
func (c *Call) scale(dst device.Tensor, beta float64) error {
	switch beta {
	case 0:
		return c.kernels.Fill(c.Stream, dst, 0)
	case 1:
		return nil
	}
	return c.kernels.Axpby(c.Stream, dst, device.Accum{Alpha: beta}, dst)
}
