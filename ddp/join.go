package ddp

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp/internal/buckets"
	"github.com/goddp/goddp/ddp/reducer"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/transfer"
	"github.com/goddp/goddp/optim"
)

// JoinOptions are the options of [Model.Join]. The zero value is the default. They are the same on every
// rank.
type JoinOptions struct {
	// Disabled makes Join just call the function, for programs in which all ranks have the same number of
	// inputs.
	Disabled bool
	// DivideByActive divides the gradients of a step by the number of ranks that have an input for the step,
	// instead of the number of all ranks. Then steps stay as large when few ranks are left, whereas the default
	// gives every input the same weight. Backward then waits for the reductions, on a GPU too. DivideByActive
	// cannot be combined with a hook that averages over a part of the ranks.
	DivideByActive bool
	// StopEarly ends the training of all ranks in the step for which the first rank has no input. No rank
	// applies that step. Backward, Step and Join return a [*reducer.LeftError] that names the ranks
	// without inputs. Use StopEarly for loops that communicate after Step, because there the other ranks would
	// wait for a rank without inputs.
	StopEarly bool
	// Optimizer is the program's optimizer. At the end of Join all ranks take over the parameters of one rank. If
	// Optimizer is not nil, Join also sets its state and its number of steps to those of that rank. Then Join does
	// not write the parameters and the state of the ranks that have made the last step themselves, so they are not
	// lost with that rank.
	Optimizer optim.Optimizer
	// With lists further participants besides the model. Join calls their methods in the order of the list.
	With []Joinable
}

// described returns the options for the comparison between ranks.
func (o *JoinOptions) described() buckets.List {
	return buckets.List{What: "join option", Items: []string{
		fmt.Sprint("DivideByActive ", o.DivideByActive), fmt.Sprint("StopEarly ", o.StopEarly),
		fmt.Sprint("Optimizer ", o.Optimizer != nil), fmt.Sprint("With ", len(o.With), " more"),
	}}
}

// Joinable takes part in [Model.Join] besides the model. It communicates in each step, even if some ranks
// have no inputs any more. An example is an optimizer whose state is divided among the ranks.
type Joinable interface {
	// Shadow is called on a rank without inputs, for each step of the other ranks: after a backward
	// pass that reduced and succeeded, and before the next pass. It must make the same collectives as the other
	// ranks in this step. During the call the gradients are those of the other ranks. They are zeroed afterwards.
	Shadow() error
	// Joined is called on all ranks when no rank has inputs any more, and all ranks have taken over the
	// parameters of the rank `last`.
	Joined(last int) error
}

// Join calls f, the training loop of this rank. Ranks may have different numbers of inputs:
//
//	err := model.Join(func() error {
//		for x, y := range batches {
//			... // train
//		}
//		return nil
//	}, nil)
//
// When f has returned, this rank takes part in the steps of the other ranks without adding anything to
// their gradients, until f has returned on all ranks. Then all ranks take over the parameters of the
// lowest rank that made the last step, and its buffers unless they are local. All gradients are
// discarded, including accumulated ones.
//
// All ranks call Join, in the same order as their other collectives. Within f only the model
// communicates. If f makes another collective over a group that includes a rank without inputs, the
// other ranks wait for that rank until the timeout, unless StopEarly has ended f. A model that
// communicates in its forward pass would wait before StopEarly takes effect: use [Lockstep] for it.
//
// If f returns an error, Join returns it, and the training of all ranks ends: the next backward pass that
// reduces, or the Step after it, returns a [*reducer.LeftError] that names the rank. The same happens
// if the last step of f failed and f did not ask for the error.
//
// Join adds no communication to a step, unless options or buffers require it: a rank reports that it has no
// inputs with the flags for missing gradients. At the end there is one more pass of zeros, which tells
// all ranks that no rank has inputs.
func (m *Model) Join(f func() error, opts *JoinOptions) error {
	o := *cmp.Or(opts, &JoinOptions{})
	if o.Disabled {
		return f()
	}
	wrap := func(err error) error {
		if err == nil {
			return nil
		}
		return fmt.Errorf("ddp: join: %w", err)
	}
	if m.isJoining {
		return wrap(errors.New("Join was called within Join"))
	}
	ctx := m.pg.Context()
	if err := buckets.Verify(ctx, m.pg, o.described()); err != nil {
		return wrap(err)
	}
	if o.DivideByActive && reducer.IsPartial(m.hook) {
		return wrap(fmt.Errorf("DivideByActive needs a hook that averages over the whole group, but the hook %v averages over a part of the ranks", m.hook))
	}
	m.reducer.Join(o.DivideByActive)
	m.isJoining = true
	defer func() { m.isJoining = false; m.reducer.Leave() }()
	if err := f(); err != nil {
		m.leave(err)
		return err
	}
	// If the program has not asked for the outcome of f's last pass, the first shadow pass gets it.
	who, isPresent, err := m.shadow(&o)
	// A forward pass without a step may have left different buffers on the ranks.
	if err == nil && (who.Uneven || len(m.buffers) > 0) {
		err = m.settle(ctx, &o, who.Last, isPresent)
	}
	for _, j := range o.With {
		if err == nil {
			err = j.Joined(who.Last)
		}
	}
	return wrap(err)
}

