package zero

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
)

// Progress returns the number of steps whose updates this rank's shards hold, and whether they are exactly the result
// of these steps. Unlike Committed it does not count a failed gather, because Regroup gathers the parameters again.
func (o *Optimizer[O]) Progress() comm.Progress {
	o.mu.Lock()
	defer o.mu.Unlock()
	steps, whole := o.local.Committed()
	if !whole && o.updated > steps {
		return comm.Progress{Steps: o.updated, Consistent: true}
	}
	return comm.Progress{Steps: steps, Consistent: whole}
}

// Regroup divides the parameters and the optimizer's state among the ranks of the process group anew, after its members
// have changed: [comm.ProcessGroup.Reconfigure], given the result of Progress, has returned `to`. It regroups the model
// too, as [ddp.Model.Regroup] does. All ranks call it, in the same order as their other collectives; a rank that has
// just joined has called New before.
//
// hasState says that all ranks have the parameters and their shards of the state after step to.Steps. Otherwise a shard
// was lost with its rank, and the optimizer is inconsistent until the program has loaded a checkpoint on all ranks.
// Before the first step there is no state. The parameters are then unchanged but in stage 3, which exchanges shards of them,
// and the program must make them equal on all ranks; unrounded values of 16-bit parameters ([nn.CastOptions]) are dropped.
//
// Until all ranks have their new shards, Regroup needs memory for these and the old ones. If it fails because the group
// has failed, this rank still has the old ones, and the program may call Regroup for the next members.
func (o *Optimizer[O]) Regroup(ctx context.Context, to comm.Membership) (hasState bool, err error) {
	if hasState, err = o.regroup(ctx, to); err != nil {
		return false, fmt.Errorf("zero: regrouping the optimizer: %w", err)
	}
	return hasState, nil
}

func (o *Optimizer[O]) regroup(ctx context.Context, to comm.Membership) (hasState bool, err error) {
	s := o.shards
	for _, b := range s.buckets {
		b.gather = nil // it has ended with its group, and take sets the parameters
	}
	o.catchUp(to.Steps)
	ranks, err := comm.AllGatherObject(ctx, s.pg, o.holding(to.Steps))
	if err != nil {
		return false, err
	}
	var from []int // nil: there is no state
	if to.Steps > 0 || s.inSlots() {
		from = sources(ranks)
	}
	if from == nil && s.frozen != nil {
		return false, errors.New("the frozen parameters of a lost rank are lost, and no checkpoint has them: want the processes to start again")
	}
	var give []held
	if from != nil {
		give, err = o.give(from)
	}
	if err := comm.Agree(ctx, s.pg, err); err != nil {
		return false, err
	}
	layout, locals := s.layout, o.locals // they own the memory of the tensors in give
	for _, b := range layout.buckets {
		b.grads = device.Tensor{} // no step needs them any more
	}
	s.prepared, s.isRegrouping = nil, true
	err = o.model.Regroup(ctx)
	s.isRegrouping = false
	if err == nil {
		err = comm.Agree(ctx, s.pg, o.build())
	}
	if err == nil && from != nil {
		err = o.take(ctx, give)
	}
	if err != nil {
		s.layout, o.locals = layout, locals
		return false, err
	}
	s.hasReduced = false
	switch {
	case from != nil:
		o.EndLoad(to.Steps)
	case to.Steps == 0 && to.Source >= 0 && !s.inSlots():
		o.reset(0)
	default:
		o.BeginLoad()
		return false, nil
	}
	return true, nil
}

// catchUp makes the updates of step `steps` if this rank has prepared them, and has failed to make them. It cannot if the
// other ranks must take part.
func (o *Optimizer[O]) catchUp(steps int) {
	_, isDivisible := any(o.local).(Divisible)
	if p := o.Progress(); isDivisible || o.shards.prepared == nil || !p.Consistent || p.Steps != steps-1 {
		return
	}
	o.isCatchingUp = true
	defer func() { o.isCatchingUp = false }()
	if err := o.update(*o.shards.prepared); err != nil {
		o.shards.pg.Log().Warn("zero: the updates of a step cannot be made", "step", steps, "error", err)
	}
}

