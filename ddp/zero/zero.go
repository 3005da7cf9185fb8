package zero

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp"
	"github.com/goddp/goddp/ddp/internal/buckets"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

// Local is the optimizer of one rank's shards, such as [*optim.SGD] or [*optim.AdamW]. Its
// parameters are parts ([nn.NewPart]). Each tensor of its state for a part is named "NAME.word"
// after the parameter, and has the shape of the part's variable, unless it is a single number.
type Local interface {
	optim.Optimizer
	optim.ScaledStepper
	optim.ParameterSwapper
	// SetStepHook sets the hook of the following steps. New calls it once.
	SetStepHook(h optim.StepHook)
	// UpdatesParts marks an optimizer whose rule changes each element only by that element's gradient and state, or
	// which implements [Divisible].
	UpdatesParts()
}

// Divisible is a [Local] that needs whole matrices, and lets the ranks exchange them: [*optim.Muon]. New calls DivideParts.
type Divisible interface {
	DivideParts(rank, size int, exchange func(ms []optim.Matrix, back bool) error) error
}

// Model is a module whose gradients are reduced to shards: each rank gets the averages of its
// shard. It has the methods of [ddp.Model], with the same meaning unless documented otherwise. One
// goroutine drives it.
type Model struct {
	*ddp.Model
	shards *shards
	step   func() error // the Step of the optimizer
}

// Options are the options of [New]. The zero value is the default. They are the same on every rank.
type Options struct {
	ddp.Options // Hook must be nil
	// Stage says what the ranks divide; 0 means 1. Stage 1 divides the optimizer's state, stage 2 the gradients too, and
	// stage 3 the parameters too: see the package documentation. In stages 2 and 3 BucketCapMB is 64 unless a size of
	// buckets is set, and FindUnusedParameters, CheckReplicas and CopyShards cannot be used.
	Stage int
	// Slots is the number of buckets of gradients that are whole at the same time in stages 2 and 3, and of parameters in
	// stage 3; 0 means 3. Buckets of more than twice the largest size are not counted, and have memory of their own.
	Slots int
	// CopyShards makes each rank also keep a copy of the optimizer's state for the shards of the rank before it, so
	// that the loss of one rank loses no state: see the package documentation. It doubles the memory of the state, and
	// the time of updates. It has no effect unless the job survives the loss of ranks.
	CopyShards bool
}

// New wraps a module as [ddp.New] does, and calls newLocal to make the optimizer of this rank's
// shards. newLocal gets the parts of all parameters that require a gradient, except those of Options.Ignore, with the
// names and shapes of the whole parameters, so that it can form parameter groups in the usual way. Parameters
// that newLocal leaves out are not optimized. New allocates the state. All ranks call New, in the same
// order as their other collectives. newLocal is called again for copies of shards, and after a change of the ranks.
//
// A module that another model has wrapped may be wrapped again, in the same stage or another one, for example to freeze
// other parameters. It keeps its parameters, but not the optimizer's state.
func New[O Local](module nn.Model, pg *comm.ProcessGroup, newLocal func(params []*nn.Parameter) (O, error), opts *Options) (*Model, *Optimizer[O], error) {
	if pg == nil {
		return nil, nil, fmt.Errorf("zero: %w", comm.ErrNoGroup)
	}
	m, o, err := wrap(pg.Context(), module, pg, newLocal, *cmp.Or(opts, &Options{}))
	if err != nil {
		return nil, nil, fmt.Errorf("zero: %w", err)
	}
	return m, o, nil
}

func wrap[O Local](ctx context.Context, module nn.Model, pg *comm.ProcessGroup, newLocal func([]*nn.Parameter) (O, error), with Options) (*Model, *Optimizer[O], error) {
	var err error
	if with.Hook != nil {
		err = fmt.Errorf("Options.Hook is %T, but zero reduces gradients to shards with its own hook", with.Hook)
	}
	with.Stage, with.Slots = cmp.Or(with.Stage, 1), cmp.Or(with.Slots, 3)
	s := &shards{
		pg: pg, module: module, stage: with.Stage, slots: with.Slots,
		copies: with.CopyShards, skipSync: with.SkipInitSync, ignored: with.Ignore,
	}
	if err := comm.Agree(ctx, pg, errors.Join(err, with.check(), s.checkDivided())); err != nil {
		return nil, nil, err
	}
	options := buckets.List{What: "option", Items: []string{fmt.Sprint("Stage ", with.Stage), fmt.Sprint("Slots ", with.Slots), fmt.Sprint("CopyShards ", with.CopyShards)}}
	if err := buckets.Verify(ctx, pg, options); err != nil { // before the stage decides the sizes of buckets
		return nil, nil, err
	}
	if with.Stage > 1 && with.BucketCapMB == 0 && with.FirstBucketCapMB == 0 && with.BucketCapsMB == nil {
		with.BucketCapMB = 64
	}
	s.largest = int(2 << 20 * max(with.BucketCapMB, with.FirstBucketCapMB, slices.Max(append(with.BucketCapsMB, 0))))
	with.Hook = s
	model, err := ddp.New(module, pg, &with.Options)
	if err != nil {
		return nil, nil, err
	}
	o := &Optimizer[O]{shards: s, model: model, newLocal: newLocal}
	err = o.build() // allocates the state, because all ranks agree on an error here: later a single rank could run out of memory
	if err := comm.Agree(ctx, pg, err); err != nil {
		return nil, nil, err
	}
	if err := buckets.Verify(ctx, pg, buckets.Listed("optimizer state", names(o.state))); err != nil {
		return nil, nil, err
	}
	return &Model{model, s, o.Step}, o, nil
}

// check returns an error if an option cannot be used.
func (o Options) check() error {
	switch {
	case o.Stage < 1 || o.Stage > 3:
		return fmt.Errorf("Options.Stage is %d, want 1, 2 or 3", o.Stage)
	case o.Slots < 2:
		return fmt.Errorf("Options.Slots is %d, want 2 or more, or 0 for 3", o.Slots)
	case o.Stage == 1:
		return nil
	case o.FindUnusedParameters && !o.StaticGraph:
		return fmt.Errorf("FindUnusedParameters is set in stage %d, in which all ranks use the same parameters: want StaticGraph", o.Stage)
	case o.CheckReplicas != 0:
		return fmt.Errorf("CheckReplicas is %d in stage %d, in which no rank has a replica, want 0", o.CheckReplicas, o.Stage)
	case o.CopyShards:
		return fmt.Errorf("CopyShards is set in stage %d, want stage 1", o.Stage)
	}
	return nil
}

// checkDivided returns an error if a parameter is divided by another model of stage 3, and Place will not move it.
func (s *shards) checkDivided() error {
	for _, p := range s.module.Parameters() {
		if p.Part() != nil && !s.Holds(p) {
			return fmt.Errorf("%v is divided among the ranks by a model of stage 3, and stage %d does not place it: want stage 3 for frozen parameters", p, s.stage)
		}
	}
	return nil
}

// AccumulationError is the panic value of a backward pass that would add to a gradient that the
// last pass has reduced to shards.
type AccumulationError struct {
	Rank  int
	Param string
}

func (e *AccumulationError) Error() string {
	return fmt.Sprintf("zero: rank %d: the gradient of %q is already reduced to shards: call ZeroGrad between two reducing passes, or run all passes of a step but the last within NoSync",
		e.Rank, e.Param)
}
