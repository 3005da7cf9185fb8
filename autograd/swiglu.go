package autograd

import (
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

// SwiGLU returns SiLU(gate)·up, element by element, for operands of one shape: the gated unit of Llama's feed-forward
// network (Shazeer, "GLU variants improve Transformer", 2020). For the backward pass it keeps only its operands.
func SwiGLU(gate, up *Variable) *Variable { return Apply(swiGLU{}, gate, up) }

type swiGLU struct{}

func (swiGLU) Name() string { return "SwiGLU" }

func (swiGLU) Shape(in []device.Shape) device.Shape {
	if !in[0].Equal(in[1]) {
		panic(&device.ShapeError{Op: "SwiGLU", A: in[0], B: in[1]})
	}
	return in[0]
}

// Saves reports that the gradient of up does not read up, and that no gradient reads the result.
func (swiGLU) Saves(i, j int) bool { return j == 0 || i == 0 && j == 1 }

func (swiGLU) Forward(c *Call) error { return c.kernels.SwiGLU(c.Stream, c.Out, c.In[0], c.In[1]) }

func (f swiGLU) recompute(c *Call) error { return f.Forward(c) }

func (f swiGLU) Backward(c *Call, i int, dst device.Tensor, acc device.Accum, g device.Tensor) error {
	var dsts [3]device.Tensor
	var accs [3]device.Accum
	dsts[i], accs[i] = dst, acc
	return f.backwardJoint(c, dsts, accs, g)
}

// firstJoint returns 0, the index of gate: the gradients of gate and up are computed together.
func (swiGLU) firstJoint() int { return 0 }

func (swiGLU) backwardJoint(c *Call, dst [3]device.Tensor, acc [3]device.Accum, g device.Tensor) error {
	to := kernels.SwiGLUGrads{Gate: dst[0], Up: dst[1], AccGate: acc[0], AccUp: acc[1]}
	return c.kernels.SwiGLUGrad(c.Stream, to, g, c.In[0], c.In[1])
}