// leave notifies the other ranks that this rank makes no more passes, unless they already know.
func (m *Model) leave(cause error) {
	if m.reducer.Left() == nil {
		m.shadowPass(true, cause)
	}
}

// shadow makes shadow passes until no rank has inputs. It returns who made the steps, and whether this rank is sure to
// have made the last one itself.
func (m *Model) shadow(o *JoinOptions) (who buckets.Attendance, isPresent bool, err error) {
	for isPresent = true; ; isPresent = false {
		if err := m.reducer.Left(); err != nil { // the other ranks make no more passes
			return who, false, err
		}
		err := m.shadowPass(o.StopEarly, nil)
		var left *reducer.LeftError
		var drift *ReplicaDriftError
		switch {
		case errors.As(err, &left):
			return who, false, err
		case errors.Is(err, device.ErrSkipped) || errors.As(err, &drift):
			continue // the other ranks got the same error, and may go on
		case err != nil:
			return who, false, err
		}
		who = m.reducer.Attendance()
		if who.First() < 0 {
			return who, isPresent, nil
		}
		for _, j := range o.With {
			if err := j.Shadow(); err != nil && !errors.Is(err, device.ErrSkipped) {
				m.leave(err)
				return who, false, err
			}
		}
	}
}

// shadowPass makes a shadow pass and returns its outcome. If leave is true or cause is not nil, it is the
// last pass of all ranks.
func (m *Model) shadowPass(leave bool, cause error) error {
	m.begin(true)
	m.reducer.Shadow(leave)
	if err := m.end("shadow", cause); err != nil {
		return err
	}
	return m.reducer.Err()
}

// settle sets the state of all ranks to the state of the rank `from`. isPresent says that this rank is sure to have
// made the last step itself.
func (m *Model) settle(ctx context.Context, o *JoinOptions, from int, isPresent bool) error {
	const name = "joined state"
	if o.Optimizer == nil {
		return broadcast(m.pg, name, append(variables(m.unheld(m.params)), variables(m.buffers)...), from).Wait(ctx)
	}
	kept, err := o.Optimizer.State()
	for _, b := range kept {
		if _, divided := b.Span(); divided {
			err = fmt.Errorf("%s is divided among the ranks, so no rank has all of it: use Join of package ddp/zero", b.Name())
			break
		}
	}
	if err := comm.Agree(ctx, m.pg, err); err != nil {
		return err
	}
	if err := buckets.Verify(ctx, m.pg, buckets.Listed("optimizer state", listed(kept))); err != nil {
		return err
	}
	type standing struct {
		Progress  comm.Progress
		IsPresent bool
	}
	mine := standing{IsPresent: isPresent}
	mine.Progress.Steps, mine.Progress.Consistent = o.Optimizer.Committed()
	ranks, err := comm.AllGatherObject(ctx, m.pg, mine)
	if err != nil {
		return err
	}
	source := ranks[from].Progress
	if !source.Consistent {
		return fmt.Errorf("the optimizer of rank %d is inconsistent after step %d: restore a checkpoint on every rank", from, source.Steps)
	}
	var lacking []int
	for r, s := range ranks {
		// After as many steps as the source, a rank still differs if another optimizer has made more, or with a partial hook.
		if r != from && (s.Progress != source || !s.IsPresent || reducer.IsPartial(m.hook)) {
			lacking = append(lacking, r)
		}
	}
	// Forward passes may have left different buffers on all ranks. Sync makes sure that data which did not arrive is an error.
	if err := broadcast(m.pg, name, variables(m.buffers), from).Sync(ctx); err != nil {
		return err
	}
	if len(lacking) == 0 {
		return nil
	}
	return transfer.Copy(ctx, m.pg, transfer.State{
		Variables: append(variables(m.params), variables(kept)...), Optimizers: []optim.Optimizer{o.Optimizer}, Steps: []int{source.Steps},
	}, from, lacking)
}
