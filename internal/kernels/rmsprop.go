package kernels

import "github.com/goddp/goddp/device"

// RMSProp is the update rule of that name.
type RMSProp interface {
	// RMSProp makes one step of RMSProp in place, by the rule of PyTorch's optimizer:
	// see [RMSPropStep].
	RMSProp(s device.Stream, p RMSPropStep) error
}

// RMSPropStep is one step of RMSProp on one parameter (Tieleman and Hinton, "Lecture
// 6.5", 2012):
//
//	g = Grad/LossScale + WeightDecay·Param
//	Square = Alpha·Square + (1-Alpha)·g²
//	Centered:       Mean = Alpha·Mean + (1-Alpha)·g
//	                d = g / (√(Square - Mean²) + Eps)
//	otherwise:      d = g / (√Square + Eps)
//	Momentum != 0:  Velocity = Momentum·Velocity + d
//	                Param -= LR·Velocity
//	otherwise:      Param -= LR·d
//
// It is the update rule of torch.optim.RMSprop. Square, Mean and Velocity begin as
// zeros. Every device makes it in all floating-point types; Param, Grad and these are of
// one.
//
// Master, Skip and Overflow are what they are in [SGDStep]: with a Master, Square, Mean
// and Velocity are Float32, and Grad is of Param's type or Float32.
type RMSPropStep struct {
	Param, Grad, Square      device.Tensor
	Mean, Velocity           device.Tensor // not there unless Centered, and without momentum
	Master                   device.Tensor // Float32, or not there
	LR, Alpha, Eps, Momentum float64
	WeightDecay              float64
	LossScale                float64 // what the loss was multiplied by; 0: nothing
	Centered                 bool
	Skip, Overflow           device.Tensor // bytes, Uint8, or not there
}

// Unscale is what LossScale has Grad multiplied by.
func (p *RMSPropStep) Unscale() float64 {
	if p.LossScale == 0 {
		return 1
	}
	return 1 / p.LossScale
}
