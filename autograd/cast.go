package autograd

import "github.com/goddp/goddp/device"

// Cast converts x to another floating-point type; each element is rounded to nearest. It returns x
// itself if x has that type. The result has x's name. The gradient of x has x's type. Cast panics with
// a [*device.DTypeError] if one of the types is not a floating-point type.
func Cast(x *Variable, dt device.DType) *Variable {
	for _, t := range []device.DType{x.t.DType, dt} {
		if !t.IsFloat() {
			panic(&device.DTypeError{Op: "Cast", Got: t, Want: device.Float32})
		}
	}
	if x.t.DType == dt {
		return x
	}
	return Apply(cast(dt), x).SetName(x.name)
}

type cast device.DType

func (cast) Name() string { return "Cast" }

func (cast) Shape(in []device.Shape) device.Shape { return in[0] }

func (f cast) dtype() device.DType { return device.DType(f) }

func (cast) Saves(_, _ int) bool { return false }

func (cast) Forward(c *Call) error { return c.kernels.Copy(c.Stream, c.Out, c.In[0]) }

// Backward rounds once, at the end. It adds to the content of dst and applies factors in float32, or in
// float64 if one of the types is float64.
func (cast) Backward(c *Call, _ int, dst device.Tensor, acc device.Accum, g device.Tensor) error {
	k, s := c.kernels, c.Stream
	if acc == device.Store {
		return k.Copy(s, dst, g)
	}
	dt := device.Float32
	if dst.DType == device.Float64 || g.DType == device.Float64 {
		dt = device.Float64
	}
	value, err := c.in(dt, g)
	if err != nil {
		return err
	}
	if dst.DType == dt {
		return k.Axpby(s, dst, acc, value)
	}
	sum, err := c.New(dt, dst.Shape...)
	if err != nil {
		return err
	}
	if acc.Beta != 0 {
		if err := k.Copy(s, sum, dst); err != nil {
			return err
		}
	}
	if err := k.Axpby(s, sum, acc, value); err != nil {
		return err
	}
	return k.Copy(s, dst, sum)
}

// in converts t to the type dt. If t has that type already, in returns t itself.
func (c *Call) in(dt device.DType, t device.Tensor) (device.Tensor, error) {
	if t.DType == dt {
		return t, nil
	}
	out, err := c.New(dt, t.Shape...)
	if err != nil {
		return out, err
	}
	return out, c.kernels.Copy(c.Stream, out, t)
}
