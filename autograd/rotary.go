package autograd

import (
	"math"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

// RotaryOptions are the choices of [Rotary].
type RotaryOptions struct {
	// Heads is the number of heads that are rotated, from the first head of a row on; the other heads are
	// copied. 0 means all heads. With Heads, one call rotates the queries and keys of a packed projection.
	Heads int
	// Interleaved pairs neighbouring elements, as the RoFormer paper does. Otherwise element i
	// of the first half is paired with element i of the second half, as in Llama and GPT-NeoX.
	Interleaved bool
}

// RotaryAngles returns the cosines and sines [rows size/2] for [Rotary] with heads of size elements of
// type dt. Row t rotates pair i by the angle t·base^(-2i/size).
func RotaryAngles(dev device.Device, dt device.DType, rows, size int, base float64) (cos, sin *Variable) {
	pairs := size / 2
	var c, s []float64
	for at := range rows * pairs {
		y, x := math.Sincos(float64(at/pairs) * math.Pow(base, -2*float64(at%pairs)/float64(size)))
		c, s = append(c, x), append(s, y)
	}
	if dt == device.Float64 {
		return FromSlice(dev, c, rows, pairs), FromSlice(dev, s, rows, pairs)
	}
	narrow := func(v []float64) *Variable {
		f := make([]float32, len(v))
		for i := range v {
			f[i] = float32(v[i])
		}
		return FromSlice(dev, f, rows, pairs)
	}
	return narrow(c), narrow(s)
}

// Rotary applies a rotary position embedding to x [B T N D]. In row t it rotates pairs of the first
// elements of each head by the angles of row t. The number of pairs is the number of columns of cos and
// sin [T or more, W], which [RotaryAngles] returns. cos and sin are of Float64 if x is of Float64, else
// of Float32; they get no gradient.
func Rotary(x, cos, sin *Variable, opts *RotaryOptions) *Variable {
	f := &rotary{cos: cos.Tensor(), sin: sin.Tensor(), angles: [2]*Variable{cos, sin}}
	if opts != nil {
		f.RotaryOptions = *opts
	}
	return Apply(f, x)
}

// RotaryBoth applies [Rotary] to all heads of x and of y, which have equal numbers of rows. One kernel may compute both.
func RotaryBoth(x, y, cos, sin *Variable) (rotatedX, rotatedY *Variable) {
	if x.hasSource() {
		return Rotary(x, cos, sin, nil), Rotary(y, cos, sin, nil)
	}
	f := rotary{cos: cos.Tensor(), sin: sin.Tensor(), angles: [2]*Variable{cos, sin}}
	first, second := &laterRotary{rotary: f}, &jointRotary{rotary: f}
	rotatedX = Apply(first, x)
	if rotatedX.Err() != nil {
		return rotatedX, Apply(&f, y)
	}
	second.x, second.dst = x.t, rotatedX.t
	rotatedY = Apply(second, y)
	if rotatedX.mem.err == nil {
		rotatedX.mem.err = rotatedY.mem.err
	}
	return rotatedX, rotatedY
}

// laterRotary is a rotary whose result the jointRotary that follows computes.
type laterRotary struct{ rotary }

func (*laterRotary) Forward(*Call) error { return nil }

type jointRotary struct {
	rotary
	dst, x device.Tensor // of the laterRotary
}

func (f *jointRotary) Forward(c *Call) error {
	return c.kernels.RotateBoth(c.Stream, [2]device.Tensor{f.dst, c.Out}, [2]device.Tensor{f.x, c.In[0]}, f.cos, f.sin)
}

type rotary struct {
	RotaryOptions
	cos, sin device.Tensor
	angles   [2]*Variable // keeps the memory of cos and sin reachable
}

func (*rotary) Name() string { return "Rotary" }

func (f *rotary) Shape(in []device.Shape) device.Shape {
	x, angles := in[0], f.cos.Shape
	if len(x) != 4 || len(angles) != 2 || !f.sin.Shape.Equal(angles) || angles[0] < x[1] || 2*angles[1] > x[3] || f.Heads > x[2] {
		panic(&device.ShapeError{Op: f.Name(), A: x, B: angles})
	}
	return x
}

func (*rotary) Saves(_, _ int) bool { return false }

func (f *rotary) rotation(heads int) kernels.Rotation {
	r := kernels.Rotation{Cos: f.cos, Sin: f.sin, Heads: f.Heads, Interleaved: f.Interleaved}
	if r.Heads == 0 {
		r.Heads = heads
	}
	return r
}

func (f *rotary) Forward(c *Call) error {
	return c.kernels.Rotate(c.Stream, c.Out, device.Store, c.In[0], f.rotation(c.Out.Shape[2]))
}

// Backward rotates the gradient in the inverse direction.
func (f *rotary) Backward(c *Call, _ int, dst device.Tensor, acc device.Accum, g device.Tensor) error {
	r := f.rotation(g.Shape[2])
	r.Inverse = true
	return c.kernels.Rotate(c.Stream, dst, acc, g, r)
}
