package optim

import (
	"context"
	"fmt"
	"sync"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/nn"
)

// TornError says that a device failed in the middle of a step, or what was to
// make the gradients behind updates that were enqueued already: some parameters
// may be updated and others not. It wraps the error.
type TornError struct {
	Step    int // the step that was not committed, from 1
	Updated int // parameters that were updated, for certain
	Params  int // parameters that were to be updated
	Err     error
}

func (e *TornError) Error() string {
	return fmt.Sprintf("optim: step %d is torn, %d of %d parameters updated: %v", e.Step, e.Updated, e.Params, e.Err)
}

func (e *TornError) Unwrap() error { return e.Err }

// progress is how far an optimizer is. The goroutine that drives it writes it,
// under mu, for others to read.
type progress struct {
	mu       sync.Mutex
	steps    int  // committed
	changing bool // the parameters are not what they were after so many steps, or may not be
}

func (p *progress) set(steps int, changing bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.steps, p.changing = steps, changing
}

// Committed is how many steps were committed, and whether the parameters and
// the state are whole: what these steps made of them, and neither torn, nor
// being changed or restored right now. Any goroutine may ask at any time. One
// that saves them while another may begin a step asks again afterwards: with
// the same answer, what it saved is whole.
func (p *progress) Committed() (steps int, whole bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.steps, !p.changing
}

// State is what the optimizer keeps from step to step beside their number: the
// masters of 16-bit parameters, as "NAME.master", and what its rule keeps, such
// as the velocities of [SGD], as "NAME.velocity". What is not there yet is made,
// masters of the parameters and the rest of zeros, so that a saved state can be
// read into it; the error is that there is no memory for it.
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

// Restoring says that the program is about to write the parameters, or what
// State returned. Until Restored they are not whole, and Step returns an error.
func (o *optimizer) Restoring() {
	o.set(o.steps, true)
	o.torn = fmt.Errorf("optim: step %d: the state is being restored, or that failed", o.steps+1)
	for _, s := range o.slots {
		s.rule.restoring()
	}
}

// Restored says that the parameters, and what State returned, hold what they
// held when the given number of steps was committed. The optimizer goes on from
// there, whole again if a step was torn.
//
// The velocities and the masters in State do not tell which parameters had a gradient
// in these steps. After one step or more each counts as one that had: the next
// gradient is damped ([SGDOptions]), and a master is as it was restored, whatever the
// program writes to the parameter afterwards.
func (o *optimizer) Restored(steps int) {
	o.torn = nil
	for _, s := range o.slots {
		s.rule.restored(steps)
		s.unused = steps == 0
	}
	o.set(steps, false)
}

// Lend says that the program is about to put other numbers in the place of the
// parameters, for a while. Until back says that these are there again, they are not
// whole, and Step returns an error. What State returned stays as it is.
func (o *optimizer) Lend() (back func()) {
	_, whole := o.Committed()
	before, lent := o.torn, fmt.Errorf("optim: step %d: other numbers are in the place of the parameters, or these could not be put back", o.steps+1)
	o.set(o.steps, true)
	o.torn = lent
	return func() {
		if o.torn == lent { // else it was torn, or restored, since
			o.torn = before
			o.set(o.steps, !whole)
		}
	}
}

// State is what opt keeps from step to step, by name: what its State returns, as
// [nn.State] is that of a module.
func State(opt Optimizer) (map[string]*autograd.Variable, error) {
	kept, err := opt.State()
	if err != nil {
		return nil, err
	}
	return nn.State(keeper(kept)), nil
}

// LoadState sets what opt keeps to a state that [State] returned, which may be on
// another device, and has it go on from the number of steps that it was saved after,
// as [SGD.Restored] does. The parameters are to be those of that step: [nn.LoadState]
// sets them, before or after. A state that does not fit in every name and shape is an
// [*nn.StateError], and changes nothing; after another error, a device's, the state is
// torn.
func LoadState(ctx context.Context, opt Optimizer, steps int, state map[string]*autograd.Variable) error {
	kept, err := opt.State()
	if err != nil {
		return err
	}
	if err := nn.CheckState(keeper(kept), state); err != nil {
		return fmt.Errorf("optim: %w", err)
	}
	opt.Restoring()
	if err := nn.LoadState(ctx, keeper(kept), state); err != nil {
		return fmt.Errorf("optim: %w", err)
	}
	opt.Restored(steps)
	return nil
}

// keeper is a module that has an optimizer's state for its buffers.
type keeper []*nn.Buffer

func (k keeper) Buffers() []*nn.Buffer                           { return k }
func (k keeper) Parameters() []*nn.Parameter                     { return nil }
func (k keeper) Forward(x *autograd.Variable) *autograd.Variable { return x }
