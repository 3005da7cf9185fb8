package nn

import (
	"math"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
)

// LinearOptions are the choices of [Linear]; the zero value is the good
// default.
type LinearOptions struct {
	// NoBias leaves the bias out.
	NoBias bool
	// DType is the parameters' type; Invalid is Float32.
	DType device.DType
	// Compute is the type that products are computed in, and the result's: the
	// parameters are converted to it in every forward pass, and their gradients
	// back. Invalid is the parameters' type.
	Compute device.DType
}

// LinearLayer computes x·Weightᵀ + Bias: see [Linear].
type LinearLayer struct {
	Weight *Parameter // [out in]
	Bias   *Parameter // [out], or nil

	compute device.DType // Invalid: the weight's type
}

// Linear is a layer with x [... in], of any floating-point type, to [... out], of
// the type that it computes in. Weight and bias begin
// uniformly within ±1/√in, as PyTorch's do; without an input the bias begins at
// zero. opts is nothing, or one.
func Linear(in, out int, opts ...LinearOptions) *LinearLayer {
	var o LinearOptions
	if len(opts) > 0 {
		o = opts[0]
	}
	if o.DType == device.Invalid {
		o.DType = device.Float32
	}
	init := Constant(0)
	if in > 0 {
		bound := 1 / math.Sqrt(float64(in))
		init = Uniform(-bound, bound)
	}
	l := &LinearLayer{Weight: NewUnplacedParameter("weight", init, o.DType, out, in), compute: o.Compute}
	if !o.NoBias {
		l.Bias = NewUnplacedParameter("bias", init, o.DType, out)
	}
	return l
}

// Forward applies the layer to x [... in].
func (l *LinearLayer) Forward(x *autograd.Variable) *autograd.Variable {
	return l.forward(x, autograd.Linear)
}

// forward applies compute, which is autograd.Linear or autograd.LinearReLU.
func (l *LinearLayer) forward(x *autograd.Variable, compute func(x, w, bias *autograd.Variable) *autograd.Variable) *autograd.Variable {
	dt := l.compute
	if dt == device.Invalid {
		dt = l.Weight.DType()
	}
	weight := autograd.Cast(l.Weight.Var(), dt)
	var bias *autograd.Variable
	if l.Bias != nil {
		bias = autograd.Cast(l.Bias.Var(), dt)
	}
	return compute(autograd.Cast(x, dt), weight, bias)
}

// Parameters are "weight" and, unless there is none, "bias".
func (l *LinearLayer) Parameters() []*Parameter {
	if l.Bias == nil {
		return []*Parameter{l.Weight}
	}
	return []*Parameter{l.Weight, l.Bias}
}
