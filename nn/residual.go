package nn

import "github.com/goddp/goddp/autograd"

// Residual is a module that computes x + m(x). Parameters and buffers keep m's names.
func Residual(m Module) Module { return residual{wrapper{m}} }

type residual struct{ wrapper }

func (r residual) Forward(x *autograd.Variable) *autograd.Variable {
	return autograd.Add(x, r.Module.Forward(x))
}

// wrapper is a module around another module. Parameters, buffers and mode are the inner module's.
type wrapper struct{ Module }

func (w wrapper) Buffers() []*Buffer    { return Buffers(w.Module) }
func (w wrapper) SetTraining(on bool)   { setTraining(w.Module, on) }
func (w wrapper) wrapped() Module       { return w.Module }
func (w wrapper) container() *Container { return containerOf(w.Module) }
