package zero

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

// kept is one tensor of the local optimizer's state for a part. It has either one number for each
// element of the part, or a single number for the parameter, such as a step count, which is equal
// on all ranks.
type kept struct {
	*nn.Buffer // named as by an optimizer of whole parameters
	part       *part
}

// whole returns the shape of the tensor for the whole parameter.
func (k kept) whole() device.Shape {
	if len(k.Shape()) == 0 {
		return k.Shape()
	}
	return k.part.Shape()
}

// of returns this part's elements of whole, a tensor for the whole parameter.
func (k kept) of(whole device.Tensor) device.Tensor {
	if len(k.Shape()) == 0 {
		return whole
	}
	return whole.Flat().Range(k.part.lo, k.part.hi)
}

// keptOf returns the state of a local optimizer of parts.
func keptOf(local Local, of []*part) ([]kept, error) {
	state, err := local.State()
	if err != nil {
		return nil, err
	}
	parts := map[string]*part{}
	for _, p := range of {
		parts[p.Name()] = p
	}
	var all []kept
	for _, b := range state {
		p := owner(parts, b.Name())
		if p == nil {
			return nil, fmt.Errorf("state %q of the local optimizer does not belong to any of its parameters", b.Name())
		}
		all = append(all, kept{b, p})
	}
	return all, nil
}

// owner returns the part to which the state "NAME.what" belongs: the one with the longest name that
// fits. It returns nil if none fits.
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

// names returns the names of the state, in order.
func names(state []kept) []string {
	var all []string
	for _, k := range state {
		all = append(all, k.Name())
	}
	return all
}

// heldBy returns the state of a local optimizer of the parts of a rank's shards. Single numbers are rank 0's.
func heldBy(local Local, parts []*part, rank int) ([]held, error) {
	state, err := keptOf(local, parts)
	if err != nil {
		return nil, err
	}
	var mine []held
	for _, k := range state {
		s := span{Name: k.Name(), DType: k.DType(), Shape: k.whole()}
		switch {
		case len(k.Shape()) > 0:
			s.Lo, s.Hi = k.part.lo, k.part.hi
		case rank == 0:
			s.Hi = 1
		}
		mine = append(mine, held{s, k.Var().Tensor()})
	}
	return mine, nil
}

// Gather calls visit on all ranks with each tensor of the whole state, one after the other. Names
// and shapes are those of State of the same optimizer without shards, such as "NAME.velocity" in
// the shape of the parameter. whole is valid for what visit enqueues on the compute stream; copy it
// to keep it. All ranks call Gather, in the same order as their other collectives. visit may differ
// between ranks. After an error visit is not called again on this rank, and Gather returns the
// error.
func (o *Optimizer[O]) Gather(ctx context.Context, visit func(name string, whole device.Tensor) error) error {
	defer runtime.KeepAlive(o) // owns the memory of mine; the program may not refer to o after this call
	mine, err := heldBy(o.local, o.shards.parts, o.shards.rank)
	if err := comm.Agree(ctx, o.shards.pg, err); err != nil {
		return fmt.Errorf("zero: gathering the state: %w", err)
	}
	if err := assemble(ctx, o.shards.pg, mine, visit); err != nil {
		return fmt.Errorf("zero: gathering the state: %w", err)
	}
	return nil
}

// Load takes this rank's shards of a whole state, such as Gather passed to visit. The state may be
// on another device. steps is the number of steps after which it was saved. Load does not
// communicate. Each rank calls it, with parameters of the same step. If a name or a shape does not
// fit, Load returns an [*nn.StateError] and changes nothing. After any other error, such as a
// device error, the state is inconsistent.
func (o *Optimizer[O]) Load(ctx context.Context, steps int, state map[string]*autograd.Variable) error {
	mine, err := keptOf(o.local, o.shards.parts)
	if err != nil {
		return fmt.Errorf("zero: %w", err)
	}
	if err := compare(mine, state); err != nil {
		return fmt.Errorf("zero: %w", err)
	}
	defer runtime.KeepAlive(state) // owns the memory of parts
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

// compare returns an [*nn.StateError] if the tensors in mine are not parts of the given whole
// state.
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
