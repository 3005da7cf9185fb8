package nn

import "github.com/goddp/goddp/autograd"

// ReLU is a layer that computes max(x, 0).
func ReLU() Module { return relu{} }

type relu struct{}

func (relu) Forward(x *autograd.Variable) *autograd.Variable { return autograd.ReLU(x) }
func (relu) Parameters() []*Parameter                        { return nil }

// GELU is a layer that computes x·Φ(x), where Φ is the normal distribution
// function, as PyTorch's does by default.
func GELU() Module { return gelu(autograd.GELU) }

// GELUTanh is GELU approximated by a tanh, for models that were trained with
// it: PyTorch's with approximate="tanh". See [autograd.GELUTanh].
func GELUTanh() Module { return gelu(autograd.GELUTanh) }

type gelu func(x *autograd.Variable) *autograd.Variable

func (f gelu) Forward(x *autograd.Variable) *autograd.Variable { return f(x) }
func (gelu) Parameters() []*Parameter                          { return nil }
