package optim

import (
	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
	"github.com/goddp/goddp/nn"
)

// RMSPropOptions are the options of [NewRMSProp]. [kernels.RMSPropStep] describes the update rule,
// which is that of torch.optim.RMSprop.
type RMSPropOptions struct {
	// LR is the learning rate, 0 or more. With 0 the parameters do not change. PyTorch's default
	// is 0.01.
	LR float64
	// Alpha is the fraction of the mean squared gradient that a step keeps, at most 1. If it is 0
	// and NoDefaults is not set, it is 0.99.
	Alpha float64
	// Eps is added to the root of the mean squared gradient, so that the step never divides by zero.
	// If it is 0 and NoDefaults is not set, it is 1e-8.
	Eps float64
	// NoDefaults uses Alpha and Eps even if they are 0. With Eps 0 an element becomes NaN if its mean
	// squared gradient is 0.
	NoDefaults bool
	// Momentum is the fraction of the velocity that a step keeps. 0 means that there is no velocity.
	Momentum float64
	// Centered divides by the root of the gradients' variance instead of their mean square.
	Centered bool
	// WeightDecay times the parameter is added to its gradient.
	WeightDecay float64
	// MasterWeights keeps a Float32 copy of every 16-bit parameter: see [SGDOptions].
	MasterWeights bool
}

func (o *RMSPropOptions) rate() *float64 { return &o.LR }

func (o *RMSPropOptions) check() error {
	if !(o.Alpha <= 1) {
		return &OptionError{"Alpha", o.Alpha, "at most 1"}
	}
	return checkNotNegative([]string{"LR", "Alpha", "Eps", "Momentum", "WeightDecay"}, o.LR, o.Alpha, o.Eps, o.Momentum, o.WeightDecay)
}

// rates returns Alpha and Eps, with the defaults filled in.
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

// RMSPropGroup is a group of parameters that share options. The caller may change the options between
// steps, but not the parameters.
type RMSPropGroup struct {
	Params []*nn.Parameter
	RMSPropOptions
	hasMaster bool // MasterWeights when the optimizer was made
}

// RMSProp divides gradients by the root of the mean of their squares. Its State has the mean square, named
// "NAME.square". With Centered it also has the mean of the gradients, named "NAME.mean", and with Momentum
// the velocity, named "NAME.velocity". Only Committed may be called from several goroutines.
type RMSProp struct {
	optimizer
	updatesParts
	groups[*RMSPropGroup]
}

// NewRMSProp returns an optimizer for params with the options opts, and for more parameter groups
// with their own options. It handles tied weights and returns errors as [NewSGD] does.
func NewRMSProp(params []*nn.Parameter, opts *RMSPropOptions, more ...RMSPropGroup) (*RMSProp, error) {
	first := RMSPropGroup{Params: params}
	if opts != nil {
		first.RMSPropOptions = *opts
	}
	o := &RMSProp{}
	for _, group := range append([]RMSPropGroup{first}, more...) {
		g := &group
		g.hasMaster = g.MasterWeights
		if err := g.check(); err != nil {
			return nil, err
		}
		if err := o.add(g.Params, func() rule { return &rmsPropRule{group: g} }); err != nil {
			return nil, err
		}
		o.all = append(o.all, g)
	}
	return o, nil
}

// rmsPropRule is the rule of RMSProp for one parameter. Its state is initialized with zeros, so that
// the first step needs no special case.
type rmsPropRule struct {
	group                  *RMSPropGroup
	square, mean, velocity *autograd.Variable // nil before the first step that needs it
}

func (r *rmsPropRule) check() error {
	if err := checkUnchanged("MasterWeights", r.group.MasterWeights, r.group.hasMaster); err != nil {
		return err
	}
	return r.group.check()
}

func (r *rmsPropRule) hasMaster() bool { return r.group.hasMaster }

// kept returns the state variables that the options need, and their names.
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

func (r *rmsPropRule) update(s *slot, scaled Scaled, batch *batch) error {
	v, o := s.Var(), &r.group.RMSPropOptions
	alpha, eps := o.rates()
	step := kernels.RMSPropStep{
		Param: v.Tensor(), Grad: s.grad, Master: s.masterTensor(), Square: r.square.Tensor(),
		Skip: s.skip(), LossScale: scaled.LossScale, Overflow: scaled.Overflow,
		LR: o.LR, Alpha: alpha, Eps: eps, Momentum: o.Momentum, Centered: o.Centered, WeightDecay: o.WeightDecay,
	}
	if o.Centered {
		step.Mean = r.mean.Tensor()
	}
	if o.Momentum != 0 {
		step.Velocity = r.velocity.Tensor()
	}
	if scaled.capturing != nil {
		r.capture(scaled, &step)
	}
	batch.rmsProp = append(batch.rmsProp, step)
	return nil
}

// capture makes a captured step use the learning rate of each replay.
func (r *rmsPropRule) capture(scaled Scaled, step *kernels.RMSPropStep) {
	group := r.group
	requireSame(scaled, group, r.check, func() RMSPropOptions {
		now := group.RMSPropOptions
		now.LR = 0
		return now
	})
	step.At = scaled.numbers(group, len(step.Numbers()), func() []float64 {
		v := (&kernels.RMSPropStep{LR: group.LR, LossScale: scaled.scale()}).Numbers()
		return v[:]
	})
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

func (r *rmsPropRule) beginLoad() {}

func (r *rmsPropRule) endLoad(int) {}
