package nn

import "github.com/goddp/goddp/autograd"

// Checkpoint wraps m so that its intermediate results are not kept but recomputed in the backward pass:
// see [autograd.Checkpoint]. Parameters and buffers keep their names, so a state loads with and without
// Checkpoint. A custom module that updates a buffer in Forward updates it twice; the modules of this
// package update buffers once.
func Checkpoint(m Module) Module { return checkpoint{wrapper{m}} }

type checkpoint struct{ wrapper }

func (c checkpoint) Forward(x *autograd.Variable) *autograd.Variable {
	return autograd.Checkpoint(c.Module.Forward, x)
}
