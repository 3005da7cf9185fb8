package autograd

import (
	"fmt"
	"slices"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

// Reshape returns a view of x with a different shape and the same number of elements. One size may be
// -1: Reshape computes it from the others. Reshape panics with a [*device.ShapeError] if the number of
// elements differs.
func Reshape(x *Variable, shape ...int) *Variable {
	const op = "Reshape"
	s := slices.Clone(shape)
	if i := slices.Index(s, -1); i >= 0 {
		s[i] = 1
		if n := device.Shape(s).Len(); n > 0 {
			s[i] = x.t.Len() / n
		} else {
			s[i] = -1 // every size fits
		}
	}
	if device.Shape(s).Len() != x.t.Len() || slices.ContainsFunc(s, func(n int) bool { return n < 0 }) {
		panic(&device.ShapeError{Op: op, A: x.t.Shape, B: slices.Clone(shape)})
	}
	return view(reshape{op}, x, x.t.Reshape(s...))
}

// Flatten returns a view of x with the axes from start on merged into one. Flatten(x, 1) makes a row of
// each sample of a batch. A negative start counts from the end.
func Flatten(x *Variable, start int) *Variable {
	const op = "Flatten"
	shape := x.t.Shape
	if len(shape) == 0 {
		shape = device.Shape{1} // a scalar becomes one axis of one element
	}
	start = axisOf(op, start, shape)
	flat := append(slices.Clone(shape[:start]), shape[start:].Len())
	return view(reshape{op}, x, x.t.Reshape(flat...))
}

// view returns another handle to a part of x's memory. Its operation is fn, whose Forward is not
// called.
func view(fn Function, x *Variable, t device.Tensor) *Variable {
	defer nameLayer(fn, []*Variable{x})
	in, name := []*Variable{x}, fn.Name()
	operands(name, in)
	x.s.advance(name, in)
	out := x.alias()
	out.t, out.op, out.name = t, name, ""
	x.s.tape(fn, in, out)
	return out
}

// reshape is the operation of Reshape and of Flatten.
type reshape struct{ name string }

func (f reshape) Name() string { return f.name }

func (reshape) Shape(in []device.Shape) device.Shape { return in[0] }

func (reshape) Saves(_, _ int) bool { return false }

func (reshape) Forward(*Call) error { return nil }

func (reshape) passes(*Call, int) bool { return true }

func (reshape) Backward(c *Call, _ int, dst device.Tensor, acc device.Accum, g device.Tensor) error {
	return c.kernels.Axpby(c.Stream, dst.Flat(), acc, g.Flat())
}

// Permute copies x with its axes in another order: axis i of the result is axis axes[i] of x. A
// negative axis counts from the end. Permute panics with a [*device.ShapeError] unless axes names each
// axis once.
func Permute(x *Variable, axes ...int) *Variable {
	const op = "Permute"
	order, seen := make([]int, len(axes)), make([]bool, len(x.t.Shape))
	if len(axes) != len(seen) {
		panic(&device.ShapeError{Op: op, A: x.t.Shape, B: slices.Clone(axes)})
	}
	for i, axis := range axes {
		order[i] = axisOf(op, axis, x.t.Shape)
		if seen[order[i]] {
			panic(&device.ShapeError{Op: op, A: x.t.Shape, B: slices.Clone(axes)})
		}
		seen[order[i]] = true
	}
	return Apply(permutation{op, order}, x)
}

// Transpose copies x with two axes exchanged. Transpose(x, -2, -1) transposes matrices. A negative
// axis counts from the end.
func Transpose(x *Variable, a, b int) *Variable {
	const op = "Transpose"
	order := make([]int, len(x.t.Shape))
	for i := range order {
		order[i] = i
	}
	a, b = axisOf(op, a, x.t.Shape), axisOf(op, b, x.t.Shape)
	order[a], order[b] = b, a
	return Apply(permutation{op, order}, x)
}

type permutation struct {
	name  string
	order []int
}

func (f permutation) Name() string { return f.name }

func (f permutation) Shape(in []device.Shape) device.Shape {
	out := make(device.Shape, len(f.order))
	for i, axis := range f.order {
		out[i] = in[0][axis]
	}
	return out
}

func (permutation) Saves(_, _ int) bool { return false }

// layout returns the layout of the result's elements in an input of shape in.
func (f permutation) layout(in device.Shape) kernels.Layout {
	l := kernels.Dense(in)
	strides := make([]int, len(f.order))
	for i, axis := range f.order {
		strides[i] = l.Strides[axis]
	}
	return kernels.Layout{Strides: strides}
}

func (f permutation) Forward(c *Call) error {
	return c.kernels.CopyStrided(c.Stream, c.Out.Shape, c.Out, kernels.Dense(c.Out.Shape), device.Store, c.In[0], f.layout(c.In[0].Shape))
}

// Backward copies in the inverse order.
func (f permutation) Backward(c *Call, _ int, dst device.Tensor, acc device.Accum, g device.Tensor) error {
	return c.kernels.CopyStrided(c.Stream, g.Shape, dst, f.layout(dst.Shape), acc, g, kernels.Dense(g.Shape))
}

// Slice returns every step-th element of x along an axis, from index `from` to index to-1, as PyTorch's
// x[:, from:to:step]. A negative bound or axis counts from the end. A bound beyond the end counts as the end, so
// to = math.MaxInt takes all elements from `from` on. If the elements are contiguous, as leading rows are, the
// result is a view of x; otherwise it is a copy. Slice panics with a [*device.ShapeError] unless step is positive.
func Slice(x *Variable, axis, from, to, step int) *Variable {
	const op = "Slice"
	axis = axisOf(op, axis, x.t.Shape)
	if step < 1 {
		panic(&device.ShapeError{Op: op + " by a step that is not positive", A: x.t.Shape, B: device.Shape{step}})
	}
	n := x.t.Shape[axis]
	bound := func(i int) int {
		if i < 0 {
			i += n
		}
		return min(max(i, 0), n)
	}
	f := slice{axis: axis, from: bound(from), step: step}
	if to := bound(to); to > f.from {
		f.n = (to-f.from-1)/step + 1
	}
	if x.mem.err == nil && x.t.Shape[:axis].Len() == 1 && (step == 1 || f.n <= 1) {
		shape := f.Shape([]device.Shape{x.t.Shape})
		row := shape[axis+1:].Len()
		if f.n == 0 {
			f.from = 0
		}
		return view(f, x, x.t.Range(f.from*row, (f.from+f.n)*row).Reshape(shape...))
	}
	return Apply(f, x)
}

// slice takes n elements along an axis, at a distance of step.
type slice struct{ axis, from, n, step int }

func (slice) Name() string { return "Slice" }

func (f slice) Shape(in []device.Shape) device.Shape {
	out := slices.Clone(in[0])
	out[f.axis] = f.n
	return out
}

func (slice) Saves(_, _ int) bool { return false }

// layout returns the layout of the slice in an input of shape in.
func (f slice) layout(in device.Shape) kernels.Layout {
	l := kernels.Dense(in)
	l.Offset = f.from * l.Strides[f.axis]
	l.Strides[f.axis] *= f.step
	return l
}

func (f slice) Forward(c *Call) error {
	return c.kernels.CopyStrided(c.Stream, c.Out.Shape, c.Out, kernels.Dense(c.Out.Shape), device.Store, c.In[0], f.layout(c.In[0].Shape))
}

// Backward writes zeros as the gradient of elements outside the slice.
func (f slice) Backward(c *Call, _ int, dst device.Tensor, acc device.Accum, g device.Tensor) error {
	if g.Len() != dst.Len() {
		if err := c.scale(dst, acc.Beta); err != nil {
			return err
		}
		if acc.Beta != 0 {
			acc.Beta = 1
		}
	}
	return c.kernels.CopyStrided(c.Stream, g.Shape, dst, f.layout(dst.Shape), acc, g, kernels.Dense(g.Shape))
}

// Concat joins one or more tensors along an axis. Their shapes may differ only along that axis. A
// negative axis counts from the end.
func Concat(axis int, xs ...*Variable) *Variable {
	const op = "Concat"
	return Apply(concatenation{op, axisOf(op, axis, firstShape(op, xs))}, xs...)
}

// Stack joins one or more tensors of the same shape along a new axis. A negative axis counts from the
// end of the result's axes.
func Stack(axis int, xs ...*Variable) *Variable {
	const op = "Stack"
	shape := firstShape(op, xs)
	at := axisOf(op, axis, append(slices.Clone(shape), len(xs)))
	parts := make([]*Variable, len(xs))
	for i, x := range xs {
		if !x.t.Shape.Equal(shape) {
			panic(&device.ShapeError{Op: op, A: shape, B: x.t.Shape})
		}
		parts[i] = Reshape(x, slices.Insert(slices.Clone(shape), at, 1)...)
	}
	return Apply(concatenation{op, at}, parts...)
}

// firstShape returns the shape of the first of xs. It panics without one.
func firstShape(op string, xs []*Variable) device.Shape {
	if len(xs) == 0 {
		panic(fmt.Errorf("autograd: %s of 0 tensors, want at least 1", op))
	}
	return xs[0].t.Shape
}

type concatenation struct {
	name string
	axis int
}

func (f concatenation) Name() string { return f.name }

func (f concatenation) Shape(in []device.Shape) device.Shape {
	out := slices.Clone(in[0])
	out[f.axis] = 0
	for _, shape := range in {
		if len(shape) != len(out) {
			panic(&device.ShapeError{Op: f.name, A: in[0], B: shape})
		}
		fits := slices.Clone(shape)
		fits[f.axis] = in[0][f.axis]
		if !fits.Equal(in[0]) {
			panic(&device.ShapeError{Op: f.name, A: in[0], B: shape})
		}
		out[f.axis] += shape[f.axis]
	}
	return out
}

func (concatenation) Saves(_, _ int) bool { return false }

// layout returns the layout of input i in the result.
func (f concatenation) layout(c *Call, i int) kernels.Layout {
	l, at := kernels.Dense(c.Out.Shape), 0
	for _, x := range c.In[:i] {
		at += x.Shape[f.axis]
	}
	l.Offset = at * l.Strides[f.axis]
	return l
}

func (f concatenation) Forward(c *Call) error {
	for i, x := range c.In {
		if x.DType != c.Out.DType {
			panic(&device.DTypeError{Op: f.name, Got: x.DType, Want: c.Out.DType})
		}
		if err := c.kernels.CopyStrided(c.Stream, x.Shape, c.Out, f.layout(c, i), device.Store, x, kernels.Dense(x.Shape)); err != nil {
			return err
		}
	}
	return nil
}

func (f concatenation) Backward(c *Call, i int, dst device.Tensor, acc device.Accum, g device.Tensor) error {
	return c.kernels.CopyStrided(c.Stream, dst.Shape, dst, kernels.Dense(dst.Shape), acc, g, f.layout(c, i))
}

// Expand copies x broadcast to a shape, as [Add] broadcasts its operands. It panics with a
// [*device.ShapeError] if x does not broadcast to shape.
func Expand(x *Variable, shape ...int) *Variable { return Apply(expansion(slices.Clone(shape)), x) }

type expansion device.Shape

func (expansion) Name() string { return "Expand" }

func (f expansion) Shape(in []device.Shape) device.Shape {
	if !kernels.Broadcast("Expand", in[0], device.Shape(f)).Equal(device.Shape(f)) || slices.ContainsFunc(f, func(n int) bool { return n < 0 }) {
		panic(&device.ShapeError{Op: "Expand", A: in[0], B: device.Shape(f)})
	}
	return device.Shape(f)
}

func (expansion) Saves(_, _ int) bool { return false }

func (f expansion) Forward(c *Call) error { return c.broadcast(c.Out, c.In[0]) }

func (expansion) Backward(c *Call, _ int, dst device.Tensor, acc device.Accum, g device.Tensor) error {
	return c.accumulate(dst, acc, g)
}

// broadcast writes x, broadcast to the shape of dst, to dst.
func (c *Call) broadcast(dst, x device.Tensor) error {
	from := kernels.Dense(x.Shape)
	for i, n := range x.Shape {
		if n == 1 {
			from.Strides[i] = 0
		}
	}
	from.Strides = append(make([]int, len(dst.Shape)-len(x.Shape)), from.Strides...)
	return c.kernels.CopyStrided(c.Stream, dst.Shape, dst, kernels.Dense(dst.Shape), device.Store, x, from)
}
