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
// MaxVariance, if present, holds the maximum of Variance so far and replaces Variance in the last
// line: AMSGrad (Reddi, Kale and Kumar, "On the Convergence of Adam and Beyond", 2018).
//
// It is the update rule of torch.optim.AdamW, or with Coupled, of torch.optim.Adam. The first step
// uses zeros for Mean, Variance and MaxVariance, and does not read them. Every device computes it in all
// floating-point types. All tensors have the same type.
//
// Master, Skip, Overflow and At are as in [SGDStep]. With a Master, Mean and the variances are Float32,
// and Grad is of Param's type or Float32.
//
// In place of Float32, Mean and the variances may all be BFloat16. Mean and Variance are then rounded up or down at
// random, with probabilities that make the expected error 0. Rounding to nearest would lose most changes of Variance,
// which are smaller than half of the distance between two numbers of 8 bits. The random bits are a hash of Step and of
// both numbers before rounding, so that they do not depend on how parameters are divided among kernels and ranks.
type AdamWStep struct {
	Param, Grad, Mean, Variance device.Tensor
	MaxVariance                 device.Tensor // may be absent
	Master                      device.Tensor // Float32, or absent
	LR, Beta1, Beta2, Eps       float64
	WeightDecay                 float64
	Coupled                     bool
	Step                        int           // the number of this step for this parameter, from 1
	LossScale                   float64       // the loss scale; 0 means 1
	Skip, Overflow              device.Tensor // Uint8, or absent
	At                          device.Tensor // Float64, or absent; Step then only says whether this is the first step
}

// Numbers returns the numbers that may change from step to step: the results of the method Rates, the factor by
// which the decoupled weight decay multiplies the parameter, the factor that undoes LossScale, and Step.
func (p *AdamWStep) Numbers() [5]float64 {
	rate, root := p.Rates()
	kept := 1.0
	if !p.Coupled {
		kept = 1 - p.LR*p.WeightDecay
	}
	return [...]float64{rate, root, kept, unscale(p.LossScale), float64(p.Step)}
}

// Update converts the step to an Update. The field Numbers starts with the five results of the method Numbers. Then
// follow Beta1, 1-Beta1, Beta2, 1-Beta2, Eps, and WeightDecay if Coupled is set, else 0.
func (p *AdamWStep) Update() Update {
	n, coupled := p.Numbers(), 0.0
	if p.Coupled {
		coupled = p.WeightDecay
	}
	state := device.Invalid
	if wide := p.Param.DType == device.Float32 || !p.Master.IsZero(); wide && p.Mean.DType == device.BFloat16 {
		state = device.BFloat16
	}
	return Update{
		Op: "AdamW", Narrow: state, Param: &p.Param, Grad: &p.Grad, Master: &p.Master, Skip: &p.Skip, Overflow: &p.Overflow, At: &p.At,
		State:   [3]*device.Tensor{&p.Mean, &p.Variance, kept(&p.MaxVariance, !p.MaxVariance.IsZero())},
		Numbers: [11]float64{n[0], n[1], n[2], n[3], n[4], p.Beta1, 1 - p.Beta1, p.Beta2, 1 - p.Beta2, p.Eps, coupled}, Varying: len(n),
		Flags: [2]bool{p.Step == 1, !p.MaxVariance.IsZero()},
	}
}

// Rates returns the factors of the update, including the bias correction:
//
//	Param -= rate·Mean / (√Variance·root + Eps)
func (p *AdamWStep) Rates() (rate, root float64) {
	n := float64(p.Step)
	return p.LR / (1 - math.Pow(p.Beta1, n)), 1 / math.Sqrt(1-math.Pow(p.Beta2, n))
}
