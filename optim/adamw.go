package optim

import (
	"context"
	"fmt"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/nn"
)

// AdamWOptions are the choices of [NewAdamW]: see [device.AdamWStep] for the
// rule, which is that of torch.optim.AdamW.
type AdamWOptions struct {
	// LR is the learning rate, not negative.
	LR float64
	// Betas are the parts of the means of gradients and of their squares that a
	// step keeps, below 1; both 0: 0.9 and 0.999, but for NoDefaults.
	Betas [2]float64
	// Eps is added to the root of the mean square, so that it is not divided by
	// zero; 0: 1e-8, but for NoDefaults.
	Eps float64
	// NoDefaults takes Betas and Eps as they are, also where they are 0. With an Eps
	// of 0 an element becomes NaN in a step whose mean square is 0.
	NoDefaults bool
	// WeightDecay times LR is the part of a parameter that a step takes away.
	// PyTorch's default is 0.01.
	WeightDecay float64
	// Coupled adds WeightDecay times the parameter to its gradient instead, which
	// is torch.optim.Adam: see [NewAdam].
	Coupled bool
	// AMSGrad divides by the root of the largest mean square so far, not of the present
	// one. It is chosen when the optimizer is made.
	AMSGrad bool
	// MasterWeights is as in [SGDOptions]: the means are Float32 too, without
	// which those of the squares of small 16-bit gradients are zero.
	MasterWeights bool
}

func (o *AdamWOptions) check() {
	checkPositive([]string{"LR", "Betas[0]", "Betas[1]", "Eps", "WeightDecay"}, o.LR, o.Betas[0], o.Betas[1], o.Eps, o.WeightDecay)
	for i, beta := range o.Betas {
		if !(beta < 1) {
			panic(&OptionError{fmt.Sprintf("Betas[%d]", i), beta, "less than 1"})
		}
	}
}

// rates are Betas and Eps, or the defaults in their place.
func (o *AdamWOptions) rates() (betas [2]float64, eps float64) {
	betas, eps = o.Betas, o.Eps
	if betas == [2]float64{} && !o.NoDefaults {
		betas = [2]float64{0.9, 0.999}
	}
	if eps == 0 && !o.NoDefaults {
		eps = 1e-8
	}
	return betas, eps
}

// AdamWGroup is parameters that share options. The options may be changed
// between steps, the parameters may not.
type AdamWGroup struct {
	Params []*nn.Parameter
	AdamWOptions
	made, madeAMSGrad bool // MasterWeights and AMSGrad, as they were chosen
}

// AdamW follows means of the gradients, divided by the root of those of their
// squares. Its State has both, as "NAME.mean" and "NAME.variance", and the number
// of updates that they hold, as "NAME.updates"; with AMSGrad also the largest mean square,
// as "NAME.max_variance". It is driven by one goroutine;
// others may ask for what it has [AdamW.Committed].
type AdamW struct {
	optimizer
	elementwise
	groups []*AdamWGroup
}

// NewAdamW optimizes params. It panics with an [*OptionError] when opts make no
// sense.
func NewAdamW(params []*nn.Parameter, opts AdamWOptions) *AdamW {
	return NewAdamWGroups(AdamWGroup{Params: params, AdamWOptions: opts})
}

// NewAdam optimizes params by the rule of torch.optim.Adam: it is NewAdamW with Coupled.
func NewAdam(params []*nn.Parameter, opts AdamWOptions) *AdamW {
	opts.Coupled = true
	return NewAdamW(params, opts)
}

// NewAdamWGroups optimizes several groups of parameters, each by its own options,
// such as none of the biases with weight decay. It takes tied weights once, and
// panics with an [*OptionError], as [NewSGDGroups] does.
func NewAdamWGroups(groups ...AdamWGroup) *AdamW {
	o := &AdamW{}
	for i := range groups {
		g := &groups[i]
		o.groups = append(o.groups, g)
		o.addAdamW(g)
	}
	return o
}

// addAdamW puts a group's parameters under the rule of AdamW.
func (o *optimizer) addAdamW(g *AdamWGroup) {
	g.made, g.madeAMSGrad = g.MasterWeights, g.AMSGrad
	g.check()
	o.add(g.Params, func() rule { return &adamRule{group: g} })
}

