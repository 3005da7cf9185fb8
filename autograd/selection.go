package autograd

import (
	"slices"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

// Equal compares x and y, which have the same type and are broadcast to one shape. The result is a mask
// of uint8, 1 where x = y and 0 elsewhere. It has no gradient. The other comparisons work alike.
func Equal(x, y *Variable) *Variable { return compared(kernels.Equal, x, y) }

// NotEqual returns the mask of x ≠ y: see [Equal].
func NotEqual(x, y *Variable) *Variable { return compared(kernels.NotEqual, x, y) }

// Less returns the mask of x < y: see [Equal].
func Less(x, y *Variable) *Variable { return compared(kernels.Less, x, y) }

// LessEqual returns the mask of x ≤ y: see [Equal].
func LessEqual(x, y *Variable) *Variable { return compared(kernels.LessEqual, x, y) }

// Greater returns the mask of x > y: see [Equal].
func Greater(x, y *Variable) *Variable { return compared(kernels.Greater, x, y) }

// GreaterEqual returns the mask of x ≥ y: see [Equal].
func GreaterEqual(x, y *Variable) *Variable { return compared(kernels.GreaterEqual, x, y) }

func compared(c kernels.Comparison, x, y *Variable) *Variable {
	return Apply(comparison(c), x.Detach(), y.Detach())
}

type comparison kernels.Comparison

func (f comparison) Name() string { return kernels.Comparison(f).String() }

func (f comparison) Shape(in []device.Shape) device.Shape {
	return kernels.Broadcast(f.Name(), in[0], in[1])
}

func (comparison) dtype() device.DType { return device.Uint8 }

func (f comparison) Forward(c *Call) error {
	return c.kernels.Compare(c.Stream, kernels.Comparison(f), c.Out, c.In[0], c.In[1])
}

// Backward is never called: the inputs are detached.
func (f comparison) Backward(*Call, int, device.Tensor, device.Accum, device.Tensor) error {
	return nil
}

// Where returns x where cond, a mask of uint8, is not 0, and y elsewhere. All three are broadcast to
// one shape.
func Where(cond, x, y *Variable) *Variable {
	const op = "Where"
	checkMask(op, cond)
	if x.t.DType != y.t.DType {
		panic(&device.DTypeError{Op: op, Got: y.t.DType, Want: x.t.DType})
	}
	return Apply(where{}, x, y, cond)
}

func checkMask(op string, mask *Variable) {
	if dt := mask.t.DType; dt != device.Uint8 {
		panic(&device.DTypeError{Op: op, Got: dt, Want: device.Uint8})
	}
}

// where takes the condition as its last input, because the result has the type of the first input.
type where struct{}

func (where) Name() string { return "Where" }

func (where) Shape(in []device.Shape) device.Shape {
	return kernels.Broadcast("Where", kernels.Broadcast("Where", in[0], in[1]), in[2])
}

func (where) Saves(_, j int) bool { return j == 2 }

func (where) Forward(c *Call) error {
	if err := c.broadcast(c.Out, c.In[1]); err != nil {
		return err
	}
	return c.kernels.MaskedCopy(c.Stream, c.Out, c.In[2], c.In[0])
}

func (where) Backward(c *Call, i int, dst device.Tensor, acc device.Accum, g device.Tensor) error {
	if i == 1 {
		return c.unmasked(dst, acc, g, c.In[2])
	}
	return c.accumulateOf(dst, acc, g.Shape, func(t device.Tensor) error {
		if err := c.kernels.Fill(c.Stream, t, 0); err != nil {
			return err
		}
		return c.kernels.MaskedCopy(c.Stream, t, c.In[2], g)
	})
}

// unmasked accumulates g into dst, with 0 in place of g where mask is set.
func (c *Call) unmasked(dst device.Tensor, acc device.Accum, g, mask device.Tensor) error {
	zero, err := c.New(g.DType)
	if err != nil {
		return err
	}
	if err := c.kernels.Fill(c.Stream, zero, 0); err != nil {
		return err
	}
	return c.accumulateOf(dst, acc, g.Shape, func(t device.Tensor) error {
		if err := c.kernels.Copy(c.Stream, t, g); err != nil {
			return err
		}
		return c.kernels.MaskedCopy(c.Stream, t, mask, zero)
	})
}

// MaskedFill returns x with value where mask is not 0, as PyTorch's masked_fill. mask is of uint8 and
// is broadcast to x's shape.
func MaskedFill(x, mask *Variable, value float64) *Variable {
	checkMask("MaskedFill", mask)
	return Apply(maskedFill(value), x, mask)
}

type maskedFill float64

func (maskedFill) Name() string { return "MaskedFill" }

func (maskedFill) Shape(in []device.Shape) device.Shape {
	if !kernels.Broadcast("MaskedFill", in[0], in[1]).Equal(in[0]) {
		panic(&device.ShapeError{Op: "MaskedFill", A: in[0], B: in[1]})
	}
	return in[0]
}

func (maskedFill) Saves(_, j int) bool { return j == 1 }

func (f maskedFill) Forward(c *Call) error {
	value, err := c.New(c.Out.DType)
	if err != nil {
		return err
	}
	if err := c.kernels.Fill(c.Stream, value, float64(f)); err != nil {
		return err
	}
	if err := c.kernels.Copy(c.Stream, c.Out, c.In[0]); err != nil {
		return err
	}
	return c.kernels.MaskedCopy(c.Stream, c.Out, c.In[1], value)
}

func (maskedFill) Backward(c *Call, _ int, dst device.Tensor, acc device.Accum, g device.Tensor) error {
	return c.unmasked(dst, acc, g, c.In[1])
}

// Max reduces x to its largest elements in the given shape, which must broadcast to x's shape. The shapes are
// aligned at the last axis. Max reduces the axes that shape lacks, and the axes that have size 1 in shape. Without
// a shape it returns the largest of all elements. NaN counts as larger than any number. Equal largest elements
// share the gradient, as in PyTorch's amax. Max panics with a [*device.ShapeError] if a result would
// be the maximum of no elements.
func Max(x *Variable, shape ...int) *Variable {
	return Apply(&extremes{"Max", kernels.Largest, slices.Clone(shape)}, x)
}

// Min is [Max] for the smallest elements.
func Min(x *Variable, shape ...int) *Variable {
	return Apply(&extremes{"Min", kernels.Smallest, slices.Clone(shape)}, x)
}

type extremes struct {
	name  string
	which kernels.Extreme
	shape device.Shape
}

func (f *extremes) Name() string { return f.name }

func (f *extremes) Shape(in []device.Shape) device.Shape {
	if !kernels.Broadcast(f.name, in[0], f.shape).Equal(in[0]) || in[0].Len() == 0 && f.shape.Len() > 0 {
		panic(&device.ShapeError{Op: f.name, A: in[0], B: f.shape})
	}
	return f.shape
}

func (*extremes) Saves(_, j int) bool { return j == 0 || j == Output }

// Forward reduces neighbouring axes together, the last axes first.
func (f *extremes) Forward(c *Call) error {
	x, to := c.In[0], append(slices.Repeat([]int{1}, len(c.In[0].Shape)-len(f.shape)), f.shape...)
	shape := slices.Clone(x.Shape) // the shape reduced so far
	for hi := len(shape); hi > 0; hi-- {
		lo := hi
		for lo > 0 && to[lo-1] == 1 && shape[lo-1] != 1 {
			lo--
		}
		if lo == hi {
			continue
		}
		outer, n, inner := shape[:lo].Len(), shape[lo:hi].Len(), shape[hi:].Len()
		y, err := c.New(x.DType, outer, inner)
		if err != nil {
			return err
		}
		if err := c.kernels.FindExtreme(c.Stream, f.which, y, device.Tensor{}, x.Reshape(outer, n, inner)); err != nil {
			return err
		}
		for i := lo; i < hi; i++ {
			shape[i] = 1
		}
		x, hi = y, lo+1
	}
	return c.kernels.Copy(c.Stream, c.Out, x)
}

// Backward divides the gradient among the elements that equal the extreme. If the extreme is NaN, no
// element equals it, and the gradient is NaN.
func (f *extremes) Backward(c *Call, _ int, dst device.Tensor, acc device.Accum, g device.Tensor) error {
	k, s, x := c.kernels, c.Stream, c.In[0]
	mask, err := c.New(device.Uint8, x.Shape...)
	if err != nil {
		return err
	}
	if err := k.Compare(s, kernels.Equal, mask, x, c.Out); err != nil {
		return err
	}
	share, err := c.New(x.DType, g.Shape...)
	if err != nil {
		return err
	}
	return c.accumulateOf(dst, acc, x.Shape, func(t device.Tensor) error {
		if err := k.Copy(s, t, mask); err != nil {
			return err
		}
		if err := k.Sum(s, share, device.Store, t); err != nil {
			return err
		}
		if err := k.Binary(s, kernels.Div, share, g, share); err != nil {
			return err
		}
		return k.Binary(s, kernels.Mul, t, t, share)
	})
}

// ArgMax returns the int64 indices of the largest elements of x along an axis, without that axis. A
// negative axis counts from the end. Among equal elements the first counts; NaN counts as larger than
// any number. The result has no gradient.
func ArgMax(x *Variable, axis int) *Variable {
	return Apply(argExtreme{"ArgMax", kernels.Largest, axisOf("ArgMax", axis, x.t.Shape)}, x.Detach())
}

// ArgMin is [ArgMax] for the smallest elements.
func ArgMin(x *Variable, axis int) *Variable {
	return Apply(argExtreme{"ArgMin", kernels.Smallest, axisOf("ArgMin", axis, x.t.Shape)}, x.Detach())
}

type argExtreme struct {
	name  string
	which kernels.Extreme
	axis  int
}

func (f argExtreme) Name() string { return f.name }

func (f argExtreme) Shape(in []device.Shape) device.Shape {
	return slices.Delete(slices.Clone(in[0]), f.axis, f.axis+1)
}

func (argExtreme) dtype() device.DType { return device.Int64 }

func (f argExtreme) Forward(c *Call) error {
	shape := c.In[0].Shape
	outer, n, inner := shape[:f.axis].Len(), shape[f.axis], shape[f.axis+1:].Len()
	return c.kernels.FindExtreme(c.Stream, f.which, device.Tensor{}, c.Out.Reshape(outer, inner), c.In[0].Reshape(outer, n, inner))
}

// Backward is never called: the input is detached.
func (argExtreme) Backward(*Call, int, device.Tensor, device.Accum, device.Tensor) error { return nil }
