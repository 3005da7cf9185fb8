package optim

import (
	"fmt"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
	"github.com/goddp/goddp/nn"
)

// SGDOptions are the options of [NewSGD]. [kernels.SGDStep] describes the update rule, which is that of
// torch.optim.SGD.
type SGDOptions struct {
	// LR is the learning rate, 0 or more. With 0 the parameters do not change.
	LR float64
	// Momentum is the fraction of the velocity that a step keeps. 0 means that there is no velocity.
	Momentum float64
	// Dampening is the fraction of the gradient that is not added to the velocity.
	Dampening float64
	// WeightDecay times the parameter is added to its gradient.
	WeightDecay float64
	// Nesterov selects Nesterov momentum. It needs Momentum, and no Dampening.
	Nesterov bool
	// MasterWeights keeps a Float32 copy of every 16-bit parameter, and a Float32 velocity. Steps
	// update the copy and round it into the parameter. Without it an update of less than 1/512 of a
	// BFloat16 parameter is lost, as in PyTorch. It cannot change later.
	MasterWeights bool
}

func (o *SGDOptions) rate() *float64 { return &o.LR }

func (o *SGDOptions) check() error {
	if o.Nesterov && (o.Momentum == 0 || o.Dampening != 0) {
		return &OptionError{"Nesterov", o.Nesterov,
			fmt.Sprintf("it with momentum and no dampening, not with %v and %v", o.Momentum, o.Dampening)}
	}
	return checkNotNegative([]string{"LR", "Momentum", "WeightDecay"}, o.LR, o.Momentum, o.WeightDecay)
}

// SGDGroup is a group of parameters that share options. The caller may change the options between
// steps, but not the parameters.
type SGDGroup struct {
	Params []*nn.Parameter
	SGDOptions
	hasMaster bool // MasterWeights when the optimizer was made
}

// SGD is stochastic gradient descent. Only Committed may be called from several goroutines.
type SGD struct {
	optimizer
	updatesParts
	groups[*SGDGroup]
}

// NewSGD returns an optimizer for params with the options opts, and for more parameter groups with
// their own options. A variable with several names in a group (tied weights) is updated once, under the
// first name. NewSGD returns an [*OptionError] if an option is invalid, if a parameter is in two
// groups, or if a group has a parameter twice under the same name.
func NewSGD(params []*nn.Parameter, opts *SGDOptions, more ...SGDGroup) (*SGD, error) {
	first := SGDGroup{Params: params}
	if opts != nil {
		first.SGDOptions = *opts
	}
	o := &SGD{}
	for _, group := range append([]SGDGroup{first}, more...) {
		g := &group
		g.hasMaster = g.MasterWeights
		if err := g.check(); err != nil {
			return nil, err
		}
		if err := o.add(g.Params, func() rule { return &sgdRule{group: g} }); err != nil {
			return nil, err
		}
		o.all = append(o.all, g)
	}
	return o, nil
}

// sgdRule is the rule of SGD for one parameter.
type sgdRule struct {
	group    *SGDGroup
	velocity *autograd.Variable // nil before the first step with momentum
	first    bool               // no step has written the velocity yet
}

func (r *sgdRule) check() error {
	if err := checkUnchanged("MasterWeights", r.group.MasterWeights, r.group.hasMaster); err != nil {
		return err
	}
	return r.group.check()
}

func (r *sgdRule) hasMaster() bool { return r.group.hasMaster }

func (r *sgdRule) allocate(s *slot, dt device.DType) (err error) {
	if r.velocity != nil || r.group.Momentum == 0 {
		return nil
	}
	if r.velocity, err = s.zeros("velocity", dt, s.Var().Shape()...); err == nil {
		r.first = true
	}
	return err
}

func (r *sgdRule) update(s *slot, scaled Scaled, batch *batch) error {
	v, o := s.Var(), &r.group.SGDOptions
	step := kernels.SGDStep{
		Param: v.Tensor(), Grad: s.grad, Master: s.masterTensor(),
		Skip: s.skip(), LossScale: scaled.LossScale, Overflow: scaled.Overflow,
		LR: o.LR, Momentum: o.Momentum, Dampening: o.Dampening, WeightDecay: o.WeightDecay, Nesterov: o.Nesterov,
	}
	if o.Momentum != 0 {
		step.Velocity, step.First = r.velocity.Tensor(), r.first
	}
	if scaled.capturing != nil {
		r.capture(scaled, &step)
	}
	batch.sgd = append(batch.sgd, step)
	return nil
}

// capture makes a captured step use the learning rate of each replay.
func (r *sgdRule) capture(scaled Scaled, step *kernels.SGDStep) {
	group, first := r.group, r.first
	requireSame(scaled, group, r.check, func() SGDOptions {
		now := group.SGDOptions
		now.LR = 0
		return now
	})
	scaled.capturing.Require(func() bool { return r.first == first })
	step.At = scaled.numbers(group, len(step.Numbers()), func() []float64 {
		v := (&kernels.SGDStep{LR: group.LR, LossScale: scaled.scale()}).Numbers()
		return v[:]
	})
}

func (r *sgdRule) updated() {
	r.first = r.first && r.group.Momentum == 0
	if r.velocity != nil {
		r.velocity.BumpVersion()
	}
}

func (r *sgdRule) state() ([]*autograd.Variable, error) {
	if r.group.Momentum == 0 {
		return nil, nil
	}
	return []*autograd.Variable{r.velocity}, nil
}

func (r *sgdRule) beginLoad() {}

func (r *sgdRule) endLoad(steps int) { r.first = steps == 0 }
