package nn

import "github.com/goddp/goddp/autograd"

// Checkpoint is m, which keeps none of its intermediates for the backward pass
// but computes them again there: see [autograd.Checkpoint]. Its parameters and
// buffers are m's, by m's names, so that a state fits with it and without. No
// layer of this package draws random numbers, or changes a buffer, when it is
// applied; a module of a program's own that does is applied twice.
func Checkpoint(m Module) Module { return checkpoint{m} }

type checkpoint struct{ Module }

func (c checkpoint) Forward(x *autograd.Variable) *autograd.Variable {
	return autograd.Checkpoint(c.Module.Forward, x)
}

func (c checkpoint) Buffers() []*Buffer { return Buffers(c.Module) }
