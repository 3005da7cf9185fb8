package nn

import "github.com/goddp/goddp/autograd"

// Checkpoint is m without its intermediate results: the backward pass computes them again. See
// [autograd.Checkpoint]. It has m's parameters and buffers by m's names, so a state fits with and without
// Checkpoint. A program's own module that updates a buffer in Forward updates it twice; the modules of
// this package update buffers once.
func Checkpoint(m Module) Module { return checkpoint{wrapper{m}} }

type checkpoint struct{ wrapper }

func (c checkpoint) Forward(x *autograd.Variable) *autograd.Variable {
	return autograd.Checkpoint(c.Module.Forward, x)
}
