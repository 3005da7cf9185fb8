package optim

import (
	"errors"
	"fmt"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/profile"
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

// OptionError is the panic value of options that make no sense.
type OptionError struct {
	Option string
	Value  any
	Want   string
}

func (e *OptionError) Error() string {
	return fmt.Sprintf("optim: %s is %v, want %s", e.Option, e.Value, e.Want)
}

func (o *SGDOptions) check() {
	for _, x := range []struct {
		name  string
		value float64
	}{{"LR", o.LR}, {"Momentum", o.Momentum}, {"WeightDecay", o.WeightDecay}} {
		if !(x.value >= 0) {
			panic(&OptionError{x.name, x.value, "0 or more"})
		}
	}
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
	masters bool // MasterWeights, as it was chosen
}

func (g *SGDGroup) check() {
	g.SGDOptions.check()
	if g.MasterWeights != g.masters {
		panic(&OptionError{"MasterWeights", g.MasterWeights, fmt.Sprintf("%v, which the optimizer was made with", g.masters)})
	}
}

// SGD is stochastic gradient descent. It is driven by one goroutine; others may
// ask for what it has [SGD.Committed].
type SGD struct {
	groups []*SGDGroup
	slots  []*slot
	ready  []*slot // of the step: those with a gradient
	torn   error   // what Step returns until the state is restored
	progress
}

// slot is one parameter and what SGD knows of it.
type slot struct {
	*nn.Parameter
	group    *SGDGroup
	grad     device.Tensor      // of the step
	velocity *autograd.Variable // nil before the first step with momentum
	first    bool               // the velocity holds nothing yet
	master   *autograd.Variable // nil before the first step, and where there is to be none
	unused   bool               // no step was made on the master: the parameter is what counts
}

// mastered tells whether there is to be a master.
func (s *slot) mastered() bool { return s.group.masters && s.DType().Size() == 2 }

// NewSGD optimizes params. It panics with an [*OptionError] when opts make no
// sense.
func NewSGD(params []*nn.Parameter, opts SGDOptions) *SGD {
	return NewSGDGroups(SGDGroup{Params: params, SGDOptions: opts})
}

// NewSGDGroups optimizes several groups of parameters, each by its own
// options. It panics with an [*OptionError] when options make no sense, or
// when a parameter is there twice.
func NewSGDGroups(groups ...SGDGroup) *SGD {
	o := &SGD{}
	seen := map[*nn.Parameter]bool{}
	for i := range groups {
		g := &groups[i]
		g.masters = g.MasterWeights
		g.check()
		o.groups = append(o.groups, g)
		for _, p := range g.Params {
			if seen[p] {
				panic(&OptionError{"Params", p.Name() + " twice", "each parameter once"})
			}
			seen[p] = true
			o.slots = append(o.slots, &slot{Parameter: p, group: g})
		}
	}
	return o
}

// Parameters are those that are optimized, group by group.
func (o *SGD) Parameters() []*nn.Parameter {
	var params []*nn.Parameter
	for _, s := range o.slots {
		params = append(params, s.Parameter)
	}
	return params
}

// Groups are the groups of parameters, for changing their options.
func (o *SGD) Groups() []*SGDGroup { return o.groups }

// SetLR sets the learning rate of all groups.
func (o *SGD) SetLR(lr float64) {
	for _, g := range o.groups {
		g.LR = lr
	}
}

// Step changes the parameters by their gradients, in place; those without a
// gradient stay as they are. It returns, having changed nothing, the error of
// a gradient that must not be used, or that there is no memory for the
// velocities. It returns a [*TornError] when the device, or what was to make a
// gradient, failed on the way.
func (o *SGD) Step() error { return o.StepScaled(Scaled{}) }

// Scaled is what is special about the gradients of a loss that was multiplied by
// a number, so that small gradients are not lost in Float16: see package amp.
type Scaled struct {
	// By is that number, which the update divides the gradients by; 0: none.
	By float64
	// Overflow is a byte on the device. If it is not zero when the updates run,
	// they change nothing.
	Overflow device.Tensor
	// Err is nil if the byte is zero, and else an error that matches
	// [device.ErrSkipped]. It may wait for the device.
	Err func() error
}

// StepScaled is [SGD.Step] with gradients of a scaled loss. Those that
// overflowed are no step: the error is s.Err's, with everything as it was.
func (o *SGD) StepScaled(s Scaled) error {
	if o.torn != nil {
		return o.torn
	}
	ready, err := o.prepare()
	if err != nil {
		return fmt.Errorf("optim: step %d: %w", o.steps+1, err)
	}
	if len(ready) == 0 {
		return nil
	}
	o.set(o.steps, true)
	updated, err := update(ready, s)
	if err == nil {
		updated, err = 0, outcome(ready, s)
	}
	switch {
	case errors.Is(err, device.ErrSkipped):
		o.set(o.steps, false)
		return fmt.Errorf("optim: step %d: %w", o.steps+1, err)
	case err != nil:
		o.torn = &TornError{Step: o.steps + 1, Updated: updated, Params: len(ready), Err: err}
		return o.torn
	}
	for _, s := range ready {
		s.first = s.first && s.group.Momentum == 0
		s.unused = false
	}
	o.set(o.steps+1, false)
	return nil
}

// update enqueues the updates, and returns how many of them before an error.
func update(ready []*slot, scaled Scaled) (int, error) {
	defer record(ready[0].Var().Device())()
	for i, s := range ready {
		if err := s.update(scaled); err != nil {
			return i, err
		}
	}
	return len(ready), nil
}

// outcome is the error of a gradient that was pending when its update was
// enqueued. Waiting for it takes the time of the updates before, not more.
func outcome(ready []*slot, scaled Scaled) error {
	for _, s := range ready {
		if err := s.Var().GradErr(); err != nil {
			return fmt.Errorf("gradient of %s: %w", s.Name(), err)
		}
	}
	if scaled.Err != nil {
		return scaled.Err()
	}
	return nil
}

// record begins a span of the device's trace; what it returns ends it.
func record(dev device.Device) (end func()) {
	trace := profile.Of(dev.Values())
	if !trace.On() {
		return func() {}
	}
	begun := dev.Compute().Record()
	return func() {
		trace.Add(profile.Span{Track: profile.Compute, Name: "optimizer", Begin: begun, End: dev.Compute().Record()})
	}
}

// prepare does all of a step that can fail for a reason other than a broken
// device, and returns the parameters that have a gradient. What is not known
// yet of gradients that the same flags tell of is left to outcome.
func (o *SGD) prepare() ([]*slot, error) {
	o.ready = o.ready[:0]
	for _, g := range o.groups {
		g.check()
	}
	for _, s := range o.slots {
		if g := s.Var().Grad(); g != nil {
			s.grad = g.Tensor()
			o.ready = append(o.ready, s)
		}
	}
	ahead := together(o.ready)
	for _, s := range o.slots {
		if v := s.Var(); !ahead || !v.GradPending() {
			if err := v.GradErr(); err != nil {
				return nil, fmt.Errorf("gradient of %s: %w", s.Name(), err)
			}
		}
	}
	for _, s := range o.ready {
		if err := s.allocate(); err != nil {
			return nil, err
		}
	}
	return o.ready, nil
}

// together tells whether one set of flags has the device skip all updates or
// none.
func together(ready []*slot) bool {
	for _, s := range ready {
		skip := s.Var().GradSkip()
		if skip.IsZero() || skip.Buf.Addr() != ready[0].Var().GradSkip().Buf.Addr() {
			return false
		}
	}
	return len(ready) > 0
}

// allocate makes the master and the velocity, where they are needed and not
// there yet. A master that no step was made on is set to the parameter, which the
// program may have written since.
func (s *slot) allocate() error {
	dev, dt := s.Var().Device(), s.DType()
	if s.mastered() {
		dt = device.Float32
		if s.master == nil {
			m := autograd.Zeros(dev, dt, s.Shape()...)
			if err := m.Err(); err != nil {
				return fmt.Errorf("master of %s: %w", s.Name(), err)
			}
			s.master, s.unused = m.SetName(s.Name()+".master"), true
		}
		if s.unused {
			if err := dev.Kernels().Copy(dev.Compute(), s.master.Tensor(), s.Var().Tensor()); err != nil {
				return fmt.Errorf("master of %s: %w", s.Name(), err)
			}
		}
	}
	if s.velocity != nil || s.group.Momentum == 0 {
		return nil
	}
	v := autograd.Zeros(dev, dt, s.Shape()...)
	if err := v.Err(); err != nil {
		return fmt.Errorf("velocity of %s: %w", s.Name(), err)
	}
	s.velocity, s.first = v.SetName(s.Name()+".velocity"), true
	return nil
}

// update enqueues the update of one parameter.
func (s *slot) update(scaled Scaled) error {
	v, o := s.Var(), &s.group.SGDOptions
	step := device.SGDStep{
		Param: v.Tensor(), Grad: s.grad, Skip: v.GradSkip(), LossScale: scaled.By, Overflow: scaled.Overflow,
		LR: o.LR, Momentum: o.Momentum, Dampening: o.Dampening, WeightDecay: o.WeightDecay, Nesterov: o.Nesterov,
	}
	if s.master != nil {
		step.Master = s.master.Tensor()
	}
	if o.Momentum != 0 {
		step.Velocity, step.First = s.velocity.Tensor(), s.first
	}
	dev := v.Device()
	if err := dev.Kernels().SGD(dev.Compute(), step); err != nil {
		return fmt.Errorf("update of %s: %w", s.Name(), err)
	}
	return nil
}

// ZeroGrad forgets the gradients of all parameters: see
// [autograd.Variable.ZeroGrad].
func (o *SGD) ZeroGrad() {
	for _, s := range o.slots {
		s.Var().ZeroGrad()
	}
}
