package kernels

import (
	"math"

	"github.com/goddp/goddp/device"
)

// AdamWStep is one step of Adam on one parameter, by default with its weight
// decay decoupled from the gradient (Kingma and Ba, "Adam: A Method for
// Stochastic Optimization", 2015; Loshchilov and Hutter, "Decoupled Weight Decay
// Regularization", 2019):
//
//	g = Grad/LossScale
//	Coupled:   g += WeightDecay·Param
//	otherwise: Param -= LR·WeightDecay·Param
//	Mean     = Beta1·Mean + (1-Beta1)·g
//	Variance = Beta2·Variance + (1-Beta2)·g²
//	Param -= LR·(Mean/(1-Beta1^Step)) / (√(Variance/(1-Beta2^Step)) + Eps)
//
// With a MaxVariance that is the most that Variance has been, which takes its place in
// the last line: AMSGrad (Reddi, Kale and Kumar, "On the Convergence of Adam and Beyond",
// 2018).
//
// It is the update rule of torch.optim.AdamW, and with Coupled of
// torch.optim.Adam. In the first step Mean, Variance and MaxVariance count as zeros,
// and are not read. Every device makes it in all floating-point types; Param, Grad and
// these are of one.
//
// Master, Skip and Overflow are what they are in [SGDStep]: with a Master, Mean
// and the variances are Float32, and Grad is of Param's type or Float32.
type AdamWStep struct {
	Param, Grad, Mean, Variance device.Tensor
	MaxVariance                 device.Tensor // or not there
	Master                      device.Tensor // Float32, or not there
	LR, Beta1, Beta2, Eps       float64
	WeightDecay                 float64
	Coupled                     bool
	Step                        int           // number of this step on this parameter, from 1
	LossScale                   float64       // what the loss was multiplied by; 0: nothing
	Skip, Overflow              device.Tensor // bytes, Uint8, or not there
}

// Unscale is what LossScale has Grad multiplied by.
func (p *AdamWStep) Unscale() float64 {
	if p.LossScale == 0 {
		return 1
	}
	return 1 / p.LossScale
}

// Rates are the rule's numbers with what corrects the moments for having begun
// as zeros:
//
//	Param -= rate·Mean / (√Variance·root + Eps)
func (p *AdamWStep) Rates() (rate, root float64) {
	n := float64(p.Step)
	return p.LR / (1 - math.Pow(p.Beta1, n)), 1 / math.Sqrt(1-math.Pow(p.Beta2, n))
}
