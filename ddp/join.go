package ddp

import (
	"context"
	"errors"
	"fmt"

	"github.com/goddp/goddp/ddp/reducer"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/optim"
)

// JoinOptions are how [Model.Join] goes. The zero value is the good default. They
// are the same on every rank.
type JoinOptions struct {
	// Disabled runs the function and does nothing else: all ranks have as many
	// inputs.
	Disabled bool
	// DivideByActive divides a step's gradients by the number of ranks that have
	// an input for it, in place of all. With few ranks left the one makes steps
	// as large as before, the other gives every input the same weight. Backward
	// then waits, on a GPU too, for the reductions, which tell that number. It does
	// not go with a hook that averages over a part of the ranks.
	DivideByActive bool
	// StopEarly ends the training of all ranks in the step for which the first
	// of them has no input: none applies it, and Backward and Step, and Join,
	// return a [*reducer.LeftError] that names the ranks without. It is for
	// loops that communicate behind Step, where a rank without inputs would
	// leave the others waiting.
	StopEarly bool
	// Optimizer, if not nil, ends up with the state, such as momentum, and the
	// number of steps that it has on the rank whose parameters all take over.
	Optimizer optim.Optimizer
	// With takes part beside the model, in this order.
	With []Joinable
}

func (o *JoinOptions) described() reducer.List {
	return reducer.List{What: "join option", Items: []string{
		fmt.Sprint("DivideByActive ", o.DivideByActive), fmt.Sprint("StopEarly ", o.StopEarly),
		fmt.Sprint("Optimizer ", o.Optimizer != nil), fmt.Sprint("With ", len(o.With), " more"),
	}}
}

// Joinable takes part in [Model.Join] beside the model: what communicates in each
// step, over ranks of which some have no inputs any more, such as an optimizer
// whose state is divided over them.
type Joinable interface {
	// Shadow does, on a rank without inputs, what the other ranks do in a step:
	// behind a backward pass that reduced and succeeded, before the next one.
	// The gradients are those of the other ranks; they are zeroed behind it.
	Shadow() error
	// Joined is called on all ranks when none has inputs any more, and the
	// parameters are those of rank last again.
	Joined(last int) error
}

// Join runs f, a rank's training loop, where ranks may have different numbers of
// inputs:
//
//	err := model.Join(nil, func() error {
//		for x, y := range batches {
//			... // as ever
//		}
//		return nil
//	})
//
// A rank whose f has returned takes part in what the others do, adding nothing to
// their gradients, until all have. Then the parameters, and the buffers unless
// they are local, become on all ranks those of the lowest that was left last.
// Gradients, with what accumulated and was not reduced, are forgotten.
//
// All ranks call it, in the same order as their other collectives. Within f they
// share nothing else: a collective of f's own, over a group that a rank without
// inputs is in, leaves the others waiting, unless StopEarly ends f before it. One
// in a forward pass comes too early for that: see [Lockstep].
//
// An error of f is Join's, and ends the training of all: the other ranks get, from
// their next backward pass that reduces or its Step, a [*reducer.LeftError] that
// names the rank, and return it from f. So they do for an error of their last
// step that f did not ask for.
//
// It costs nothing in a step but where options or buffers say so: who has left is
// told in the same words as what is missing. At the end there is one pass of zeros
// more, which tells that no rank has inputs.
func (m *Model) Join(opts *JoinOptions, f func() error) error {
	var o JoinOptions
	if opts != nil {
		o = *opts
	}
	if o.Disabled {
		return f()
	}
	wrap := func(err error) error {
		if err == nil {
			return nil
		}
		return reducer.OfRank("ddp", m.pg.Rank(), fmt.Errorf("join: %w", err))
	}
	if m.joining {
		return wrap(errors.New("the model is within Join already"))
	}
	ctx := context.Background() // its calls have deadlines of their own
	if err := reducer.Verify(ctx, m.pg, o.described()); err != nil {
		return wrap(err)
	}
	if o.DivideByActive && reducer.IsPartial(m.hook) {
		return wrap(fmt.Errorf("DivideByActive counts the ranks of the whole group, and the hook %v averages over a part of them", m.hook))
	}
	m.reducer.Join(o.DivideByActive)
	m.joining = true
	defer func() { m.joining = false; m.reducer.Leave() }()
	if err := f(); err != nil {
		m.leave(err)
		return err
	}
	// The first shadow begins with the outcome of f's last pass, if nobody asked.
	last, uneven, err := m.shadow(&o)
	// A forward pass that no step followed left each rank buffers of its own.
	if err == nil && (uneven || len(m.buffers) > 0) {
		err = m.settle(ctx, &o, last)
	}
	for _, j := range o.With {
		if err == nil {
			err = j.Joined(last)
		}
	}
	return wrap(err)
}

// leave tells the other ranks, if they do not know, that this one leaves for good.
func (m *Model) leave(cause error) {
	if m.reducer.Left() == nil {
		m.shadowPass(true, cause)
	}
}

// shadow does what the other ranks do until none of them has inputs, and returns
// the lowest of those that had the last ones, and whether others had less.
func (m *Model) shadow(o *JoinOptions) (last int, uneven bool, err error) {
	for {
		if err := m.reducer.Left(); err != nil { // they do nothing any more
			return 0, false, err
		}
		err := m.shadowPass(o.StopEarly, nil)
		var left *reducer.LeftError
		var drift *ReplicaDriftError
		switch {
		case errors.As(err, &left):
			return 0, false, err
		case errors.Is(err, device.ErrSkipped) || errors.As(err, &drift):
			continue // the other ranks know, and do as they like
		case err != nil:
			return 0, false, err
		}
		who := m.reducer.Attendance()
		if who.First() < 0 {
			return who.Last, who.Uneven, nil
		}
		for _, j := range o.With {
			if err := j.Shadow(); err != nil && !errors.Is(err, device.ErrSkipped) {
				m.leave(err)
				return 0, false, err
			}
		}
	}
}

// shadowPass makes the pass that the other ranks make, with nothing to add, and
// returns its outcome. With leave, which may have a cause, it is the last of all.
func (m *Model) shadowPass(leave bool, cause error) error {
	m.begin(true)
	m.reducer.Shadow(leave)
	if err := m.end("shadow", cause); err != nil {
		return err
	}
	return m.reducer.Err()
}

// settle makes all ranks equal to one.
func (m *Model) settle(ctx context.Context, o *JoinOptions, from int) error {
	const name = "joined state"
	state := append(variables(m.params), variables(m.buffers)...)
	if o.Optimizer == nil {
		return broadcast(m.pg, name, state, from).Wait(ctx)
	}
	_, err := equalize(ctx, m.pg, name, state, o.Optimizer, func(ranks []Progress) (step, _ int, err error) {
		if step = ranks[from].Steps; !ranks[from].Consistent {
			err = &LostStateError{Step: step, Ranks: ranks}
		}
		return step, from, err
	})
	return err
}
