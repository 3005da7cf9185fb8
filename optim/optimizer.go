package optim

import (
	"errors"
	"fmt"
	"slices"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/profile"
)

// OptionError is the panic value of options that make no sense.
type OptionError struct {
	Option string
	Value  any
	Want   string
}

func (e *OptionError) Error() string {
	return fmt.Sprintf("optim: %s is %v, want %s", e.Option, e.Value, e.Want)
}

// checkPositive panics unless values, in the order of their names, are 0 or
// more.
func checkPositive(names []string, values ...float64) {
	for i, v := range values {
		if !(v >= 0) {
			panic(&OptionError{names[i], v, "0 or more"})
		}
	}
}

// checkMasters panics where MasterWeights is not what the optimizer was made
// with.
func checkMasters(now, made bool) {
	if now != made {
		panic(&OptionError{"MasterWeights", now, fmt.Sprintf("%v, which the optimizer was made with", made)})
	}
}

// optimizer is what all optimizers have in common: how a step is committed, and
// what is kept from one to the next. It is driven by one goroutine; others may
// ask for what is Committed.
type optimizer struct {
	slots []*slot
	known map[any]int // by the identity of a parameter: its slot
	ready []*slot     // of the step: those with a gradient
	tail  Tail        // nil for none
	torn  error       // what Step returns until the state is restored
	progress
}

// slot is one parameter and what the optimizer knows of it.
type slot struct {
	*nn.Parameter
	rule   rule
	found  *autograd.Variable // of the step: the gradient
	grad   device.Tensor      // the same, once the update is enqueued
	master *autograd.Variable // nil before the first step, and where there is to be none
	unused bool               // no step was made on the master: the parameter is what counts
}

// rule is how one parameter is updated, and what is kept for that.
type rule interface {
	// check panics with an [*OptionError] when options make no sense.
	check()
	// masters tells whether a parameter of 16 bits has a master.
	masters() bool
	// allocate makes what an update needs and is not there yet, as zeros of
	// type dt.
	allocate(s *slot, dt device.DType) error
	// update enqueues the update.
	update(s *slot, scaled Scaled) error
	// updated says that the update was made, and was not skipped.
	updated()
	// state is what was allocated, with its present numbers.
	state() ([]*autograd.Variable, error)
	// restoring says that state is about to be written.
	restoring()
	// restored says that state holds what it held after so many steps.
	restored(steps int)
}

// Tail is what a step has to do behind its updates to be one, such as to give
// each rank what others have updated: see package ddp/zero. Its methods are
// called within Step.
type Tail interface {
	// Updated says that the update of p is enqueued. It is called in the order of
	// Parameters, for those that have a gradient.
	Updated(p *nn.Parameter)
	// Complete says that all updates are enqueued, and that none of them was
	// skipped: what the optimizer keeps is that of the step from now on. An error
	// tears the step.
	Complete() error
}

// SetTail gives the steps from now on a tail, nil for none.
func (o *optimizer) SetTail(t Tail) { o.tail = t }

// elementwise is embedded by optimizers with such a rule.
type elementwise struct{}

// Elementwise tells those who hand out parts of parameters as parameters (package
// ddp/zero) that the rule changes each element by its own gradient and state
// alone.
func (elementwise) Elementwise() {}

// add puts parameters under rules, tied ones once. It panics with an [*OptionError]
// when one is there already, in another group or by the same name.
func (o *optimizer) add(params []*nn.Parameter, newRule func() rule) {
	if o.known == nil {
		o.known = map[any]int{}
	}
	group := len(o.slots)
	for _, p := range params {
		if i, known := o.known[p.Identity()]; known {
			there := o.slots[i].Parameter
			if i >= group && there.Name() != p.Name() {
				continue
			}
			panic(&OptionError{"Params", fmt.Sprintf("%s, there already as %s", p.Name(), there.Name()), "each parameter once"})
		}
		o.known[p.Identity()] = len(o.slots)
		o.slots = append(o.slots, &slot{Parameter: p, rule: newRule()})
	}
}

// Parameters are those that are optimized, group by group, each once.
func (o *optimizer) Parameters() []*nn.Parameter {
	var params []*nn.Parameter
	for _, s := range o.slots {
		params = append(params, s.Parameter)
	}
	return params
}

// ZeroGrad forgets the gradients of all parameters: see
// [autograd.Variable.ZeroGrad].
func (o *optimizer) ZeroGrad() {
	for _, s := range o.slots {
		s.Var().ZeroGrad()
	}
}

// Step changes the parameters by their gradients, in place; those without a
// gradient stay as they are. It returns, having changed nothing, the error of
// a gradient that must not be used, or that there is no memory for what the
// optimizer keeps. It returns a [*TornError] when the device, or what was to make
// a gradient, failed on the way.
func (o *optimizer) Step() error { return o.StepScaled(Scaled{}) }

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

