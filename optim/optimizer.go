package optim

import (
	"errors"
	"fmt"
	"slices"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/capture"
	"github.com/goddp/goddp/internal/gradsink"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/profile"
)

// OptionError reports an invalid option of an optimizer.
type OptionError struct {
	Option string
	Value  any
	Want   string
}

func (e *OptionError) Error() string {
	return fmt.Sprintf("optim: %s is %v, want %s", e.Option, e.Value, e.Want)
}

// checkNotNegative returns an error unless all values are 0 or more. names are the options' names,
// in the same order.
func checkNotNegative(names []string, values ...float64) error {
	for i, v := range values {
		if !(v >= 0) {
			return &OptionError{names[i], v, "0 or more"}
		}
	}
	return nil
}

// checkUnchanged returns an error if an option was changed that cannot change later.
func checkUnchanged[T comparable](option string, now, initial T) error {
	if now != initial {
		return &OptionError{option, now, fmt.Sprintf("%v, as when the optimizer was made", initial)}
	}
	return nil
}

// Optimizer is the interface that packages ddp, ddp/zero, amp, train and checkpoint require. All optimizers of
// this package implement it, and so do [EMA] and zero.Optimizer. All methods except Committed are called from
// the training goroutine.
type Optimizer interface {
	// Parameters returns the parameters that the optimizer updates, at least one, each once,
	// all on one device.
	Parameters() []*nn.Parameter
	// Step updates the parameters from their gradients and commits the step. If it returns an error
	// that matches [device.ErrSkipped], nothing has changed.
	Step() error
	// ZeroGrad discards the gradients of all parameters.
	ZeroGrad()
	// Committed returns the number of committed steps, and whether the parameters and the state are
	// those after that many steps. Any goroutine may call it.
	Committed() (steps int, consistent bool)
	// State returns the state that the optimizer keeps between steps, with the same names and shapes on all
	// ranks. It creates variables that do not exist yet.
	State() ([]*nn.Buffer, error)
	// BeginLoad must be called before writing the parameters or the variables that State returned. Until
	// EndLoad they are inconsistent.
	BeginLoad()
	// EndLoad must be called after the load. Parameters and state are then those after the given number of
	// steps.
	EndLoad(steps int)
}

// ScaledStepper is an [Optimizer] that can step with the gradients of a scaled loss. Package amp
// needs one.
type ScaledStepper interface {
	// StepScaled is Step for gradients of a scaled loss. If a gradient overflowed, it changes nothing and
	// returns s.Err's error.
	StepScaled(s Scaled) error
}

// LRSetter is an [Optimizer] whose learning rate can be set. Package train needs one if its
// Config has a schedule.
type LRSetter interface {
	SetLR(lr float64)
}

// LRKeeper is an [LRSetter] whose learning rates can be restored. Package train uses one when a run with a
// schedule ends.
type LRKeeper interface {
	// KeepLR returns a function that restores the current learning rate of each parameter group.
	KeepLR() (restore func())
}

// ParameterSwapper is an [Optimizer] whose parameters can be replaced temporarily. [EMA.With] needs one.
type ParameterSwapper interface {
	// SwapParameters must be called before replacing the values of the parameters. Until the caller has
	// restored the original values and calls restored, the parameters are inconsistent and Step returns an
	// error.
	SwapParameters() (restored func())
}

// optimizer is the common part of all optimizers: it commits steps and keeps the state. Only Committed may be
// called from several goroutines.
type optimizer struct {
	slots        []*slot
	slotOf       map[any]int   // index in slots, by the identity of a parameter
	ready        []*slot       // the slots that have a gradient in the current step
	batch        batch         // empty between steps
	hook         StepHook      // nil: none
	finish       func() error  // makes the updates that need other ranks, if no update is skipped; nil: there are none
	committed    func()        // see OnCommit
	capturing    *capture.Step // the step that is being captured and has a step of this optimizer; else nil
	inconsistent error         // the error that Step returns until a state is loaded; nil: none
	progress
}

// slot is one parameter and its state.
type slot struct {
	*nn.Parameter
	rule   rule
	found  *autograd.Variable // the gradient in the current step
	grad   device.Tensor      // the memory of found, once the update is enqueued
	master *autograd.Variable // the Float32 copy; nil before the first step and if there is none
	unused bool               // no step has updated the master yet: the next step first copies the parameter, or its Master, into the master
}

