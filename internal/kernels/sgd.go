package kernels

import "github.com/goddp/goddp/device"

// SGDStep is one step of stochastic gradient descent on one parameter:
//
//	d = Grad/LossScale + WeightDecay·Param
//	Momentum != 0:  v = d on the first step, else Momentum·v + (1-Dampening)·d
//	                d = Nesterov ? d + Momentum·v : v
//	Param -= LR·d
//
// It is the update rule of torch.optim.SGD. Every device computes it in all floating-point types. Param,
// Grad and Velocity have the same type.
//
// A Param of a 16-bit type may have a Master in Float32. The rule then updates the Master, and Param
// becomes the rounded Master. Steps that are too small to change Param add up in the Master. With a
// Master, Velocity is Float32, and Grad is of Param's type or Float32.
//
// If a byte of Skip or Overflow is not zero, the step writes nothing. So a gradient that is missing on a
// rank, or is not finite, is not applied, and the host need not wait to find this out.
//
// At, if present, contains the result of Numbers in device memory. The update then reads At when it
// runs, and ignores the fields of the same numbers. So the learning rate of an update in a graph can change.
type SGDStep struct {
	Param, Grad, Velocity   device.Tensor // Velocity is absent without momentum
	Master                  device.Tensor // Float32, or absent
	LR, Momentum, Dampening float64
	WeightDecay             float64
	LossScale               float64 // the loss scale; 0 means 1
	Nesterov, First         bool
	Skip, Overflow          device.Tensor // Uint8, or absent
	At                      device.Tensor // Float64, or absent
}

// Numbers returns the numbers that may change from step to step: LR, and the factor that undoes LossScale.
func (p *SGDStep) Numbers() [2]float64 { return [...]float64{p.LR, unscale(p.LossScale)} }

// Update returns the step as an Update. Its Numbers are LR, the factor that undoes LossScale, Momentum, 1-Dampening
// and WeightDecay.
func (p *SGDStep) Update() Update {
	n := p.Numbers()
	return Update{
		Op: "SGD", Param: &p.Param, Grad: &p.Grad, Master: &p.Master, Skip: &p.Skip, Overflow: &p.Overflow, At: &p.At,
		State:   [3]*device.Tensor{kept(&p.Velocity, p.Momentum != 0)},
		Numbers: [11]float64{n[0], n[1], p.Momentum, 1 - p.Dampening, p.WeightDecay}, Varying: len(n), Flags: [2]bool{p.Nesterov, p.First},
	}
}
