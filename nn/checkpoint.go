package nn

import "github.com/goddp/goddp/autograd"

// Checkpoint is m, which keeps none of its intermediates for the backward pass
// but computes them again there: see [autograd.Checkpoint]. Its parameters and
// buffers are m's, by m's names, so that a state fits with it and without. A module of
// a program's own that changes a buffer as it is applied is applied twice; those of
// this package change it once.
func Checkpoint(m Module) Module { return checkpoint{wrapper{m}} }

type checkpoint struct{ wrapper }

func (c checkpoint) Forward(x *autograd.Variable) *autograd.Variable {
	return autograd.Checkpoint(c.Module.Forward, x)
}
