package nn

import (
	"cmp"
	"math"
	"slices"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
)

// LinearOptions are the choices of [Linear].
type LinearOptions struct {
	// NoBias omits the bias.
	NoBias bool
	// DType is the type of the parameters; Invalid means Float32.
	DType device.DType
	// Compute is the type of the products and of the result. Every forward pass converts the
	// parameters to it, and their gradients back. Invalid means the parameters' type.
	Compute device.DType
}

// LinearLayer computes x·Weightᵀ + Bias: see [Linear].
type LinearLayer struct {
	Weight *Parameter // [out in]
	Bias   *Parameter // [out], or nil
	// LowRank is an adapter of the weight, or nil.
	LowRank *LowRank

	compute device.DType // Invalid means the weight's type
}

// Linear is a layer that maps x [... in], of any floating-point type, to [... out]. Weight and bias
// start uniformly distributed in ±1/√in, as in PyTorch; with in = 0 the bias starts at zero.
func Linear(in, out int, opts *LinearOptions) *LinearLayer {
	o := *cmp.Or(opts, &LinearOptions{})
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
	weight, bias := l.parameters()
	x = autograd.Cast(x, l.computeType())
	if l.LowRank != nil {
		return l.LowRank.forward(x, weight, bias)
	}
	return autograd.Linear(x, weight, bias)
}

// Linears applies layers to one operand x [... in], as Forward of each does. One kernel may compute the results of all, if
// the layers have no adapters and x has the type in which they compute.
func Linears(x *autograd.Variable, layers ...*LinearLayer) []*autograd.Variable {
	var weights, biases, out []*autograd.Variable
	if slices.ContainsFunc(layers, func(l *LinearLayer) bool { return l.LowRank != nil || l.computeType() != x.DType() }) {
		for _, l := range layers {
			out = append(out, l.Forward(x))
		}
		return out
	}
	for _, l := range layers {
		w, b := l.parameters()
		weights, biases = append(weights, w), append(biases, b)
	}
	return autograd.Linears(x, weights, biases)
}

// computeType returns the type of the products and of the result.
func (l *LinearLayer) computeType() device.DType {
	if l.compute == device.Invalid {
		return l.Weight.DType()
	}
	return l.compute
}

// parameters returns the weight and the bias, or nil for an absent bias, in the layer's compute type.
func (l *LinearLayer) parameters() (weight, bias *autograd.Variable) {
	weight = autograd.Cast(l.Weight.Var(), l.computeType())
	if l.Bias != nil {
		bias = autograd.Cast(l.Bias.Var(), l.computeType())
	}
	return weight, bias
}

// Parameters returns "weight" and, if they are there, "bias" and the adapter's "lora_A.weight" and "lora_B.weight".
func (l *LinearLayer) Parameters() []*Parameter {
	all := []*Parameter{l.Weight}
	if l.Bias != nil {
		all = append(all, l.Bias)
	}
	if l.LowRank != nil {
		all = append(all, l.LowRank.A, l.LowRank.B)
	}
	return all
}