// rule updates one parameter and keeps the state for it.
type rule interface {
	// check returns an [*OptionError] if an option cannot be used.
	check() error
	// hasMaster reports whether a 16-bit parameter has a master.
	hasMaster() bool
	// allocate creates the state variables that an update needs and that do not exist yet, as zeros
	// of type dt.
	allocate(s *slot, dt device.DType) error
	// update adds the update to batch, or enqueues it.
	update(s *slot, scaled Scaled, batch *batch) error
	// updated is called after an update that was not skipped.
	updated()
	// state returns the variables that allocate created, with their current values.
	state() ([]*autograd.Variable, error)
	// beginLoad is called before the caller writes the state.
	beginLoad()
	// endLoad is called after the caller has written the state, which is then the state after steps steps.
	endLoad(steps int)
}

// StepHook is called within Step, after the updates. Package ddp/zero uses one to send each rank the
// parameters that other ranks have updated. If the step is captured ([autograd.Capture]), Updated is called
// when it is captured, and Complete in each replay.
type StepHook interface {
	// Updated is called after the update of p is enqueued, in the order of Parameters, for each parameter with
	// a gradient.
	Updated(p *nn.Parameter)
	// Complete is called after all updates are enqueued and it is known that none is skipped. The optimizer's
	// state is then that of the new step. If Complete returns an error, the step is not committed and Step
	// returns an [*InconsistentError].
	Complete() error
}

// SetStepHook sets the hook for all following steps; nil removes it.
func (o *optimizer) SetStepHook(h StepHook) { o.hook = h }

// OnCommit sets the function that is called after each committed step; nil: none. Package elastic copies what the
// repetition of a failed step needs.
func (o *optimizer) OnCommit(f func()) { o.committed = f }

// updatesParts is embedded in optimizers that can update parts of parameters.
type updatesParts struct{}

// UpdatesParts marks an optimizer that can update parts of parameters ([nn.NewPart]), as package ddp/zero requires. It
// changes each element only by that element's gradient and state, or it is a [Muon].
func (updatesParts) UpdatesParts() {}

// groups are the parameter groups of an optimizer. G is a pointer to the type of a group.
type groups[G interface{ rate() *float64 }] struct{ all []G }

// Groups returns the groups of parameters. The caller may change their options between steps.
func (g *groups[G]) Groups() []G { return g.all }

// SetLR sets the learning rate of all groups that Groups returns.
func (g *groups[G]) SetLR(lr float64) {
	for _, group := range g.all {
		*group.rate() = lr
	}
}

// KeepLR returns a function that restores the current learning rates of the groups that Groups returns.
func (g *groups[G]) KeepLR() (restore func()) {
	var rates []float64
	for _, group := range g.all {
		rates = append(rates, *group.rate())
	}
	return func() {
		for i, lr := range rates {
			*g.all[i].rate() = lr
		}
	}
}

// add adds parameters, each with its own rule. If a variable has several names in params (tied weights), the
// first name is used. add returns an [*OptionError] if a parameter was added before, or twice under the same
// name.
func (o *optimizer) add(params []*nn.Parameter, newRule func() rule) error {
	if o.slotOf == nil {
		o.slotOf = map[any]int{}
	}
	group := len(o.slots)
	for _, p := range params {
		if i, known := o.slotOf[p.Identity()]; known {
			first := o.slots[i].Parameter
			if i >= group && first.Name() != p.Name() {
				continue
			}
			return &OptionError{"Params", fmt.Sprintf("%s, already added as %s", p.Name(), first.Name()), "each parameter once"}
		}
		o.slotOf[p.Identity()] = len(o.slots)
		o.slots = append(o.slots, &slot{Parameter: p, rule: newRule()})
	}
	return nil
}

// Parameters returns the parameters of all groups, each once.
func (o *optimizer) Parameters() []*nn.Parameter {
	var params []*nn.Parameter
	for _, s := range o.slots {
		params = append(params, s.Parameter)
	}
	return params
}

// ZeroGrad discards the gradients of all parameters: see [autograd.Variable.ZeroGrad].
func (o *optimizer) ZeroGrad() {
	for _, s := range o.slots {
		s.Var().ZeroGrad()
	}
}

