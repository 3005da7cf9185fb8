package main

import (
	"github.com/goddp/goddp/ddp/zero"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

// epochs is the number of epochs. Each epoch is one Join, at whose end some ranks have no samples left.
const epochs = 2

// recipe says what both the ranks and the single process train.
type recipe struct {
	params, compute device.DType // of the parameters and of products; compute may be Invalid, for params
	steps           int
	optimizer       func(params []*nn.Parameter) (zero.Local, error)
	// branches is the number of middle layers of the network; branch returns the one that a rank uses in
	// a step. With branches 0 there is one, and branch is nil.
	branches int
	branch   func(rank, step int) int
	// uneven gives the ranks different numbers of samples in each epoch: the fewest to rank 0.
	uneven bool
	// dividesByActive divides gradients by the number of ranks that have samples, not by that of all
	// ranks.
	dividesByActive bool
	// scalesLoss scales the loss. The first scale is so large that the first step is skipped.
	scalesLoss bool
	// sumsInFloat32 lets the single process add up gradients in float32, whatever the type of the
	// parameters. The process is a group of one then.
	sumsInFloat32 bool
}

func (r *recipe) types() string {
	if r.compute == device.Invalid || r.compute == r.params {
		return r.params.String()
	}
	return r.params.String() + "/" + r.compute.String()
}

// isExact reports whether rounding is negligible, so that only semantics can make a difference.
func (r *recipe) isExact() bool { return r.params == device.Float64 }

// isRounded reports whether parameters or products are rounded to 16 bits.
func (r *recipe) isRounded() bool { return r.params.Size() == 2 || r.compute.Size() == 2 }

// hasSamples reports whether a rank has samples for a step.
func (r *recipe) hasSamples(rank, ranks, step int) bool {
	epoch := r.steps / epochs
	return !r.uneven || step%epoch < epoch-epoch/8*(ranks-1-rank)
}

// sgd makes an SGD optimizer, which keeps master weights of 16-bit parameters only.
func sgd(params []*nn.Parameter) (zero.Local, error) {
	return optim.NewSGD(params, &optim.SGDOptions{LR: 0.02, Momentum: 0.9, WeightDecay: 1e-3, MasterWeights: true})
}

// adamW makes an AdamW optimizer. AdamW makes steps of about the same size from all gradients much larger
// than Eps; this Eps is so large that gradients which are only rounding errors move nothing.
func adamW(params []*nn.Parameter) (zero.Local, error) {
	return optim.NewAdamW(params, &optim.AdamWOptions{LR: 1e-3, Eps: 1e-5, WeightDecay: 0.01, MasterWeights: true})
}