// StepScaled is Step with gradients of a scaled loss. Those that overflowed are
// no step: the error is s.Err's, with everything as it was.
func (o *optimizer) StepScaled(s Scaled) error {
	if o.torn != nil {
		return o.torn
	}
	if err := o.prepare(); err != nil {
		return fmt.Errorf("optim: step %d: %w", o.steps+1, err)
	}
	if len(o.ready) == 0 {
		return nil
	}
	o.set(o.steps, true)
	updated, err := o.update(s)
	if err == nil {
		updated, err = 0, outcome(o.ready, s)
	}
	if err == nil {
		for _, s := range o.ready { // what is kept is that of the step now, whatever becomes of the tail
			s.rule.updated()
			s.unused = false
		}
		if o.tail != nil {
			updated, err = len(o.ready), o.tail.Complete()
		}
	}
	if errors.Is(err, device.ErrSkipped) {
		o.set(o.steps, false)
		return fmt.Errorf("optim: step %d: %w", o.steps+1, err)
	}
	for _, s := range o.ready {
		s.written()
	}
	if err != nil {
		o.torn = &TornError{Step: o.steps + 1, Updated: updated, Params: len(o.ready), Err: err}
		return o.torn
	}
	o.set(o.steps+1, false)
	return nil
}

// written tells autograd that an update wrote the parameter, and what is kept for it.
func (s *slot) written() {
	s.Var().BumpVersion()
	if s.master != nil {
		s.master.BumpVersion()
	}
}

// prepare does all of a step that can fail for a reason other than a broken
// device, and finds the parameters that have a gradient. What is not known yet
// of gradients that the same flags tell of is left to outcome.
func (o *optimizer) prepare() error {
	o.ready = o.ready[:0]
	for _, s := range o.slots {
		s.rule.check()
	}
	for _, s := range o.slots {
		if s.found = s.Var().Grad(); s.found != nil {
			o.ready = append(o.ready, s)
		}
	}
	ahead := together(o.ready)
	for _, s := range o.slots {
		if v := s.Var(); !ahead || !v.GradPending() {
			if err := v.GradErr(); err != nil {
				return fmt.Errorf("gradient of %s: %w", s.Name(), err)
			}
		}
	}
	if len(o.ready) == 0 {
		return nil
	}
	// Other streams may read what allocate and update write.
	if err := autograd.AwaitReaders(o.ready[0].Var().Device()); err != nil {
		return err
	}
	for _, s := range o.ready {
		if err := s.allocate(); err != nil {
			return err
		}
	}
	return nil
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

// allocate makes the master, and what else is needed and not there yet. A master
// that no step was made on is set to the parameter, which the program may have
// written since.
func (s *slot) allocate() error {
	dev, dt := s.Var().Device(), s.DType()
	if s.rule.masters() && dt.Size() == 2 {
		dt = device.Float32
		if s.master == nil {
			m, err := s.zeros("master", dt, s.Var().Shape()...)
			if err != nil {
				return err
			}
			s.master, s.unused = m, true
		}
		if s.unused {
			if err := dev.Kernels().Copy(dev.Compute(), s.master.Tensor(), s.Var().Tensor()); err != nil {
				return fmt.Errorf("master of %s: %w", s.Name(), err)
			}
		}
	}
	return s.rule.allocate(s, dt)
}

// zeros makes what is kept for the parameter.
func (s *slot) zeros(what string, dt device.DType, shape ...int) (*autograd.Variable, error) {
	v := autograd.Zeros(s.Var().Device(), dt, shape...)
	if err := v.Err(); err != nil {
		return nil, fmt.Errorf("%s of %s: %w", what, s.Name(), err)
	}
	return v.SetName(s.Name() + "." + what), nil
}

// masterTensor is the master's; the zero Tensor where there is none.
func (s *slot) masterTensor() device.Tensor {
	if s.master == nil {
		return device.Tensor{}
	}
	return s.master.Tensor()
}

// update enqueues the updates, and returns how many of them before an error. They
// begin with the last parameters, whose gradients are there first; a tail is told of
// them in the order of Parameters.
func (o *optimizer) update(scaled Scaled) (int, error) {
	defer record(o.ready[0].Var().Device())()
	if o.tail == nil {
		slices.Reverse(o.ready)
	}
	for i, s := range o.ready {
		s.grad = s.found.Tensor()
		if err := s.rule.update(s, scaled); err != nil {
			return i, fmt.Errorf("update of %s: %w", s.Name(), err)
		}
		if o.tail != nil {
			o.tail.Updated(s.Parameter)
		}
	}
	return len(o.ready), nil
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
