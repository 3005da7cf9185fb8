package ddp

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp/internal/buckets"
	"github.com/goddp/goddp/internal/gradsink"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

// Progress says how many steps a rank's optimizer has committed, and whether its state is
// consistent.
type Progress struct {
	Steps      int  // the number of committed steps
	Consistent bool // parameters and state are exactly the result of these steps
}

// LostStateError says that no rank has the state after the last committed step. Every rank gets it.
// Each rank must restore a checkpoint and tell its optimizer (BeginLoad, EndLoad).
type LostStateError struct {
	Step  int        // the last step that any rank committed
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

// Recover makes the ranks of a new group equal after a failure, which may have stopped the ranks
// after different steps or within a step. All ranks take parameters, buffers and the optimizer's
// state from one rank: the lowest rank whose state is consistent after the last step that any rank
// committed. Recover returns the number of that step, and the ranks go on from there. A process
// that has just started counts as a rank at step 0. Recover discards the gradients that the failure
// left. If no rank has a consistent state of that step, every rank gets a [*LostStateError].
//
// All ranks call Recover, in the same order as their other collectives, before they wrap the module
// again with [New]. The group's timeout bounds each collective that it makes. If one fails, the
// program may call Recover again on the next group. The module stays on its device, which must be
// the device of the new group. So the program must open the device itself and pass it as
// comm.Options.Device, because Close closes a device that Init opened. The program must set options
// of the optimizer, such as the learning rate, itself. Recover sets all parameters and buffers,
// including those that Options.Ignore will name.
func Recover(module nn.Model, pg *comm.ProcessGroup, opt optim.Optimizer) (step int, err error) {
	if pg == nil {
		return 0, fmt.Errorf("ddp: recovering: %w", comm.ErrNoGroup)
	}
	step, err = restore(pg.Context(), module, pg, opt)
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
	if err := buckets.Verify(ctx, pg, buckets.Listed("parameter", listed(params)), buckets.Listed("buffer", listed(buffers))); err != nil {
		return 0, err
	}
	step, err = equalize(ctx, pg, "recovered state", append(variables(params), variables(buffers)...), opt, source)
	if err != nil {
		return 0, err
	}
	for _, p := range params {
		gradsink.Set(p.Var(), nil, nil)
	}
	return step, nil
}

// equalize sets state and the optimizer's state on all ranks to those of the rank that source
// chooses from the progress of all ranks. name names the broadcast. equalize returns the step that
// source chooses.
func equalize(ctx context.Context, pg *comm.ProcessGroup, name string, state []*autograd.Variable, opt optim.Optimizer, source func([]Progress) (step, from int, err error)) (step int, err error) {
	kept, err := opt.State()
	for _, b := range kept {
		if _, divided := b.Span(); divided {
			err = fmt.Errorf("%s is divided among the ranks, so no rank has all of it: use Recover or Join of package ddp/zero", b.Name())
			break
		}
	}
	if err := comm.Agree(ctx, pg, err); err != nil {
		return 0, err
	}
	if err := buckets.Verify(ctx, pg, buckets.Listed("optimizer state", listed(kept))); err != nil {
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
	// Sync makes sure that data which did not arrive is an error.
	if err := broadcast(pg, name, append(state, variables(kept)...), from).Sync(ctx); err != nil {
		return 0, err
	}
	opt.EndLoad(step)
	return step, nil
}

// source chooses the last step that any rank committed, and the lowest rank that is consistent
// there. It never chooses an earlier step: the rank there may be one that has just started.
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
