package elastic

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/checkpoint"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/data"
	"github.com/goddp/goddp/optim"
)

// Config says what a loop changes.
type Config struct {
	// State is the loop's state: the model, one optimizer, and Values that change from step to step. Run adds the
	// position in Data ("position") and the device's random generator ("generator").
	State checkpoint.State
	// Data is the loader of the loop. nil: the loop keeps its position in State.Values.
	Data *data.Loader
	// Restore sets State, by a checkpoint for example. Run calls it on all ranks before the first step, and if the
	// ranks that are left do not have the state after the last committed step. nil: the state is there when Run is
	// called, and its loss is an error.
	Restore func(ctx context.Context) error
}

// A regrouper is a model that adapts itself to new members of its group, such as [*ddp.Model].
type regrouper interface {
	Regroup(ctx context.Context) error
}

// A divided optimizer divides its state among the ranks, as the one of package ddp/zero. It regroups its model too.
type divided interface {
	Progress() comm.Progress
	Regroup(ctx context.Context, m comm.Membership) (hasState bool, err error)
	SendCopies(ctx context.Context) error
}

// LostStateError says that the ranks that are left do not have the state after the last committed step, and that
// Config.Restore is nil or found no checkpoint.
type LostStateError struct{ Step int }

func (e *LostStateError) Error() string {
	return fmt.Sprintf("elastic: the ranks that are left do not have the state after step %d: want Config.Restore, which loads a checkpoint", e.Step)
}

// Run calls loop until it returns without an error on all ranks of pg. After an error by which pg has failed, Run
// waits for the job's next members and calls loop again. It returns any other error. All ranks call Run, once in a program.
func Run(ctx context.Context, pg *comm.ProcessGroup, c *Config, loop func(ctx context.Context) error) error {
	switch {
	case pg == nil:
		return fmt.Errorf("elastic: %w", comm.ErrNoGroup)
	case pg.Survives():
	case c.Restore != nil:
		if err := c.Restore(ctx); err != nil {
			return err
		}
		fallthrough
	default:
		return loop(ctx)
	}
	r, err := newRun(pg, c)
	if err != nil {
		return fmt.Errorf("elastic: %w", err)
	}
	defer func() { r.close() }()
	for {
		if err := r.regroup(ctx); err != nil {
			return err
		}
		err := loop(ctx)
		if err == nil {
			err = comm.Agree(ctx, pg, nil) // the end of the loop on all ranks
		}
		if err == nil || !pg.Failed() || ctx.Err() != nil {
			return err
		}
	}
}

// run is the state of Run on one rank.
type run struct {
	*Config
	pg        *comm.ProcessGroup
	model     regrouper
	optimizer optim.Optimizer
	divided   divided          // nil: each rank has the whole state
	all       checkpoint.State // State with what Run adds to it
	position  data.Position    // is in all.Values
	last      commit
	close     func()
	// isRestoring says that Restore has not ended with success, so that the state is not one after any step.
	isRestoring bool
}

func newRun(pg *comm.ProcessGroup, c *Config) (*run, error) {
	model, isRegrouper := c.State.Model.(regrouper)
	switch {
	case len(c.State.Optimizers) != 1:
		return nil, fmt.Errorf("the state has %d optimizers, want one", len(c.State.Optimizers))
	case !isRegrouper:
		return nil, fmt.Errorf("a %T cannot change the members of its group, want a *ddp.Model", c.State.Model)
	}
	r := &run{close: func() {}, Config: c, pg: pg, model: model, optimizer: c.State.Optimizers[0], all: c.State}
	values := map[string]any{"generator": autograd.Generator(pg.Device())}
	if c.Data != nil {
		values["position"] = &r.position
	}
	for name := range values {
		if _, ok := c.State.Values[name]; ok {
			return nil, fmt.Errorf("the state has the value %q, a name that Run itself uses", name)
		}
	}
	maps.Copy(values, c.State.Values)
	r.all.Values = values
	if err := r.observe(); err != nil {
		return nil, err
	}
	return r, nil
}

// regroup takes the group to its next members, and their states to that after the last committed step. If a rank is
// lost meanwhile, it does so again.
func (r *run) regroup(ctx context.Context) error {
	for {
		if !r.isRestoring {
			if err := r.rollBack(); err != nil {
				return err
			}
		}
		p := r.progress()
		m, err := r.pg.Reconfigure(ctx, p)
		if err != nil {
			return err
		}
		if err = r.equalize(ctx, m); err == nil || !r.pg.Failed() || ctx.Err() != nil {
			return err
		}
	}
}

// progress returns the number of steps that this rank has committed, and whether it has the state after them.
func (r *run) progress() (p comm.Progress) {
	if p.Steps, p.Consistent = r.optimizer.Committed(); r.divided != nil {
		p = r.divided.Progress()
	}
	p.Consistent = p.Consistent && !r.isRestoring
	return p
}

// adapt adapts the model and the optimizer to the members. It reports whether there is a state after step m.Steps.
func (r *run) adapt(ctx context.Context, m comm.Membership) (hasState bool, err error) {
	hasState = m.Source >= 0
	switch {
	case m.Epoch == 1:
		return hasState, nil
	case r.divided == nil:
		return hasState, r.model.Regroup(ctx)
	}
	isWhole, err := r.divided.Regroup(ctx, m)
	hasState = hasState && isWhole
	if ema, ok := r.optimizer.(*optim.EMA); ok && hasState && err == nil {
		err = comm.Agree(ctx, r.pg, ema.Update()) // if the step was committed by Regroup
	}
	return hasState, err
}

// equalize makes the states of all members equal.
func (r *run) equalize(ctx context.Context, m comm.Membership) error {
	hasState, err := r.adapt(ctx, m)
	if err != nil {
		return err
	}
	if !hasState && r.Restore == nil {
		return &LostStateError{m.Steps}
	}
	isChanged := false
	if hasState {
		if err := checkpoint.Transfer(ctx, r.pg, r.all, m.Source, m.Lacking); err != nil {
			return err
		}
		if isChanged = slices.Contains(m.Lacking, r.pg.Rank()); isChanged {
			if err := r.resume(); err != nil {
				return err
			}
		}
	}
	if r.Restore != nil && (!hasState || m.Steps == 0) { // also in a later epoch: a rank may have been lost within Restore
		r.isRestoring = true
		if err := r.Restore(ctx); err != nil {
			return err
		}
		if _, isWhole := r.optimizer.Committed(); !isWhole { // there is no checkpoint
			return &LostStateError{m.Steps}
		}
		r.isRestoring, isChanged = false, true
	}
	if r.divided != nil {
		if err := r.divided.SendCopies(ctx); err != nil {
			return err
		}
	}
	if isChanged || r.last.values == nil {
		r.commit()
	}
	return nil
}
