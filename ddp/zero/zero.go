package zero

import (
	"context"
	"fmt"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp"
	"github.com/goddp/goddp/ddp/reducer"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

// Local is the optimizer of one rank's shards, such as [*optim.SGD] and
// [*optim.AdamW]: see there for the methods. Its parameters are parts ([nn.NewPart]):
// what it keeps of one, but for a single number, has the shape of the part's Var, and is
// called by the parameter's name, a dot and a word.
type Local interface {
	Parameters() []*nn.Parameter
	StepScaled(s optim.Scaled) error
	ZeroGrad()
	SetTail(t optim.Tail)
	Committed() (steps int, whole bool)
	State() ([]*nn.Buffer, error)
	Restoring()
	Restored(steps int)
	Lend() (back func())
	// Elementwise marks a rule that changes each element by its own gradient and
	// state alone.
	Elementwise()
}

// Model is a module whose gradients are averaged over a process group, each
// rank's shard on that rank: see [ddp.Model], whose methods it has where nothing
// else is said. It is driven by one goroutine.
type Model struct {
	model  *ddp.Model
	shards *shards
	step   func() error // the optimizer's
}

// New wraps a module as [ddp.New] does, and makes the optimizer of this rank's
// shards by newLocal, which is given the parts of all parameters that require a
// gradient, by the names and in the shapes of the whole: it makes groups of them as of
// whole parameters. Those that it leaves out stay as they are. The state is allocated. All
// ranks call it, in the same order as their other collectives.
func New[O Local](module nn.Model, pg *comm.ProcessGroup, newLocal func(params []*nn.Parameter) O, opts *ddp.Options) (*Model, *Optimizer[O], error) {
	if pg == nil {
		return nil, nil, fmt.Errorf("zero: %w", comm.ErrNoGroup)
	}
	m, o, err := wrap(context.Background(), module, pg, newLocal, opts) // its calls have deadlines of their own
	if err != nil {
		return nil, nil, reducer.OfRank("zero", pg.Rank(), err)
	}
	return m, o, nil
}

func wrap[O Local](ctx context.Context, module nn.Model, pg *comm.ProcessGroup, newLocal func([]*nn.Parameter) O, opts *ddp.Options) (*Model, *Optimizer[O], error) {
	var with ddp.Options
	if opts != nil {
		with = *opts
	}
	var err error
	if with.Hook != nil {
		err = fmt.Errorf("hook %T, where gradients are reduced to shards", with.Hook)
	}
	if err := comm.Agree(ctx, pg, err); err != nil {
		return nil, nil, err
	}
	s := &shards{pg: pg, module: module}
	with.Hook = s
	model, err := ddp.New(module, pg, &with)
	if err != nil {
		return nil, nil, err
	}
	o := newOptimizer(s, newLocal(s.locals()))
	state, err := o.kept() // made now: no rank alone can lack the memory in a step
	if err := comm.Agree(ctx, pg, err); err != nil {
		return nil, nil, err
	}
	if err := reducer.Verify(ctx, pg, reducer.Listed("optimizer state", names(state))); err != nil {
		return nil, nil, err
	}
	return &Model{model, s, o.Step}, o, nil
}

// Forward applies the module. A backward pass through the result averages the
// gradients.
func (m *Model) Forward(x *autograd.Variable) *autograd.Variable {
	return m.model.Forward(x)
}

// Run runs forward, which applies the module: see [ddp.Model.Run].
func (m *Model) Run(forward func() *autograd.Variable) *autograd.Variable {
	return m.model.Run(forward)
}

// SetTraining sets the module's mode: see [nn.Train].
func (m *Model) SetTraining(on bool) { m.model.SetTraining(on) }

// Output makes y a result of the model's as well: see [ddp.Model.Output].
func (m *Model) Output(y *autograd.Variable) *autograd.Variable {
	return m.model.Output(y)
}

// NoSync runs f, within which backward passes accumulate gradients and reduce
// nothing. The first pass after it reduces the sum.
func (m *Model) NoSync(f func() error) error { return m.model.NoSync(f) }

// Stopping reports whether all ranks stop here: see [ddp.Model.Stopping].
func (m *Model) Stopping() bool { return m.model.Stopping() }

// Parameters are the module's, whole, under their own names.
func (m *Model) Parameters() []*nn.Parameter { return m.model.Parameters() }

// Buffers are the module's.
func (m *Model) Buffers() []*nn.Buffer { return m.model.Buffers() }

// Unwrap is the module that New was given.
func (m *Model) Unwrap() nn.Model { return m.model.Unwrap() }

// Stats tell what the model did so far: see [ddp.Model.Stats].
func (m *Model) Stats() ddp.Stats { return m.model.Stats() }

// AccumulationError is the panic value of a backward pass that would add to a
// gradient that the last one has reduced to shards.
type AccumulationError struct {
	Rank  int
	Param string
}

func (e *AccumulationError) Error() string {
	return fmt.Sprintf("zero: rank %d: the gradient of %q is in shards already: ZeroGrad belongs between two backward passes that reduce, and NoSync around all but the last of those that accumulate",
		e.Rank, e.Param)
}

// ForeignError is the panic value of a local optimizer with a parameter that it
// was not given.
type ForeignError struct{ Param string }

func (e *ForeignError) Error() string {
	return fmt.Sprintf("zero: the optimizer of the shards has %q, which is none of the parameters that it was given", e.Param)
}
