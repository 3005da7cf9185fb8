package nn

import "github.com/goddp/goddp/autograd"

// activation is a layer without parameters. It computes a function of its input.
type activation func(x *autograd.Variable) *autograd.Variable

func (f activation) Forward(x *autograd.Variable) *autograd.Variable { return f(x) }
func (activation) Parameters() []*Parameter                          { return nil }

// ReLU is a layer that computes max(x, 0).
func ReLU() Module { return relu{} }

// relu is a separate type so that [Sequential] can fuse a ReLU into a Linear or a BatchNorm.
type relu struct{}

func (relu) Forward(x *autograd.Variable) *autograd.Variable { return autograd.ReLU(x) }
func (relu) Parameters() []*Parameter                        { return nil }

// GELU is a layer that computes x·Φ(x), where Φ is the normal distribution function: PyTorch's default.
func GELU() Module { return gelu{} }

// GELUTanh is a layer that computes the tanh approximation of GELU: PyTorch's approximate="tanh". Use it
// for models that were trained with it. See [autograd.GELUTanh].
func GELUTanh() Module { return gelu{tanh: true} }

// gelu is a separate type so that [FeedForward] and [Sequential] can fuse a GELU between two Linears.
type gelu struct{ tanh bool }

func (g gelu) Forward(x *autograd.Variable) *autograd.Variable {
	if g.tanh {
		return autograd.GELUTanh(x)
	}
	return autograd.GELU(x)
}

func (gelu) Parameters() []*Parameter { return nil }

// Tanh is a layer that computes the hyperbolic tangent.
func Tanh() Module { return activation(autograd.Tanh) }

// Sigmoid is a layer that computes 1/(1+e^-x).
func Sigmoid() Module { return activation(autograd.Sigmoid) }

// LogSigmoid is a layer that computes log(1/(1+e^-x)).
func LogSigmoid() Module { return activation(autograd.LogSigmoid) }

// SiLU is a layer that computes x/(1+e^-x).
func SiLU() Module { return activation(autograd.SiLU) }

// LeakyReLU is a layer that computes x for x > 0, and slope·x otherwise. PyTorch's default slope is 0.01.
func LeakyReLU(slope float64) Module {
	return activation(func(x *autograd.Variable) *autograd.Variable { return autograd.LeakyReLU(x, slope) })
}

// ELU is a layer that computes x for x > 0, and alpha·(e^x - 1) otherwise. PyTorch's default alpha is 1.
func ELU(alpha float64) Module {
	return activation(func(x *autograd.Variable) *autograd.Variable { return autograd.ELU(x, alpha) })
}

// Softplus is a layer that computes log(1 + e^(beta·x))/beta, and x where beta·x > 20. PyTorch's default
// beta is 1.
func Softplus(beta float64) Module {
	return activation(func(x *autograd.Variable) *autograd.Variable { return autograd.Softplus(x, beta, 20) })
}

// Softmax is a layer that computes e^x divided by its sum along an axis. A negative axis counts from the
// end.
func Softmax(axis int) Module {
	return activation(func(x *autograd.Variable) *autograd.Variable { return autograd.Softmax(x, axis) })
}

// LogSoftmax is a layer that computes the logarithm of Softmax.
func LogSoftmax(axis int) Module {
	return activation(func(x *autograd.Variable) *autograd.Variable { return autograd.LogSoftmax(x, axis) })
}
