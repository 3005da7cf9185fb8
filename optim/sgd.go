package optim

import (
	"fmt"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/nn"
)

// SGDOptions are the choices of [NewSGD]: see [device.SGDStep] for the rule,
// which is that of torch.optim.SGD.
type SGDOptions struct {
	// LR is the learning rate, not negative.
	LR float64
	// Momentum is the part of the velocity that a step keeps; 0: no velocity.
	Momentum float64
	// Dampening is the part of the gradient that does not enter the velocity.
	Dampening float64
	// WeightDecay times the parameter is added to its gradient.
	WeightDecay float64
	// Nesterov looks ahead along the velocity; it needs momentum, and no
	// dampening.
	Nesterov bool
	// MasterWeights keeps a Float32 copy of every parameter of a 16-bit type,
	// which the steps are made on, with a Float32 velocity; the parameter is what
	// rounds it. Without, a step of less than 1/512 of a BFloat16 parameter is
	// lost, as it is in PyTorch. It is chosen when the optimizer is made.
	MasterWeights bool
}

func (o *SGDOptions) check() {
	checkPositive([]string{"LR", "Momentum", "WeightDecay"}, o.LR, o.Momentum, o.WeightDecay)
	if o.Nesterov && (o.Momentum == 0 || o.Dampening != 0) {
		panic(&OptionError{"Nesterov", o.Nesterov,
			fmt.Sprintf("it with momentum and no dampening, not with %v and %v", o.Momentum, o.Dampening)})
	}
}

// SGDGroup is parameters that share options. The options may be changed
// between steps, the parameters may not.
type SGDGroup struct {
	Params []*nn.Parameter
	SGDOptions
	made bool // MasterWeights, as it was chosen
}

// SGD is stochastic gradient descent. It is driven by one goroutine; others may
// ask for what it has [SGD.Committed].
type SGD struct {
	optimizer
	elementwise
	groups []*SGDGroup
}

// NewSGD optimizes params. It panics with an [*OptionError] when opts make no
// sense.
func NewSGD(params []*nn.Parameter, opts SGDOptions) *SGD {
	return NewSGDGroups(SGDGroup{Params: params, SGDOptions: opts})
}

// NewSGDGroups optimizes several groups of parameters, each by its own
// options. A variable that a group has under several names, as tied weights, is
// updated once, by the first. It panics with an [*OptionError] when options make no
// sense, or when a parameter is there twice, by one name or in two groups: also where
// these got it from different modules.
func NewSGDGroups(groups ...SGDGroup) *SGD {
	o := &SGD{}
	for i := range groups {
		g := &groups[i]
		g.made = g.MasterWeights
		g.check()
		o.groups = append(o.groups, g)
		o.add(g.Params, func() rule { return &sgdRule{group: g} })
	}
	return o
}

// Groups are the groups of parameters, for changing their options.
func (o *SGD) Groups() []*SGDGroup { return o.groups }

// SetLR sets the learning rate of all groups.
func (o *SGD) SetLR(lr float64) {
	for _, g := range o.groups {
		g.LR = lr
	}
}

// sgdRule is SGD's of one parameter.
type sgdRule struct {
	group    *SGDGroup
	velocity *autograd.Variable // nil before the first step with momentum
	first    bool               // the velocity holds nothing yet
}

func (r *sgdRule) check() {
	r.group.check()
	checkMasters(r.group.MasterWeights, r.group.made)
}

func (r *sgdRule) masters() bool { return r.group.made }

func (r *sgdRule) allocate(s *slot, dt device.DType) (err error) {
	if r.velocity != nil || r.group.Momentum == 0 {
		return nil
	}
	if r.velocity, err = s.zeros("velocity", dt, s.Var().Shape()...); err == nil {
		r.first = true
	}
	return err
}

func (r *sgdRule) update(s *slot, scaled Scaled) error {
	v, o := s.Var(), &r.group.SGDOptions
	step := device.SGDStep{
		Param: v.Tensor(), Grad: s.grad, Master: s.masterTensor(),
		Skip: v.GradSkip(), LossScale: scaled.By, Overflow: scaled.Overflow,
		LR: o.LR, Momentum: o.Momentum, Dampening: o.Dampening, WeightDecay: o.WeightDecay, Nesterov: o.Nesterov,
	}
	if o.Momentum != 0 {
		step.Velocity, step.First = r.velocity.Tensor(), r.first
	}
	return v.Device().Kernels().SGD(v.Device().Compute(), step)
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

func (r *sgdRule) restoring() {}

func (r *sgdRule) restored(steps int) { r.first = steps == 0 }
