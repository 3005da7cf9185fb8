package ddp

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp/reducer"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

// Progress is how far a rank's optimizer is.
type Progress struct {
	Steps      int  // committed
	Consistent bool // nothing has touched parameters and state since
}

// LostStateError says that no rank holds the state after the last step that was
// committed. Every rank gets it: each has to restore a checkpoint, and to tell
// its optimizer so.
type LostStateError struct {
	Step  int        // the last that was committed
	Ranks []Progress // by rank
}

func (e *LostStateError) Error() string {
	var ranks []string
	for r, p := range e.Ranks {
		state := ""
		if !p.Consistent {
			state = ", inconsistent"
		}
		ranks = append(ranks, fmt.Sprintf("rank %d: %d%s", r, p.Steps, state))
	}
	return fmt.Sprintf("no rank has a consistent state of step %d, the last that was committed (%s): restore a checkpoint on every rank",
		e.Step, strings.Join(ranks, "; "))
}

// Recover makes the ranks of a new group equal after a failure, which may have
// left each at another step, or in the middle of one. They take the parameters,
// the buffers and the optimizer's state from the lowest rank that is whole at
// the last step that any rank committed; Recover returns that step, and all go
// on from there. A rank that has just started is one at step 0. The gradients
// that the failure left are forgotten. If no rank is whole at that step, every
// rank gets a [*LostStateError].
//
// All ranks call it, before [New] wraps the module again, in the same order as
// their other collectives. Each of those that it makes is bounded by the
// group's timeout; if one fails, Recover may be called again on the next group.
// The module stays on its device, which has to be that of the group: one of the
// program's own, given as comm.Options.Device, for Close closes what Init opened.
// Options such as the learning rate are the program's to set, and so is what
// Options.Ignore will name: Recover sets all parameters and buffers.
func Recover(module nn.Model, pg *comm.ProcessGroup, opt optim.Optimizer) (step int, err error) {
	if pg == nil {
		return 0, fmt.Errorf("ddp: recovering: %w", comm.ErrNoGroup)
	}
	step, err = restore(context.Background(), module, pg, opt) // its calls have deadlines of their own
	if err != nil {
		return 0, fmt.Errorf("ddp: recovering: %w", err)
	}
	return step, nil
}

func restore(ctx context.Context, module nn.Model, pg *comm.ProcessGroup, opt optim.Optimizer) (step int, err error) {
	if err := comm.Agree(ctx, pg, nn.Place(module, pg.Device(), 0)); err != nil {
		return 0, err
	}
	params, buffers := module.Parameters(), nn.Buffers(module)
	if err := reducer.Verify(ctx, pg, reducer.Listed("parameter", listed(params)), reducer.Listed("buffer", listed(buffers))); err != nil {
		return 0, err
	}
	step, err = equalize(ctx, pg, "recovered state", append(variables(params), variables(buffers)...), opt, source)
	if err != nil {
		return 0, err
	}
	for _, p := range params {
		p.Var().SetGradSink(nil)
	}
	return step, nil
}

// equalize sets state, and the optimizer's own, to that of the rank that source
// chooses, by the name of what it sends, and returns the step that this is at.
func equalize(ctx context.Context, pg *comm.ProcessGroup, name string, state []*autograd.Variable, opt optim.Optimizer, source func([]Progress) (step, from int, err error)) (step int, err error) {
	kept, err := opt.State()
	if err := comm.Agree(ctx, pg, err); err != nil {
		return 0, err
	}
	if err := reducer.Verify(ctx, pg, reducer.Listed("optimizer state", listed(kept))); err != nil {
		return 0, err
	}
	var mine Progress
	mine.Steps, mine.Consistent = opt.Committed()
	ranks, err := comm.AllGatherObject(ctx, pg, mine)
	if err != nil {
		return 0, err
	}
	step, from, err := source(ranks)
	if err != nil {
		return 0, err
	}
	if pg.Rank() != from {
		opt.BeginLoad()
	}
	// To the end: what did not arrive must not be taken for whole.
	if err := broadcast(pg, name, append(state, variables(kept)...), from).Sync(ctx); err != nil {
		return 0, err
	}
	opt.EndLoad(step)
	return step, nil
}

// source is the last step that was committed, and the rank to take it from. It
// does not settle for an earlier step of a whole rank: that may be one that has
// just started.
func source(ranks []Progress) (step, from int, err error) {
	for _, p := range ranks {
		step = max(step, p.Steps)
	}
	from = slices.Index(ranks, Progress{step, true})
	if from < 0 {
		return 0, 0, &LostStateError{Step: step, Ranks: ranks}
	}
	return step, from, nil
}