// holding says which shards a rank has.
type holding struct {
	Of     int // the shards are of a group of Of ranks
	Shards []int
}

// holding returns the shards that this rank has after a step.
func (o *Optimizer[O]) holding(steps int) holding {
	s := o.shards
	h := holding{Of: s.size}
	if o.Progress() != (comm.Progress{Steps: steps, Consistent: true}) {
		return h
	}
	h.Shards = append(h.Shards, s.rank)
	if o.hasCopies() {
		if n, whole := o.copy.Committed(); n == steps && whole {
			h.Shards = append(h.Shards, s.before())
		}
	}
	return h
}

// sources returns, by shard, the first rank that has it, or nil if the ranks do not have all shards of any group.
func sources(ranks []holding) []int {
	by := map[int]map[int]int{} // the ranks, by the number of shards and then by the shard
	for r, h := range ranks {
		for _, shard := range h.Shards {
			if by[h.Of] == nil {
				by[h.Of] = map[int]int{}
			}
			if _, ok := by[h.Of][shard]; !ok {
				by[h.Of][shard] = r
			}
			if len(by[h.Of]) == h.Of {
				var from []int
				for shard := range h.Of {
					from = append(from, by[h.Of][shard])
				}
				return from
			}
		}
	}
	return nil
}

// ofParameter and ofState return the names under which the ranks exchange tensors.
func ofParameter(name string) string { return "parameter " + name }
func ofState(name string) string     { return "state " + name }

// give returns what this rank contributes. from are the ranks that contribute, by shard.
func (o *Optimizer[O]) give(from []int) (give []held, err error) {
	s := o.shards
	add := func(shard int, local Local, parts []*part) {
		if err != nil || len(from) != s.size || from[shard] != s.pg.Rank() {
			return
		}
		var state []held
		state, err = heldBy(local, parts, shard)
		for _, h := range state {
			h.Name = ofState(h.Name)
			give = append(give, h)
		}
		for _, p := range slices.Concat(parts, s.frozen) {
			give = append(give, held{span{ofParameter(p.Name()), p.DType(), p.Shape(), p.lo, p.hi}, p.local.Var().Tensor()})
		}
	}
	add(s.rank, o.local, s.parts)
	if s.copied != nil && s.before() != s.rank {
		add(s.before(), o.copy, s.copied)
	}
	return give, err
}

// taker is the destination of a tensor.
type taker struct {
	v     *autograd.Variable
	whole device.Shape
	of    func(whole device.Tensor) device.Tensor
}

// take sets the parameters and the state of this rank's shards. give is what this rank contributes.
func (o *Optimizer[O]) take(ctx context.Context, give []held) error {
	s := o.shards
	o.local.BeginLoad()
	takers := map[string]taker{}
	for _, p := range slices.Concat(s.parts, s.frozen) {
		t := taker{p.Var(), p.Shape(), func(whole device.Tensor) device.Tensor { return whole }}
		if s.inSlots() {
			t.v, t.of = p.local.Var(), func(whole device.Tensor) device.Tensor { return whole.Flat().Range(p.lo, p.hi) }
		}
		takers[ofParameter(p.Name())] = t
	}
	for _, k := range o.state {
		takers[ofState(k.Name())] = taker{k.Var(), k.whole(), k.of}
	}
	err := assemble(ctx, s.pg, give, func(name string, whole device.Tensor) error {
		to, known := takers[name]
		if !known || !to.whole.Equal(whole.Shape) {
			return fmt.Errorf("the shards contain %s of shape %v, which the module and its optimizer do not have", name, whole.Shape)
		}
		delete(takers, name)
		to.v.BumpVersion()
		return s.pg.Device().Kernels().Copy(s.pg.Device().Compute(), to.v.Tensor(), to.of(whole))
	})
	if err == nil && len(takers) > 0 {
		err = fmt.Errorf("the shards lack %q", slices.Sorted(maps.Keys(takers)))
	}
	return comm.Agree(ctx, s.pg, err)
}
