package autograd

import (
	"slices"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

// MatMul multiplies the matrices x [... m k] and y [... k n]. The result is [... m n]; leading axes are
// broadcast to one shape.
func MatMul(x, y *Variable) *Variable { return MatMulT(x, false, y, false) }

// MatMulT is MatMul with the matrices of x transposed if tx, and those of y transposed if ty. It copies
// nothing to transpose.
func MatMulT(x *Variable, tx bool, y *Variable, ty bool) *Variable {
	return Apply(matMul{tx, ty}, x, y)
}

type matMul struct{ tx, ty bool }

func (matMul) Name() string { return "MatMul" }

func (f matMul) Shape(in []device.Shape) device.Shape {
	x, y := in[0], in[1]
	if len(x) < 2 || len(y) < 2 {
		panic(&device.ShapeError{Op: "MatMul", A: x, B: y})
	}
	m, kx := transposed(x, f.tx)
	ky, n := transposed(y, f.ty)
	if kx != ky {
		panic(&device.ShapeError{Op: "MatMul", A: x, B: y})
	}
	return append(kernels.Broadcast("MatMul", x[:len(x)-2], y[:len(y)-2]), m, n)
}

// transposed returns the size of the matrices of a shape, or of their transposes.
func transposed(s device.Shape, t bool) (rows, cols int) {
	s = s[len(s)-2:]
	if t {
		return s[1], s[0]
	}
	return s[0], s[1]
}

func (matMul) Saves(i, j int) bool { return j == 1-i }

// joined returns x and result as one matrix each if the same y multiplies all matrices of x, so that one product is
// enough. The parameter result is the result of f or its gradient.
func (f matMul) joined(x, y, result device.Tensor) (_, _ device.Tensor) {
	if len(x.Shape) > 2 && len(y.Shape) == 2 && !f.tx {
		return rows(x), rows(result)
	}
	return x, result
}

func (f matMul) Forward(c *Call) error {
	x, out := f.joined(c.In[0], c.In[1], c.Out)
	return c.kernels.MatMul(c.Stream, out, device.Store, x, f.tx, c.In[1], f.ty)
}

// Backward computes dX = G·Yᵀ and dY = Xᵀ·G, where X and Y are the factors of the product, after transposition.
// The gradient of a transposed operand is the transpose of dX or dY, which is computed by exchanging the
// factors. The gradient of an operand that was broadcast is a sum.
func (f matMul) Backward(c *Call, i int, dst device.Tensor, acc device.Accum, g device.Tensor) error {
	k, s, y := c.kernels, c.Stream, c.In[1]
	x, g := f.joined(c.In[0], y, g)
	multiply := func(dst device.Tensor, acc device.Accum) error {
		switch {
		case i == 0 && !f.tx:
			return k.MatMul(s, dst, acc, g, false, y, !f.ty)
		case i == 0:
			return k.MatMul(s, dst, acc, y, f.ty, g, true)
		case !f.ty:
			return k.MatMul(s, dst, acc, x, !f.tx, g, false)
		default:
			return k.MatMul(s, dst, acc, g, true, x, f.tx)
		}
	}
	of := y.Shape
	if i == 0 {
		dst = dst.Reshape(x.Shape...)
		of = x.Shape
	}
	full := append(append(device.Shape{}, g.Shape[:len(g.Shape)-2]...), of[len(of)-2:]...)
	if full.Equal(dst.Shape) {
		return multiply(dst, acc)
	}
	t, err := c.New(dst.DType, full...)
	if err != nil {
		return err
	}
	if err := multiply(t, device.Store); err != nil {
		return err
	}
	return k.Sum(s, dst, acc, t)
}

// Linear computes x·wᵀ + bias: x [... k], w [n k], bias [n] or nil, the result [... n].
func Linear(x, w, bias *Variable) *Variable { return linearOf(x, w, bias, kernels.NoActivation) }

// Linears returns [Linear] of x with each of the weights. biases holds a bias or nil for each weight. Their bits and
// gradients are those of Linear, but one kernel may compute all of them.
func Linears(x *Variable, weights, biases []*Variable) []*Variable {
	var all []kernels.Projection
	var out []*Variable
	if slices.ContainsFunc(slices.Concat(weights, biases), (*Variable).hasSource) {
		for i, w := range weights {
			out = append(out, Linear(x, w, biases[i]))
		}
		return out
	}
	for i, w := range weights {
		in := []*Variable{x, w}
		if biases[i] != nil {
			in = append(in, biases[i])
		}
		out = append(out, Apply(&projection{all: &all, isLast: i == len(weights)-1}, in...))
	}
	for _, y := range out {
		if y.mem.err == nil {
			y.mem.err = out[len(out)-1].mem.err
		}
	}
	return out
}

// projection is a Linear of Linears. The last one computes the results of all.
type projection struct {
	linear
	all    *[]kernels.Projection
	isLast bool
}

func (f *projection) Forward(c *Call) error {
	of := kernels.Projection{Dst: rows(c.Out), W: c.In[1]}
	if len(c.In) == 3 {
		of.Bias = c.In[2]
	}
	*f.all = append(*f.all, of)
	x := rows(c.In[0])
	if f.isLast {
		if err := c.kernels.Linears(c.Stream, x, *f.all); err != nil {
			return err
		}
	}
	if !c.Recorded {
		return nil
	}
	return c.kernels.PrepareLinearGrad(c.Stream, of.Dst, x, of.W, of.Bias)
}

// LinearReLU computes ReLU(x·wᵀ + bias) as one operation. The operands are those of Linear.
func LinearReLU(x, w, bias *Variable) *Variable { return linearOf(x, w, bias, kernels.ActReLU) }

func linearOf(x, w, bias *Variable, act kernels.Activation) *Variable {
	if bias == nil {
		return Apply(linear(act), x, w)
	}
	return Apply(linear(act), x, w, bias)
}

type linear kernels.Activation

func (linear) Name() string { return "Linear" }

func (linear) Shape(in []device.Shape) device.Shape {
	x, w := in[0], in[1]
	if len(x) == 0 || len(w) != 2 || x[len(x)-1] != w[1] {
		panic(&device.ShapeError{Op: "Linear", A: x, B: w})
	}
	if len(in) == 3 && !in[2].Equal(w[:1]) {
		panic(&device.ShapeError{Op: "Linear", A: in[2], B: w[:1]})
	}
	out := append(device.Shape{}, x...)
	out[len(out)-1] = w[0]
	return out
}

// rows returns t as a matrix, whose rows lie along t's last axis.
func rows(t device.Tensor) device.Tensor {
	if len(t.Shape) == 2 {
		return t
	}
	n := t.Shape[len(t.Shape)-1]
	return t.Reshape(device.Shape(t.Shape[:len(t.Shape)-1]).Len(), n)
}

func (f linear) Saves(i, j int) bool {
	if j == Output {
		return kernels.Activation(f) != kernels.NoActivation
	}
	return i < 2 && j == 1-i
}

func (f linear) Forward(c *Call) error {
	var bias device.Tensor
	if len(c.In) == 3 {
		bias = c.In[2]
	}
	k, s, y, x, w := c.kernels, c.Stream, rows(c.Out), rows(c.In[0]), c.In[1]
	if err := k.Linear(s, y, x, w, bias, kernels.Activation(f)); err != nil || !c.Recorded {
		return err
	}
	return k.PrepareLinearGrad(s, y, x, w, bias)
}

// Aside marks the operation: the gradients of the weight and the bias may be computed on another stream.
func (linear) Aside() {}

// Prepare takes the gradient back through the activation, in place.
func (f linear) Prepare(c *Call, g device.Tensor) error {
	if kernels.Activation(f) == kernels.NoActivation {
		return nil
	}
	return c.kernels.UnaryGrad(c.Stream, kernels.ReLU, g, device.Store, g, device.Tensor{}, c.Out)
}

// keepsGradient reports whether there is no activation, so that Prepare leaves the gradient as it is.
func (f linear) keepsGradient() bool { return kernels.Activation(f) == kernels.NoActivation }

func (linear) Backward(c *Call, i int, dst device.Tensor, acc device.Accum, g device.Tensor) error {
	k, s := c.kernels, c.Stream
	g = rows(g)
	switch i {
	case 0:
		return k.MatMul(s, rows(dst), acc, g, false, c.In[1], false)
	case 1:
		return k.MatMul(s, dst, acc, g, true, rows(c.In[0]), false)
	default:
		return k.Sum(s, dst, acc, g)
	}
}

// firstJoint returns 1, the index of the weight: the gradients of the weight and the bias are computed together.
func (linear) firstJoint() int { return 1 }

func (linear) backwardJoint(c *Call, dst [3]device.Tensor, acc [3]device.Accum, g device.Tensor) error {
	return c.kernels.LinearGrad(c.Stream, dst[1], acc[1], dst[2], acc[2], rows(g), rows(c.In[0]))
}
