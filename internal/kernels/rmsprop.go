package kernels

import "github.com/goddp/goddp/device"

// RMSProp contains the kernel of RMSProp.
type RMSProp interface {
	// RMSProp is like Kernels.SGD, for steps of RMSProp: see [RMSPropStep].
	RMSProp(s device.Stream, steps ...RMSPropStep) error
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
// It is the update rule of torch.optim.RMSprop. Square, Mean and Velocity start as zeros. Every
// device computes it in all floating-point types. All tensors have the same type.
//
// Master, Skip, Overflow and At are as in [SGDStep]. With a Master, Square, Mean and Velocity are
// Float32, and Grad is of Param's type or Float32.
type RMSPropStep struct {
	Param, Grad, Square      device.Tensor
	Mean, Velocity           device.Tensor // Mean is absent unless Centered, Velocity is absent without momentum
	Master                   device.Tensor // Float32, or absent
	LR, Alpha, Eps, Momentum float64
	WeightDecay              float64
	LossScale                float64 // the loss scale; 0 means 1
	Centered                 bool
	Skip, Overflow           device.Tensor // Uint8, or absent
	At                       device.Tensor // Float64, or absent
}

// Numbers returns the numbers that may change from step to step: LR, and the factor that undoes LossScale.
func (p *RMSPropStep) Numbers() [2]float64 { return [...]float64{p.LR, unscale(p.LossScale)} }

// Update returns the step as an Update. Its Numbers are LR, the factor that undoes LossScale, Alpha, 1-Alpha, Eps,
// Momentum and WeightDecay.
func (p *RMSPropStep) Update() Update {
	n := p.Numbers()
	return Update{
		Op: "RMSProp", Param: &p.Param, Grad: &p.Grad, Master: &p.Master, Skip: &p.Skip, Overflow: &p.Overflow, At: &p.At,
		State:   [3]*device.Tensor{&p.Square, kept(&p.Mean, p.Centered), kept(&p.Velocity, p.Momentum != 0)},
		Numbers: [11]float64{n[0], n[1], p.Alpha, 1 - p.Alpha, p.Eps, p.Momentum, p.WeightDecay}, Varying: len(n), Flags: [2]bool{p.Centered},
	}
}
