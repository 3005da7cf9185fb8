package optim

import (
	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/nn"
)

// RMSPropOptions are the choices of [NewRMSProp]: see [device.RMSPropStep] for the
// rule, which is that of torch.optim.RMSprop.
type RMSPropOptions struct {
	// LR is the learning rate, not negative. PyTorch's default is 0.01.
	LR float64
	// Alpha is the part of the mean of the gradients' squares that a step keeps, at most
	// 1; 0: 0.99, but for NoDefaults.
	Alpha float64
	// Eps is added to the root of the mean square, so that it is not divided by
	// zero; 0: 1e-8, but for NoDefaults.
	Eps float64
	// NoDefaults takes Alpha and Eps as they are, also where they are 0. With an Eps of 0
	// an element becomes NaN in a step whose mean square is 0.
	NoDefaults bool
	// Momentum is the part of the velocity that a step keeps; 0: no velocity.
	Momentum float64
	// Centered divides by the root of the gradients' variance, not of their mean square.
	Centered bool
	// WeightDecay times the parameter is added to its gradient.
	WeightDecay float64
	// MasterWeights is as in [SGDOptions].
	MasterWeights bool
}

func (o *RMSPropOptions) check() {
	checkPositive([]string{"LR", "Alpha", "Eps", "Momentum", "WeightDecay"}, o.LR, o.Alpha, o.Eps, o.Momentum, o.WeightDecay)
	if !(o.Alpha <= 1) {
		panic(&OptionError{"Alpha", o.Alpha, "at most 1"})
	}
}

// rates are Alpha and Eps, or the defaults in their place.
func (o *RMSPropOptions) rates() (alpha, eps float64) {
	alpha, eps = o.Alpha, o.Eps
	if alpha == 0 && !o.NoDefaults {
		alpha = 0.99
	}
	if eps == 0 && !o.NoDefaults {
		eps = 1e-8
	}
	return alpha, eps
}

// RMSPropGroup is parameters that share options. The options may be changed
// between steps, the parameters may not.
type RMSPropGroup struct {
	Params []*nn.Parameter
	RMSPropOptions
	made bool // MasterWeights, as it was chosen
}

// RMSProp divides gradients by the root of the mean of their squares. Its State has
// that mean, as "NAME.square", and, where the options ask for them, the mean of the
// gradients, as "NAME.mean", and the velocity, as "NAME.velocity". It is driven by one
// goroutine; others may ask for what it has [RMSProp.Committed].
type RMSProp struct {
	optimizer
	elementwise
	groups []*RMSPropGroup
}

// NewRMSProp optimizes params. It panics with an [*OptionError] when opts make no
// sense.
func NewRMSProp(params []*nn.Parameter, opts RMSPropOptions) *RMSProp {
	return NewRMSPropGroups(RMSPropGroup{Params: params, RMSPropOptions: opts})
}

// NewRMSPropGroups optimizes several groups of parameters, each by its own options. It
// takes tied weights once, and panics with an [*OptionError], as [NewSGDGroups] does.
func NewRMSPropGroups(groups ...RMSPropGroup) *RMSProp {
	o := &RMSProp{}
	for i := range groups {
		g := &groups[i]
		g.made = g.MasterWeights
		g.check()
		o.groups = append(o.groups, g)
		o.add(g.Params, func() rule { return &rmsPropRule{group: g} })
	}
	return o
}

// Groups are the groups of parameters, for changing their options.
func (o *RMSProp) Groups() []*RMSPropGroup { return o.groups }

// SetLR sets the learning rate of all groups.
func (o *RMSProp) SetLR(lr float64) {
	for _, g := range o.groups {
		g.LR = lr
	}
}

// rmsPropRule is RMSProp's of one parameter. What it keeps begins as zeros, so that
// the first step is no special one.
type rmsPropRule struct {
	group                  *RMSPropGroup
	square, mean, velocity *autograd.Variable // nil before the first step that needs it
}

func (r *rmsPropRule) check() {
	r.group.check()
	checkMasters(r.group.MasterWeights, r.group.made)
}

func (r *rmsPropRule) masters() bool { return r.group.made }

// kept are the variables that the options ask for.
func (r *rmsPropRule) kept() (kept []**autograd.Variable, names []string) {
	kept, names = append(kept, &r.square), append(names, "square")
	if r.group.Centered {
		kept, names = append(kept, &r.mean), append(names, "mean")
	}
	if r.group.Momentum != 0 {
		kept, names = append(kept, &r.velocity), append(names, "velocity")
	}
	return kept, names
}

func (r *rmsPropRule) allocate(s *slot, dt device.DType) error {
	kept, names := r.kept()
	for i, v := range kept {
		if *v != nil {
			continue
		}
		made, err := s.zeros(names[i], dt, s.Var().Shape()...)
		if err != nil {
			return err
		}
		*v = made
	}
	return nil
}

func (r *rmsPropRule) update(s *slot, scaled Scaled) error {
	v, o := s.Var(), &r.group.RMSPropOptions
	alpha, eps := o.rates()
	step := device.RMSPropStep{
		Param: v.Tensor(), Grad: s.grad, Master: s.masterTensor(), Square: r.square.Tensor(),
		Skip: v.GradSkip(), LossScale: scaled.By, Overflow: scaled.Overflow,
		LR: o.LR, Alpha: alpha, Eps: eps, Momentum: o.Momentum, Centered: o.Centered, WeightDecay: o.WeightDecay,
	}
	if o.Centered {
		step.Mean = r.mean.Tensor()
	}
	if o.Momentum != 0 {
		step.Velocity = r.velocity.Tensor()
	}
	return v.Device().Kernels().RMSProp(v.Device().Compute(), step)
}

func (r *rmsPropRule) updated() {
	kept, _ := r.kept()
	for _, v := range kept {
		(*v).BumpVersion()
	}
}

func (r *rmsPropRule) state() ([]*autograd.Variable, error) {
	kept, _ := r.kept()
	var state []*autograd.Variable
	for _, v := range kept {
		state = append(state, *v)
	}
	return state, nil
}

func (r *rmsPropRule) restoring() {}

func (r *rmsPropRule) restored(int) {}