// Step updates the parameters from their gradients, in place. A parameter without a gradient is unchanged. If a
// gradient must not be used, an option is invalid or there is too little memory for the state, Step returns an
// error and changes nothing. If the device or the reduction of a gradient fails after updates were enqueued,
// Step returns an [*InconsistentError].
func (o *optimizer) Step() error { return o.StepScaled(Scaled{}) }

// Scaled describes the gradients of a scaled loss, which avoids underflow in Float16: see package amp. The zero
// value describes an unscaled loss.
type Scaled struct {
	// LossScale is the factor of the loss. The update divides the gradients by it. 0 means 1.
	LossScale float64
	// Overflow is one byte on the device. If it is not zero when the updates run, they write nothing.
	Overflow device.Tensor
	// Err returns nil if Overflow is zero, and otherwise an error that matches
	// [device.ErrSkipped]. It may wait for the device.
	Err func() error

	capturing *capture.Step       // the step that is being captured; nil if there is none
	captured  *capture.ScaledStep // the gradients' scale in replays; nil if the loss is not scaled
}

// StepScaled is Step for the gradients of a scaled loss. If a gradient overflowed, StepScaled
// changes nothing and returns the error of s.Err.
func (o *optimizer) StepScaled(s Scaled) error {
	if o.inconsistent != nil {
		return o.inconsistent
	}
	if err := o.prepare(); err != nil {
		return fmt.Errorf("optim: step %d: %w", o.steps+1, err)
	}
	if len(o.ready) == 0 {
		return nil
	}
	if r := capture.Of(o.ready[0].Var().Device()); r != nil {
		return o.capture(r, s)
	}
	o.set(o.steps, true)
	updated, err := o.update(s)
	return o.conclude(o.ready, s, updated, err)
}

