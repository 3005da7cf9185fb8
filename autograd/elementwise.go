package autograd

import (
	"math"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

// Add returns x + y. Both are broadcast to one shape.
func Add(x, y *Variable) *Variable { return Apply(binary(kernels.Add), x, y) }

// Sub returns x - y. Both are broadcast to one shape.
func Sub(x, y *Variable) *Variable { return Apply(binary(kernels.Sub), x, y) }

// Mul returns x · y, element by element. Both are broadcast to one shape.
func Mul(x, y *Variable) *Variable { return Apply(binary(kernels.Mul), x, y) }

// Div returns x / y. Both are broadcast to one shape.
func Div(x, y *Variable) *Variable { return Apply(binary(kernels.Div), x, y) }

// MulScalar returns x times a constant.
func MulScalar(x *Variable, by float64) *Variable { return Apply(scale(by), x) }

// Neg returns -x.
func Neg(x *Variable) *Variable { return Apply(unary(kernels.Neg), x) }

// Exp returns e to the power of x.
func Exp(x *Variable) *Variable { return Apply(unary(kernels.Exp), x) }

// Log returns the natural logarithm of x.
func Log(x *Variable) *Variable { return Apply(unary(kernels.Log), x) }

// Sqrt returns the square root of x.
func Sqrt(x *Variable) *Variable { return Apply(unary(kernels.Sqrt), x) }

// Tanh returns the hyperbolic tangent of x.
func Tanh(x *Variable) *Variable { return Apply(unary(kernels.Tanh), x) }

// Sigmoid returns 1/(1+e^-x).
func Sigmoid(x *Variable) *Variable { return Apply(unary(kernels.Sigmoid), x) }

// ReLU returns max(x, 0). Its derivative at 0 is 0.
func ReLU(x *Variable) *Variable { return Apply(unary(kernels.ReLU), x) }

// GELU returns the Gaussian error linear unit x·Φ(x), where Φ is the normal distribution function.
func GELU(x *Variable) *Variable { return Apply(unary(kernels.GELU), x) }

// GELUTanh approximates [GELU] by x·(1 + tanh(√(2/π)·(x + 0.044715·x³)))/2, with an error of at most
// 0.0005. Use it for models that were trained with it.
func GELUTanh(x *Variable) *Variable { return Apply(unary(kernels.GELUTanh), x) }

// Abs returns the magnitude of x. Its derivative at 0 is 0.
func Abs(x *Variable) *Variable { return Apply(unary(kernels.Abs), x) }

// Rsqrt returns 1/√x.
func Rsqrt(x *Variable) *Variable { return Apply(unary(kernels.Rsqrt), x) }

// Sin returns the sine of x.
func Sin(x *Variable) *Variable { return Apply(unary(kernels.Sin), x) }

// Cos returns the cosine of x.
func Cos(x *Variable) *Variable { return Apply(unary(kernels.Cos), x) }

// SiLU returns x·Sigmoid(x), also known as swish.
func SiLU(x *Variable) *Variable { return Apply(unary(kernels.SiLU), x) }

// AddScalar returns x plus a constant.
func AddScalar(x *Variable, a float64) *Variable { return Apply(unary(kernels.AddScalar(a)), x) }

// Pow returns x to the power of a constant. Its derivative is exponent·x^(exponent-1), and 0 for the
// exponent 0.
func Pow(x *Variable, exponent float64) *Variable { return Apply(unary(kernels.Pow(exponent)), x) }

// Clamp limits x to the range lo to hi; a bound may be infinite. Its derivative is 1 within the range,
// including the bounds, and 0 outside. If lo > hi, the result is hi.
func Clamp(x *Variable, lo, hi float64) *Variable { return Apply(unary(kernels.Clamp(lo, hi)), x) }

// LeakyReLU returns x where x > 0, and slope·x elsewhere.
func LeakyReLU(x *Variable, slope float64) *Variable {
	return Apply(unary(kernels.LeakyReLU(slope)), x)
}

// ELU returns x where x > 0, and alpha·(e^x - 1) elsewhere.
func ELU(x *Variable, alpha float64) *Variable { return Apply(unary(kernels.ELU(alpha)), x) }

// Softplus returns log(1 + e^(beta·x))/beta, and x where beta·x > threshold, which may be infinite.
// PyTorch's defaults are 1 and 20.
func Softplus(x *Variable, beta, threshold float64) *Variable {
	return Apply(unary(kernels.Softplus(beta, threshold)), x)
}

// LogSigmoid returns log(Sigmoid(x)).
func LogSigmoid(x *Variable) *Variable { return Neg(Softplus(Neg(x), 1, math.Inf(1))) }

// unary is an elementwise function of one input.
type unary kernels.UnaryOp

func (f unary) Name() string { return kernels.UnaryOp(f).String() }

func (unary) Shape(in []device.Shape) device.Shape { return in[0] }

// Saves follows [kernels.UnaryOp].Given.
func (f unary) Saves(_, j int) bool {
	switch kernels.UnaryOp(f).Given() {
	case kernels.GivenX:
		return j == 0
	case kernels.GivenY:
		return j == Output
	}
	return false
}

func (f unary) Forward(c *Call) error {
	return c.kernels.Unary(c.Stream, kernels.UnaryOp(f), c.Out, c.In[0])
}

func (f unary) recompute(c *Call) error { return f.Forward(c) }

func (f unary) Backward(c *Call, _ int, dst device.Tensor, acc device.Accum, g device.Tensor) error {
	return c.kernels.UnaryGrad(c.Stream, kernels.UnaryOp(f), dst, acc, g, c.In[0], c.Out)
}

// scale is multiplication by a constant.
type scale float64

func (scale) Name() string { return "MulScalar" }

func (scale) Shape(in []device.Shape) device.Shape { return in[0] }

func (scale) Saves(_, _ int) bool { return false }

func (f scale) Forward(c *Call) error {
	return c.kernels.Axpby(c.Stream, c.Out, device.Accum{Alpha: float64(f)}, c.In[0])
}

func (f scale) Backward(c *Call, _ int, dst device.Tensor, acc device.Accum, g device.Tensor) error {
	acc.Alpha *= float64(f)
	return c.kernels.Axpby(c.Stream, dst, acc, g)
}

// binary is an elementwise function of two inputs.
type binary kernels.BinaryOp

func (f binary) Name() string { return kernels.BinaryOp(f).String() }

func (f binary) Shape(in []device.Shape) device.Shape {
	return kernels.Broadcast(f.Name(), in[0], in[1])
}

func (f binary) Saves(i, j int) bool {
	switch kernels.BinaryOp(f) {
	case kernels.Mul:
		return j == 1-i
	case kernels.Div:
		return j == 1 || i == 1 && j == Output
	}
	return false
}

func (f binary) Forward(c *Call) error {
	return c.kernels.Binary(c.Stream, kernels.BinaryOp(f), c.Out, c.In[0], c.In[1])
}

func (f binary) Backward(c *Call, i int, dst device.Tensor, acc device.Accum, g device.Tensor) error {
	k, s := c.kernels, c.Stream
	other := c.In[1-i]
	if i == 1 && (kernels.BinaryOp(f) == kernels.Sub || kernels.BinaryOp(f) == kernels.Div) {
		acc.Alpha = -acc.Alpha
	}
	switch {
	case kernels.BinaryOp(f) == kernels.Add || kernels.BinaryOp(f) == kernels.Sub:
		return c.accumulate(dst, acc, g)
	case kernels.BinaryOp(f) == kernels.Mul:
		return c.accumulateOf(dst, acc, g.Shape, func(t device.Tensor) error {
			return k.Binary(s, kernels.Mul, t, g, other)
		})
	case i == 0: // d(x/y)/dx = 1/y
		return c.accumulateOf(dst, acc, g.Shape, func(t device.Tensor) error {
			return k.Binary(s, kernels.Div, t, g, other)
		})
	default: // d(x/y)/dy = -(x/y)/y
		return c.accumulateOf(dst, acc, g.Shape, func(t device.Tensor) error {
			if err := k.Binary(s, kernels.Mul, t, g, c.Out); err != nil {
				return err
			}
			return k.Binary(s, kernels.Div, t, t, c.In[1])
		})
	}
}

// passes reports whether the gradient of input i is the gradient of the result. This is so for the terms of a sum, and
// for the first operand of a difference, unless they are broadcast.
func (f binary) passes(c *Call, i int) bool {
	adds := kernels.BinaryOp(f) == kernels.Add || kernels.BinaryOp(f) == kernels.Sub && i == 0
	return adds && c.In[i].Shape.Equal(c.Out.Shape)
}

// accumulate accumulates g into dst. It sums over the axes along which dst's operand was broadcast.
func (c *Call) accumulate(dst device.Tensor, acc device.Accum, g device.Tensor) error {
	if dst.Shape.Equal(g.Shape) {
		return c.kernels.Axpby(c.Stream, dst, acc, g)
	}
	return c.kernels.Sum(c.Stream, dst, acc, g)
}

// accumulateOf accumulates the result of f into dst. The result has the given shape, and f can only overwrite
// a tensor. If possible, accumulateOf lets f write dst itself, and otherwise a temporary tensor.
func (c *Call) accumulateOf(dst device.Tensor, acc device.Accum, shape device.Shape, f func(device.Tensor) error) error {
	if acc == device.Store && dst.Shape.Equal(shape) {
		return f(dst)
	}
	t, err := c.New(dst.DType, shape...)
	if err != nil {
		return err
	}
	if err := f(t); err != nil {
		return err
	}
	return c.accumulate(dst, acc, t)
}
