package main

import (
	"github.com/goddp/goddp/ddp/zero"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

// epochs are how many times ranks run out of samples, and Join.
const epochs = 2

// recipe is what is trained, by ranks and by a single process alike.
type recipe struct {
	params, compute device.DType // of parameters, and of products; Invalid: theirs
	steps           int
	optimizer       func(params []*nn.Parameter) (zero.Local, error)
	// branches is how many middles the network has; branch is the one that a rank
	// uses in a step. 0: a single one.
	branches int
	branch   func(rank, step int) int
	// uneven gives the ranks different numbers of samples: the lower ones run out
	// first, in each of the epochs.
	uneven bool
	// byActive divides gradients by the number of ranks that have samples, in place
	// of all.
	byActive bool
	// scaled scales the loss, so much at first that the first step is skipped.
	scaled bool
	// wide has the single process add up gradients in Float32, whatever the type of
	// the parameters: it is a group of one then.
	wide bool
}

func (r *recipe) types() string {
	if r.compute == device.Invalid || r.compute == r.params {
		return r.params.String()
	}
	return r.params.String() + "/" + r.compute.String()
}

// exact tells whether rounding is out of sight, so that it is the semantics that
// are compared.
func (r *recipe) exact() bool { return r.params == device.Float64 }

// rounded tells whether something is rounded to 16 bits.
func (r *recipe) rounded() bool { return r.params.Size() == 2 || r.compute.Size() == 2 }

// has tells whether a rank has samples for a step.
func (r *recipe) has(rank, ranks, step int) bool {
	epoch := r.steps / epochs
	return !r.uneven || step%epoch < epoch-epoch/8*(ranks-1-rank)
}

// sgd makes an optimizer. Masters are kept of 16-bit parameters alone.
func sgd(params []*nn.Parameter) (zero.Local, error) {
	return optim.NewSGD(params, &optim.SGDOptions{LR: 0.02, Momentum: 0.9, WeightDecay: 1e-3, MasterWeights: true})
}

// adamW has an Eps that gradients of the size of their own roundings move nothing by:
// AdamW makes steps of one size of all that are larger.
func adamW(params []*nn.Parameter) (zero.Local, error) {
	return optim.NewAdamW(params, &optim.AdamWOptions{LR: 1e-3, Eps: 1e-5, WeightDecay: 0.01, MasterWeights: true})
}