// conclude ends a step after its updates are enqueued. No gradient has another outcome than those of asked. err is
// the error of enqueueing the updates, and updated the number of updates that were enqueued.
func (o *optimizer) conclude(asked []*slot, s Scaled, updated int, err error) error {
	if err == nil {
		updated, err = 0, outcome(asked, s)
	}
	if err == nil {
		for _, s := range o.ready { // the state is now that of this step, even if the hook fails
			s.rule.updated()
			s.unused = false
			s.SetMaster(nil)
		}
		if o.finish != nil {
			err = o.finish()
		}
		if err == nil {
			updated = len(o.ready)
		}
		if err == nil && o.hook != nil {
			err = o.hook.Complete()
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
		o.inconsistent = &InconsistentError{Step: o.steps + 1, Updated: updated, Params: len(o.ready), Err: err}
		return o.inconsistent
	}
	o.set(o.steps+1, false)
	if o.committed != nil {
		o.committed()
	}
	return nil
}

// written tells autograd that an update wrote the parameter and its master.
func (s *slot) written() {
	s.Var().BumpVersion()
	if s.master != nil {
		s.master.BumpVersion()
	}
}

// prepare does everything in a step that can fail while the device works. It collects the slots that have a gradient
// in o.ready. If one set of flags covers all gradients, prepare does not wait for pending gradients: the function
// outcome waits for them.
func (o *optimizer) prepare() error {
	o.ready = o.ready[:0]
	for _, s := range o.slots {
		if err := s.rule.check(); err != nil {
			return err
		}
	}
	for _, s := range o.slots {
		if s.Var().GradDivided() {
			return fmt.Errorf("the gradient of %s is sharded: step with the optimizer that zero.New returned", s.Name())
		}
		if s.found = s.Var().Grad(); s.found != nil {
			o.ready = append(o.ready, s)
		}
	}
	oneFlag := skipTogether(o.ready)
	for _, s := range o.slots {
		if v := s.Var(); !oneFlag || !gradsink.Of(v).Pending() {
			if err := v.GradErr(); err != nil {
				return fmt.Errorf("gradient of %s: %w", s.Name(), err)
			}
		}
	}
	if len(o.ready) == 0 {
		return nil
	}
	// Other streams may still read the memory that allocate and update write.
	if err := gradsink.AwaitReaders(o.ready[0].Var().Device()); err != nil {
		return err
	}
	for _, s := range o.ready {
		if err := s.allocate(); err != nil {
			return err
		}
	}
	return nil
}

// skip returns the flags by which the device skips the update of s: see [gradsink.Leaf.Skip].
func (s *slot) skip() device.Tensor { return gradsink.Of(s.Var()).Skip() }

// skipTogether reports whether one set of flags covers all updates, so that the device skips all or none.
func skipTogether(ready []*slot) bool {
	for _, s := range ready {
		if skip := s.skip(); skip.IsZero() || skip.Buf.Addr() != ready[0].skip().Buf.Addr() {
			return false
		}
	}
	return len(ready) > 0
}

// allocate creates the master and the state variables that do not exist yet. The parameter's unrounded values become the
// master. If no step has updated the master, allocate copies the parameter, or other unrounded values, into it, because the
// program may have written the parameter.
func (s *slot) allocate() error {
	dev, dt := s.Var().Device(), s.DType()
	if r := capture.Of(dev); r != nil && s.unused {
		return r.NotYet("no step has updated the master of %s", s.Name())
	}
	if s.rule.hasMaster() && dt.Size() == 2 {
		dt = device.Float32
		if s.master == nil {
			m := s.TakeMaster()
			if m == nil {
				var err error
				if m, err = s.zeros("master", dt, s.Var().Shape()...); err != nil {
					return err
				}
			}
			s.master, s.unused = m.SetName(s.Name()+".master"), true
		}
		from := s.Var()
		if m := s.Master(); m != nil {
			from = m
		}
		if s.unused && from != s.master {
			if err := dev.Kernels().Copy(dev.Compute(), s.master.Tensor(), from.Tensor()); err != nil {
				return fmt.Errorf("master of %s: %w", s.Name(), err)
			}
		}
	}
	return s.rule.allocate(s, dt)
}

// zeros creates a state variable of the parameter, named NAME.what.
func (s *slot) zeros(what string, dt device.DType, shape ...int) (*autograd.Variable, error) {
	if r := capture.Of(s.Var().Device()); r != nil {
		return nil, r.NotYet("%s of %s does not exist", what, s.Name())
	}
	v := autograd.Zeros(s.Var().Device(), dt, shape...)
	if err := v.Err(); err != nil {
		return nil, fmt.Errorf("%s of %s: %w", what, s.Name(), err)
	}
	return v.SetName(s.Name() + "." + what), nil
}

// masterTensor returns the master's tensor, or the zero Tensor if there is no master.
func (s *slot) masterTensor() device.Tensor {
	if s.master == nil {
		return device.Tensor{}
	}
	return s.master.Tensor()
}

// update enqueues the updates, and returns the number that it has enqueued, even if it returns an error. It starts
// with the last parameters, whose gradients are reduced first. With a hook, it uses the order of Parameters and does
// not batch updates.
func (o *optimizer) update(scaled Scaled) (updated int, err error) {
	defer trace(o.ready[0].Var().Device())()
	defer o.batch.clear()
	if o.hook == nil {
		slices.Reverse(o.ready)
	}
	for i, s := range o.ready {
		size := s.found.Shape().Len() * s.found.DType().Size()
		if o.batch.size+size > batchSize { // before Tensor, which may make the stream wait for a reduction
			if err := o.batch.enqueue(s.Var().Device()); err != nil {
				return updated, fmt.Errorf("enqueuing the updates before that of %s: %w", s.Name(), err)
			}
			updated = i
		}
		s.grad = s.found.Tensor()
		o.batch.size += size
		err := s.rule.update(s, scaled, &o.batch)
		if err == nil && (o.hook != nil || i == len(o.ready)-1) {
			if err = o.batch.enqueue(s.Var().Device()); err == nil {
				updated = i + 1
			}
		}
		if err != nil {
			return updated, fmt.Errorf("update of %s: %w", s.Name(), err)
		}
		if o.hook != nil && o.finish == nil {
			o.hook.Updated(s.Parameter)
		}
	}
	return updated, nil
}

// outcome returns the error of a gradient that was pending when its update was enqueued. It waits
// for the gradients while the updates run.
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

// trace starts a span in the device's trace. The caller must call end.
func trace(dev device.Device) (end func()) {
	t := profile.Of(dev)
	if !t.On() || capture.Of(dev) != nil { // captured events have no times
		return func() {}
	}
	start := dev.Compute().Record()
	return func() {
		t.Add(profile.Span{Track: profile.Compute, Name: "optimizer", Begin: start, End: dev.Compute().Record()})
	}
}
