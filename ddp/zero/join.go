package zero

import (
	"context"
	"errors"
	"fmt"

	"github.com/goddp/goddp/ddp"
	"github.com/goddp/goddp/ddp/reducer"
)

// JoinOptions are how [Model.Join] goes. The zero value is the good default. They
// are the same on every rank.
type JoinOptions struct {
	Disabled       bool // see [ddp.JoinOptions]
	DivideByActive bool // see [ddp.JoinOptions]
	StopEarly      bool // see [ddp.JoinOptions]
	// Step is what the loop does between Backward and ZeroGrad, where that is more
	// than the optimizer's Step: a loss scale's Step and Update, clipping, an
	// average to update. It makes the optimizer's step. The loop calls it, and so
	// does Join where the others' do.
	Step func() error
	// With takes part beside the model and behind the step, in this order.
	With []ddp.Joinable
}

// Join runs f, a rank's training loop, where ranks may have different numbers of
// inputs: see [ddp.Model.Join]. A rank whose f has returned makes the steps of the
// others with them, each of its own shards, so that state and parameters are, on all
// ranks, those of all steps.
//
// Behind each backward pass that reduces f makes one step. Where f fails between the
// two, the others wait for this rank's shards: Join makes that step, and then tells
// them of the error.
func (m *Model) Join(opts *JoinOptions, f func() error) error {
	var o JoinOptions
	if opts != nil {
		o = *opts
	}
	if o.Disabled {
		return f()
	}
	s := m.shards
	var err error
	if s.join.on {
		err = errors.New("Join was called within Join")
	} else {
		ctx := context.Background() // its calls have deadlines of their own
		err = reducer.Verify(ctx, s.pg, reducer.List{What: "join option", Items: []string{fmt.Sprint("Step ", o.Step != nil)}})
	}
	if err != nil {
		return fmt.Errorf("zero: join: %w", err)
	}
	step := steps(o.Step)
	if step == nil {
		step = m.step
	}
	s.join = joining{on: true, customStep: o.Step != nil}
	defer func() { s.join = joining{} }()
	return m.Model.Join(&ddp.JoinOptions{
		DivideByActive: o.DivideByActive, StopEarly: o.StopEarly, With: append([]ddp.Joinable{step}, o.With...),
	}, func() error {
		err := f()
		if err != nil && s.join.owes && !s.skipped() {
			step() // where that fails too it has torn the step and broken the group, for err
		}
		return err
	})
}

// joining is what goes on within Join.
type joining struct {
	on         bool
	customStep bool // the program's function makes the steps
	owes       bool // a pass was reduced, and nobody has begun a step behind it
}

// steps are the optimizer's as [ddp.Model.Join] has a rank make them that has no
// inputs.
type steps func() error

func (s steps) Shadow() error { return s() }

// Joined has nothing to do: every rank has made every step.
func (s steps) Joined(int) error { return nil }

// skipped tells whether all ranks skip the step behind the last pass. It waits for
// the outcome.
func (s *shards) skipped() bool { return s.parts[0].Var().GradErr() != nil }
