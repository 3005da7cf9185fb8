package kernels

import "github.com/goddp/goddp/device"

// SwiGLU contains the kernels of SiLU(gate)·up. All operands have the same shape.
type SwiGLU interface {
	// SwiGLU computes dst = SiLU(gate)·up.
	SwiGLU(s device.Stream, dst, gate, up device.Tensor) error
	// SwiGLUGrad accumulates the gradients of gate and up into their destinations, given g, the gradient of the
	// result.
	SwiGLUGrad(s device.Stream, to SwiGLUGrads, g, gate, up device.Tensor) error
}

// SwiGLUGrads are the destinations of the gradients of a SwiGLU. The gradient whose tensor is the zero Tensor is not
// computed.
type SwiGLUGrads struct {
	Gate, Up       device.Tensor
	AccGate, AccUp device.Accum
}
