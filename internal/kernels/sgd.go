package kernels

import "github.com/goddp/goddp/device"

// SGDStep is one step of stochastic gradient descent on one parameter:
//
//	d = Grad/LossScale + WeightDecay·Param
//	Momentum != 0:  v = d on the first step, else Momentum·v + (1-Dampening)·d
//	                d = Nesterov ? d + Momentum·v : v
//	Param -= LR·d
//
// It is the update rule of torch.optim.SGD. Every device makes it in all
// floating-point types; Param, Grad and Velocity are of one.
//
// A Master is what a Param of a 16-bit type is the rounding of: the rule is
// applied to the Master, in Float32, and Param then becomes what rounds it. Small
// steps add up there that each alone would be lost in Param. Velocity is Float32
// then too, and Grad of Param's type or Float32.
//
// Where any byte of Skip or of Overflow is not zero nothing is written: a
// gradient that some rank could not make, or that is not finite, must not be
// applied, and the host need not wait to know.
type SGDStep struct {
	Param, Grad, Velocity   device.Tensor // Velocity is not there without momentum
	Master                  device.Tensor // Float32, or not there
	LR, Momentum, Dampening float64
	WeightDecay             float64
	LossScale               float64 // what the loss was multiplied by; 0: nothing
	Nesterov, First         bool
	Skip, Overflow          device.Tensor // bytes, Uint8, or not there
}

// Unscale is what LossScale has Grad multiplied by.
func (p *SGDStep) Unscale() float64 {
	if p.LossScale == 0 {
		return 1
	}
	return 1 / p.LossScale
}
