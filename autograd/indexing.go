package autograd

import (
	"slices"

	"github.com/goddp/goddp/device"
)

// IndexSelect returns the elements of x at the indices [m] along an axis, as PyTorch's index_select. A
// negative axis counts from the end. The gradient is summed in an order that depends only on the indices.
func IndexSelect(x *Variable, axis int, index *Variable) *Variable {
	const op = "IndexSelect"
	checkIndex(op, index)
	return Apply(indexSelect{op, axisOf(op, axis, x.t.Shape), -1}, x, index)
}

// Embedding returns the rows of weight [n d] that ids [...] select. The result is [... d].
//
// padding is the index of a row that gets no gradient: PyTorch's padding_idx. If it is negative, all rows get one.
func Embedding(weight, ids *Variable, padding int) *Variable {
	const op = "Embedding"
	checkIndex(op, ids)
	if len(weight.t.Shape) != 2 {
		panic(&device.ShapeError{Op: op, A: weight.t.Shape, B: ids.t.Shape})
	}
	return Apply(indexSelect{op, 0, padding}, weight, ids)
}

func checkIndex(op string, index *Variable) {
	if dt := index.t.DType; dt != device.Int64 {
		panic(&device.DTypeError{Op: op, Got: dt, Want: device.Int64})
	}
}

// indexSelect replaces an axis by the axes of the index.
type indexSelect struct {
	name string
	axis int
	skip int // the index whose row gets no gradient; -1 for none
}

func (f indexSelect) Name() string { return f.name }

func (f indexSelect) Shape(in []device.Shape) device.Shape {
	if f.name == "IndexSelect" && len(in[1]) != 1 {
		panic(&device.ShapeError{Op: f.name + ", index", A: in[1], B: device.Shape{in[1].Len()}})
	}
	return slices.Replace(slices.Clone(in[0]), f.axis, f.axis+1, in[1]...)
}

func (indexSelect) Saves(_, j int) bool { return j == 1 }

// planes returns x and y reshaped to three axes each. x has the input's shape, which is `in`, and y has the
// result's shape.
func (f indexSelect) planes(in device.Shape, x, y, index device.Tensor) (x3, y3 device.Tensor) {
	outer, inner := in[:f.axis].Len(), in[f.axis+1:].Len()
	return x.Reshape(outer, in[f.axis], inner), y.Reshape(outer, index.Len(), inner)
}

func (f indexSelect) Forward(c *Call) error {
	src, dst := f.planes(c.In[0].Shape, c.In[0], c.Out, c.In[1])
	return c.kernels.Gather(c.Stream, dst, src, c.In[1].Flat())
}

func (f indexSelect) Backward(c *Call, _ int, dst device.Tensor, acc device.Accum, g device.Tensor) error {
	to, terms := f.planes(c.In[0].Shape, dst, g, c.In[1])
	return c.kernels.ScatterAdd(c.Stream, to, acc, terms, c.In[1].Flat(), f.skip)
}

// Gather selects, for each element of the result, an element of x by its index along an axis, as PyTorch's
// gather. A negative axis counts from the end. The result has the shape of index. Along the other axes this
// shape may be smaller than that of x.
func Gather(x *Variable, axis int, index *Variable) *Variable {
	const op = "Gather"
	checkIndex(op, index)
	axis = axisOf(op, axis, x.t.Shape)
	shape := index.t.Shape
	if len(shape) != len(x.t.Shape) {
		panic(&device.ShapeError{Op: op, A: x.t.Shape, B: shape})
	}
	part := x
	for i, n := range shape {
		if i != axis && n > x.t.Shape[i] {
			panic(&device.ShapeError{Op: op, A: x.t.Shape, B: shape})
		}
		if i != axis && n < x.t.Shape[i] {
			part = Slice(part, i, 0, n, 1)
		}
	}
	return Apply(gather{axis}, part, index)
}

// gather has an index for every element of the result.
type gather struct{ axis int }

func (gather) Name() string { return "Gather" }

func (gather) Shape(in []device.Shape) device.Shape { return in[1] }

func (gather) Saves(_, j int) bool { return j == 1 }

// planes returns x, y and index reshaped to three axes each. x has the input's shape, which is `in`; y has the
// result's shape.
func (f gather) planes(in device.Shape, x, y, index device.Tensor) (x3, y3, index3 device.Tensor) {
	outer, inner := in[:f.axis].Len(), in[f.axis+1:].Len()
	m := y.Shape[f.axis]
	return x.Reshape(outer, in[f.axis], inner), y.Reshape(outer, m, inner), index.Reshape(outer, m, inner)
}

func (f gather) Forward(c *Call) error {
	src, dst, index := f.planes(c.In[0].Shape, c.In[0], c.Out, c.In[1])
	return c.kernels.Gather(c.Stream, dst, src, index)
}

func (f gather) Backward(c *Call, _ int, dst device.Tensor, acc device.Accum, g device.Tensor) error {
	to, terms, index := f.planes(c.In[0].Shape, dst, g, c.In[1])
	return c.kernels.ScatterAdd(c.Stream, to, acc, terms, index, -1)
}
