package optim

import (
	"fmt"

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

// Steps is how many steps were committed.
func (o *SGD) Steps() int { return o.steps }

// State is what the optimizer keeps from step to step beside their number: the
// velocities of the parameters with momentum, as "NAME.velocity". Those that
// are not there yet are made, of zeros, so that a saved state can be read into
// them; the error is that there is no memory for one.
func (o *SGD) State() ([]*nn.Buffer, error) {
	var state []*nn.Buffer
	for _, s := range o.slots {
		if s.group.Momentum == 0 {
			continue
		}
		if err := s.allocate(); err != nil {
			return nil, fmt.Errorf("optim: %w", err)
		}
		state = append(state, nn.NewBuffer(s.velocity.Name(), s.velocity))
	}
	return state, nil
}

// Restored says that the parameters, and what [SGD.State] returned, hold what
// they held when the given number of steps was committed. The optimizer goes
// on from there, whole again if a step was torn.
func (o *SGD) Restored(steps int) {
	o.steps, o.torn = steps, nil
	for _, s := range o.slots {
		s.first = steps == 0
	}
}
