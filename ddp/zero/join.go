package zero

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/goddp/goddp/ddp"
	"github.com/goddp/goddp/ddp/internal/buckets"
)

// JoinOptions are the options of [Model.Join]. The zero value is the default. They are the same on
// every rank.
type JoinOptions struct {
	Disabled       bool // see [ddp.JoinOptions]
	DivideByActive bool // see [ddp.JoinOptions]
	StopEarly      bool // see [ddp.JoinOptions]
	// Step does what the loop does between Backward and ZeroGrad, if that is more than the
	// optimizer's Step: the Step and Update of a loss scaler, clipping, updating an average. It
	// must make the optimizer's step. The loop calls it, and Join calls it on ranks without inputs.
	Step func() error
	// With lists further participants, which Join calls in this order after the step.
	With []ddp.Joinable
}

// Join calls f, the training loop of this rank. Ranks may have different numbers of inputs: see
// [ddp.Model.Join]. When f has returned, this rank still makes the steps of the other ranks, each
// with its own shards. So state and parameters are the result of all steps on all ranks.
//
// f must make one step after each backward pass that reduces. If f fails between the pass and the step, the
// other ranks wait for this rank's shards. So Join makes that step, and then tells the other ranks about the
// error.
func (m *Model) Join(f func() error, opts *JoinOptions) error {
	o := *cmp.Or(opts, &JoinOptions{})
	if o.Disabled {
		return f()
	}
	s := m.shards
	var err error
	if s.join.isActive {
		err = errors.New("Join was called within Join")
	} else if s.stage > 1 && o.DivideByActive {
		err = fmt.Errorf("JoinOptions.DivideByActive is set in stage %d, want stage 1", s.stage)
	} else {
		err = buckets.Verify(s.pg.Context(), s.pg, buckets.List{What: "join option", Items: []string{fmt.Sprint("Step ", o.Step != nil)}})
	}
	if err != nil {
		return fmt.Errorf("zero: join: %w", err)
	}
	step := steps(o.Step)
	if step == nil {
		step = m.step
	}
	s.join = joining{isActive: true, customStep: o.Step != nil}
	defer func() { s.join = joining{} }()
	return m.Model.Join(func() error {
		err := f()
		if err != nil && s.join.owesStep && !s.skipped() {
			step() // if this step fails too, it has aborted the group because of err's step
		}
		return err
	}, &ddp.JoinOptions{
		DivideByActive: o.DivideByActive, StopEarly: o.StopEarly, With: append([]ddp.Joinable{step}, o.With...),
	})
}

// joining is the state of Join.
type joining struct {
	isActive   bool
	customStep bool // JoinOptions.Step makes the steps
	owesStep   bool // a pass was reduced, and its step has not begun
}

// steps makes the steps of a rank without inputs, for [ddp.Model.Join].
type steps func() error

func (s steps) Shadow() error { return s() }

// Joined does nothing: every rank has made every step.
func (s steps) Joined(int) error { return nil }

// skipped reports whether all ranks skip the step after the last pass. It waits for the outcome of
// the pass.
func (s *shards) skipped() bool { return s.parts[0].Var().GradErr() != nil }
