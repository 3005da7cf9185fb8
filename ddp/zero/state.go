package zero

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

// kept is what the local optimizer keeps of a part: a number for each element of
// it, or one for the parameter, such as a count, which is of no shape and alike on
// all ranks.
type kept struct {
	*nn.Buffer // by the name that an optimizer of whole parameters gives it
	part       *part
}

// whole is the shape that it has of the whole parameter.
func (k kept) whole() device.Shape {
	if len(k.Shape()) == 0 {
		return k.Shape()
	}
	return k.part.Shape()
}

// of is what a tensor for the whole parameter has of it.
func (k kept) of(whole device.Tensor) device.Tensor {
	if len(k.Shape()) == 0 {
		return whole
	}
	return whole.Flat().Range(k.part.lo, k.part.hi)
}

// kept is the local state.
func (o *Optimizer[O]) kept() ([]kept, error) {
	state, err := o.local.State()
	if err != nil {
		return nil, err
	}
	parts := map[string]*part{}
	for _, p := range o.shards.parts {
		parts[p.Name()] = p
	}
	var all []kept
	for _, b := range state {
		p := owner(parts, b.Name())
		if p == nil {
			return nil, fmt.Errorf("%q in the state of the shards' optimizer is of none of its parameters", b.Name())
		}
		all = append(all, kept{b, p})
	}
	return all, nil
}

// owner is the part that a name in the state, "NAME.what", begins with: that of the
// longest name. nil is none.
func owner(parts map[string]*part, name string) *part {
	for {
		end := strings.LastIndexByte(name, '.')
		if end < 0 {
			return nil
		}
		if name = name[:end]; parts[name] != nil {
			return parts[name]
		}
	}
}

// names are those of the whole state, in the order of the local one.
func names(state []kept) []string {
	var all []string
	for _, k := range state {
		all = append(all, k.Name())
	}
	return all
}

// held is this rank's part of the state.
func (o *Optimizer[O]) held() ([]held, error) {
	state, err := o.kept()
	if err != nil {
		return nil, err
	}
	var mine []held
	for _, k := range state {
		s := span{Name: k.Name(), DType: k.DType(), Shape: k.whole()}
		switch {
		case len(k.Shape()) > 0:
			s.Lo, s.Hi = k.part.lo, k.part.hi
		case o.shards.pg.Rank() == 0:
			s.Hi = 1
		}
		mine = append(mine, held{s, k.Var().Tensor()})
	}
	return mine, nil
}

// Gather shows the whole state to all ranks, one tensor after the other: those of
// State of the same optimizer without shards, such as "NAME.velocity" in the
// shape of the parameter. whole is valid while visit enqueues what reads it, on
// the compute stream; to keep it, copy it. All ranks call it, in the same order as
// their other collectives; what visit does may differ, and its error, which ends
// the showing on this rank, is Gather's.
func (o *Optimizer[O]) Gather(ctx context.Context, visit func(name string, whole device.Tensor) error) error {
	mine, err := o.held()
	if err := comm.Agree(ctx, o.shards.pg, err); err != nil {
		return fmt.Errorf("zero: gathering the state: %w", err)
	}
	if err := assemble(ctx, o.shards.pg, mine, visit); err != nil {
		return fmt.Errorf("zero: gathering the state: %w", err)
	}
	return nil
}

// Load takes this rank's shards of a whole state, such as Gather showed, which may
// be on another device, and goes on from the number of steps that it was saved
// after. It communicates nothing; each rank calls it, with parameters that are
// those of that step. A state that does not fit in every name and shape is an
// [*nn.StateError], and changes nothing; after another error, a device's, the state
// is torn.
func (o *Optimizer[O]) Load(ctx context.Context, steps int, state map[string]*autograd.Variable) error {
	mine, err := o.kept()
	if err != nil {
		return fmt.Errorf("zero: %w", err)
	}
	if err := compare(mine, state); err != nil {
		return fmt.Errorf("zero: %w", err)
	}
	parts := map[string]*autograd.Variable{}
	for _, k := range mine {
		whole := state[k.Name()]
		parts[k.Name()] = autograd.FromTensor(whole.Device(), k.of(whole.Tensor()))
	}
	if err := optim.LoadState(ctx, o, steps, parts); err != nil {
		return fmt.Errorf("zero: %w", err)
	}
	return nil
}

// compare returns an [*nn.StateError] unless a whole state is what mine are parts
// of.
func compare(mine []kept, state map[string]*autograd.Variable) error {
	e := &nn.StateError{}
	known := map[string]bool{}
	for _, k := range mine {
		known[k.Name()] = true
		whole, there := state[k.Name()]
		switch {
		case !there:
			e.Missing = append(e.Missing, k.Name())
		case !whole.Shape().Equal(k.whole()) || whole.DType().IsFloat() != k.DType().IsFloat():
			e.Mismatched = append(e.Mismatched, nn.StateMismatch{
				Name: k.Name(), State: fmt.Sprint(whole.DType(), whole.Shape()), Module: fmt.Sprint(k.DType(), k.whole()),
			})
		}
	}
	for name := range state {
		if !known[name] {
			e.Unexpected = append(e.Unexpected, name)
		}
	}
	if slices.Sort(e.Unexpected); len(e.Missing)+len(e.Unexpected)+len(e.Mismatched) > 0 {
		return e
	}
	return nil
}
