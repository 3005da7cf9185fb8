package optim

import (
	"context"
	"fmt"
	"sync"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/nn"
)

// InconsistentError reports that the device or the reduction of a gradient failed after updates were enqueued. Some
// parameters may be updated and others not. It wraps the cause.
type InconsistentError struct {
	Step    int // the step that was not committed, counted from 1
	Updated int // the number of parameters that were certainly updated
	Params  int // the number of parameters that the step had to update
	Err     error
}

func (e *InconsistentError) Error() string {
	return fmt.Sprintf("optim: step %d failed, the parameters are inconsistent: %d of %d are updated: %v", e.Step, e.Updated, e.Params, e.Err)
}

func (e *InconsistentError) Unwrap() error { return e.Err }

// progress is the number of committed steps. Only the training goroutine writes it, any goroutine may read it.
type progress struct {
	mu       sync.Mutex
	steps    int  // the number of committed steps
	changing bool // the parameters or the state may differ from those after that many steps
}

// set replaces the number of committed steps.
func (p *progress) set(steps int, changing bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.steps, p.changing = steps, changing
}

// Committed returns the number of committed steps. consistent reports whether parameters and state are exactly those
// after that many steps: no step has failed halfway, and no step or load is in progress. Any goroutine may call
// Committed at any time. To copy the state while another goroutine may start a step, call Committed before and after:
// if both results are equal, the copy is consistent.
func (p *progress) Committed() (steps int, consistent bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.steps, !p.changing
}

// State returns the state that the optimizer keeps between steps: the masters of 16-bit parameters, named
// "NAME.master", and the state of the update rule, such as the velocities of [SGD], named "NAME.velocity". State
// creates variables that do not exist yet, so that a saved state can be loaded into them. A new master is a copy of the
// parameter or of its unrounded values; other new variables are zeros. State returns an error if there is too little
// memory.
func (o *optimizer) State() ([]*nn.Buffer, error) {
	var state []*nn.Buffer
	for _, s := range o.slots {
		err := s.allocate()
		var kept []*autograd.Variable
		if err == nil {
			kept, err = s.rule.state()
		}
		if err != nil {
			return nil, fmt.Errorf("optim: %w", err)
		}
		if s.master != nil {
			state = append(state, nn.NewBuffer(s.master.Name(), s.master))
		}
		for _, v := range kept {
			state = append(state, nn.NewBuffer(v.Name(), v))
		}
	}
	return state, nil
}

// BeginLoad must be called before writing the parameters or the variables that State returned. Until EndLoad the
// optimizer is inconsistent, and Step returns an error.
func (o *optimizer) BeginLoad() {
	o.set(o.steps, true)
	o.inconsistent = fmt.Errorf("optim: step %d: a state is being loaded, or loading it failed", o.steps+1)
	for _, s := range o.slots {
		s.rule.beginLoad()
	}
}

// EndLoad must be called after the load. The parameters and the variables that State returned are then those after the
// given number of steps, and the optimizer continues from there.
//
// A state does not say which parameters had a gradient in earlier steps. If steps is 1 or more, EndLoad assumes that
// each parameter had one. Then the next gradient is dampened ([SGDOptions]), and a master keeps its loaded value even
// if the program writes the parameter.
func (o *optimizer) EndLoad(steps int) {
	o.inconsistent = nil
	for _, s := range o.slots {
		s.rule.endLoad(steps)
		s.SetMaster(nil) // the master of the values before the load
		s.unused = steps == 0
	}
	o.set(steps, false)
}

// SwapParameters must be called before temporarily replacing the values of the parameters. Until the caller has
// restored the original values and calls restored, the optimizer is inconsistent and Step returns an error. The caller
// must not change the variables that State returned.
func (o *optimizer) SwapParameters() (restored func()) {
	_, consistent := o.Committed()
	before := o.inconsistent
	swapped := fmt.Errorf("optim: step %d: the parameters are swapped for other values, or the original values could not be restored", o.steps+1)
	o.set(o.steps, true)
	o.inconsistent = swapped
	return func() {
		if o.inconsistent == swapped { // otherwise a state was loaded in the meantime
			o.inconsistent = before
			o.set(o.steps, !consistent)
		}
	}
}

// State returns the state of an optimizer by name, as [nn.State] does for a module. It returns an error if the state is
// sharded, as in package ddp/zero.
func State(opt Optimizer) (map[string]*autograd.Variable, error) {
	kept, err := opt.State()
	if err != nil {
		return nil, err
	}
	for _, b := range kept {
		if _, divided := b.Span(); divided {
			return nil, fmt.Errorf("optim: %s is sharded: use zero.Optimizer.Gather", b.Name())
		}
	}
	return nn.State(stateModule(kept)), nil
}

// LoadState sets the state of opt to one that [State] returned, which may be on another device. opt continues from the
// number of steps after which the state was saved, as [SGD.EndLoad] describes. The caller must set the parameters to
// those of the same step with [nn.LoadState], before or after. If the names and shapes in the state differ from those
// of opt, LoadState returns an [*nn.StateError] and changes nothing. After any other error the optimizer is
// inconsistent.
func LoadState(ctx context.Context, opt Optimizer, steps int, state map[string]*autograd.Variable) error {
	kept, err := opt.State()
	if err != nil {
		return err
	}
	if err := nn.CheckState(stateModule(kept), state); err != nil {
		return fmt.Errorf("optim: %w", err)
	}
	opt.BeginLoad()
	if err := nn.LoadState(ctx, stateModule(kept), state); err != nil {
		return fmt.Errorf("optim: %w", err)
	}
	opt.EndLoad(steps)
	return nil
}

// stateModule is a module whose buffers are the state of an optimizer.
type stateModule []*nn.Buffer

func (m stateModule) Buffers() []*nn.Buffer       { return m }
func (m stateModule) Parameters() []*nn.Parameter { return nil }