// Groups are the groups of parameters, for changing their options.
func (o *AdamW) Groups() []*AdamWGroup { return o.groups }

// SetLR sets the learning rate of all groups.
func (o *AdamW) SetLR(lr float64) {
	for _, g := range o.groups {
		g.LR = lr
	}
}

// adamRule is AdamW's of one parameter. How many updates the moments hold is
// counted by the host, which knows when one was skipped. In the state it is a
// number on the device, which is set when somebody asks and read when it may
// have been written.
type adamRule struct {
	group          *AdamWGroup
	mean, variance *autograd.Variable // nil before the first step
	most           *autograd.Variable // nil without AMSGrad as well
	updates        int

	count *autograd.Variable // nil before the first step
	shown bool               // count is updates, or what the program has written since
	read  bool               // updates is to be read from count
	err   error              // why count could not be set
}

func (r *adamRule) check() {
	r.group.check()
	checkMasters(r.group.MasterWeights, r.group.made)
	if now, made := r.group.AMSGrad, r.group.madeAMSGrad; now != made {
		panic(&OptionError{"AMSGrad", now, fmt.Sprintf("%v, which the optimizer was made with", made)})
	}
}

func (r *adamRule) masters() bool { return r.group.made }

func (r *adamRule) allocate(s *slot, dt device.DType) (err error) {
	for _, m := range []struct {
		v     **autograd.Variable
		what  string
		dt    device.DType
		shape device.Shape
	}{
		{&r.mean, "mean", dt, s.Var().Shape()}, {&r.variance, "variance", dt, s.Var().Shape()},
		{&r.most, "max_variance", dt, s.Var().Shape()}, {&r.count, "updates", device.Int64, nil},
	} {
		if *m.v == nil && (m.v != &r.most || r.group.AMSGrad) {
			if *m.v, err = s.zeros(m.what, m.dt, m.shape...); err != nil {
				*m.v = nil
				return err
			}
		}
	}
	if !r.read {
		return nil
	}
	if r.err != nil {
		return r.err
	}
	n, err := r.count.TryItem(context.Background()) // behind what the device was given, which ends
	if err != nil {
		return fmt.Errorf("updates of %s: %w", s.Name(), err)
	}
	r.updates, r.read = int(n), false
	return nil
}

func (r *adamRule) update(s *slot, scaled Scaled) error {
	v, o := s.Var(), &r.group.AdamWOptions
	betas, eps := o.rates()
	step := device.AdamWStep{
		Param: v.Tensor(), Grad: s.grad, Master: s.masterTensor(), Mean: r.mean.Tensor(), Variance: r.variance.Tensor(),
		Skip: v.GradSkip(), LossScale: scaled.By, Overflow: scaled.Overflow,
		LR: o.LR, Beta1: betas[0], Beta2: betas[1], Eps: eps, WeightDecay: o.WeightDecay, Coupled: o.Coupled,
		Step: r.updates + 1,
	}
	if r.most != nil {
		step.MaxVariance = r.most.Tensor()
	}
	return v.Device().Kernels().AdamW(v.Device().Compute(), step)
}

func (r *adamRule) updated() {
	r.updates++
	r.shown = false
	r.mean.BumpVersion()
	r.variance.BumpVersion()
	if r.most != nil {
		r.most.BumpVersion()
	}
}

func (r *adamRule) state() ([]*autograd.Variable, error) {
	kept := []*autograd.Variable{r.mean, r.variance}
	if r.most != nil {
		kept = append(kept, r.most)
	}
	return append(kept, r.count), r.show()
}

// show sets count.
func (r *adamRule) show() error {
	if r.count == nil || r.shown {
		return nil
	}
	dev := r.count.Device()
	r.count.BumpVersion()
	if err := dev.Kernels().Fill(dev.Compute(), r.count.Tensor(), float64(r.updates)); err != nil {
		return fmt.Errorf("setting %s: %w", r.count.Name(), err)
	}
	r.shown = true
	return nil
}

func (r *adamRule) restoring() {
	if r.count != nil {
		r.err, r.shown = r.show(), true
	}
}

func (r *adamRule) restored(steps int) {
	if r.read = r.shown && steps > 0; steps == 0 {
		r.updates, r.shown = 0, false
	}
}
