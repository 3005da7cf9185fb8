package zero

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"runtime"
	"slices"
	"strings"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/nn"
)

// Shard describes the shards that a rank has after a failure.
type Shard struct {
	Rank, Of   int  // the rank has the shards of rank Rank in a group of Of ranks; Of is 0 if it has none
	Steps      int  // the number of steps whose updates the shards hold
	Consistent bool // the shards are exactly the result of these steps
}

// LostShardError says that the ranks together do not have all shards of the last step that any rank
// has made. Every rank gets it and must restore a checkpoint.
type LostShardError struct {
	Step  int
	Ranks []Shard // by rank
}

func (e *LostShardError) Error() string {
	var ranks []string
	for r, s := range e.Ranks {
		text := fmt.Sprintf("rank %d: none", r)
		if s.Of > 0 {
			text = fmt.Sprintf("rank %d: shard %d of %d at step %d", r, s.Rank, s.Of, s.Steps)
		}
		if !s.Consistent {
			text += ", inconsistent"
		}
		ranks = append(ranks, text)
	}
	return fmt.Sprintf("the ranks do not have all shards of step %d, the last step that any rank made (%s): restore a checkpoint on every rank",
		e.Step, strings.Join(ranks, "; "))
}

// Recover wraps a module as New does, in a group made after a failure. old is this rank's optimizer in the
// broken group, or nil if the rank has just started. Recover takes parameters, buffers and the optimizer's
// state from the shards in the old optimizers of all ranks. All ranks go on after the last step whose updates
// any rank has made; Committed of the new optimizer returns the number of that step. If a shard of that step is
// missing or inconsistent, every rank gets a [*LostShardError].
//
// Recover does not change the parameters and buffers that opts.Ignore names.
//
// All ranks call Recover, in the same order as their other collectives. If Recover fails, the program may
// call it again on the next group, with the same old. The module stays on its device, which must be the device of
// the new group. So the program must open the device itself and pass it as comm.Options.Device, because Close closes
// a device that Init opened. The program must set options of the optimizer, such as the learning rate, itself.
func Recover[O Local](module nn.Model, pg *comm.ProcessGroup, old *Optimizer[O], newLocal func(params []*nn.Parameter) (O, error), opts *ddp.Options) (*Model, *Optimizer[O], error) {
	if pg == nil {
		return nil, nil, fmt.Errorf("zero: recovering: %w", comm.ErrNoGroup)
	}
	m, o, err := restore(pg.Context(), module, pg, old, newLocal, opts)
	if err != nil {
		return nil, nil, fmt.Errorf("zero: recovering: %w", err)
	}
	return m, o, nil
}

func restore[O Local](ctx context.Context, module nn.Model, pg *comm.ProcessGroup, old *Optimizer[O], newLocal func([]*nn.Parameter) (O, error), opts *ddp.Options) (*Model, *Optimizer[O], error) {
	mine := Shard{Consistent: true}
	if old != nil {
		mine.Rank, mine.Of = old.shards.pg.Rank(), old.shards.pg.Size()
		mine.Steps, mine.Consistent = old.updates()
	}
	ranks, err := comm.AllGatherObject(ctx, pg, mine)
	if err != nil {
		return nil, nil, err
	}
	step, from, err := sources(ranks)
	if err != nil {
		return nil, nil, err
	}
	var with ddp.Options
	if opts != nil {
		with = *opts
	}
	defer runtime.KeepAlive(old) // owns the memory of the tensors in give
	var give []held
	if i := slices.Index(from, pg.Rank()); i >= 0 {
		give, err = old.all(i == 0, with.Ignore)
	}
	if err := comm.Agree(ctx, pg, err); err != nil {
		return nil, nil, err
	}
	with.SkipInitSync = len(from) > 0 // without any shards all ranks start with the values of rank 0
	// wrap moves the parameters out of old's buckets. The values in old's buckets do not change.
	m, o, err := wrap(ctx, module, pg, newLocal, &with)
	if err != nil || len(from) == 0 {
		return m, o, err
	}
	o.BeginLoad()
	takers, err := o.takers(module, with.Ignore)
	if err := comm.Agree(ctx, pg, err); err != nil {
		return nil, nil, err
	}
	err = assemble(ctx, pg, give, func(name string, whole device.Tensor) error {
		to, known := takers[name]
		if !known || !to.whole.Equal(whole.Shape) {
			return fmt.Errorf("the shards contain %s of shape %v, which the module and its optimizer do not have", name, whole.Shape)
		}
		delete(takers, name)
		dev := pg.Device()
		to.v.BumpVersion()
		return dev.Kernels().Copy(dev.Compute(), to.v.Tensor(), to.of(whole))
	})
	if err == nil && len(takers) > 0 {
		err = fmt.Errorf("the shards lack %q", slices.Sorted(maps.Keys(takers)))
	}
	if err := comm.Agree(ctx, pg, err); err != nil {
		return nil, nil, err
	}
	o.EndLoad(step)
	return m, o, nil
}

// sources returns the last step that any rank has made, and the ranks that have its shards, in
// order of the shards. from is empty if all ranks, rank 0 included, are at step 0.
func sources(ranks []Shard) (step int, from []int, err error) {
	for _, s := range ranks {
		step = max(step, s.Steps)
	}
	if step == 0 && ranks[0].Consistent {
		return 0, nil, nil
	}
	by := map[int]map[int]int{} // the ranks, by the number of shards and then by the shard
	for r, s := range ranks {
		if s.Steps != step || !s.Consistent || s.Of == 0 {
			continue
		}
		if by[s.Of] == nil {
			by[s.Of] = map[int]int{}
		}
		by[s.Of][s.Rank] = r
		if len(by[s.Of]) == s.Of {
			for shard := range s.Of {
				from = append(from, by[s.Of][shard])
			}
			return step, from, nil
		}
	}
	return 0, nil, &LostShardError{Step: step, Ranks: ranks}
}

// ofParameter, ofBuffer and ofState return the names under which the ranks exchange tensors.
func ofParameter(name string) string { return "parameter " + name }
func ofBuffer(name string) string    { return "buffer " + name }
func ofState(name string) string     { return "state " + name }

// all returns what this rank contributes: its shards of parameters and state. If first is true, it
// also contributes everything that is the same on all ranks.
func (o *Optimizer[O]) all(first bool, ignore []string) ([]held, error) {
	for _, w := range o.gathers {
		w.Sync(o.shards.pg.Context()) // Sync returns at once or when the gather is over, because the group is broken or the gathers are done
	}
	give, err := o.held()
	for i := range give {
		give[i].Name = ofState(give[i].Name)
	}
	divided := map[*autograd.Variable]bool{}
	for _, p := range o.shards.parts {
		divided[p.Var()] = true
		give = append(give, held{span{ofParameter(p.Name()), p.DType(), p.Shape(), p.lo, p.hi}, p.local.Var().Tensor()})
	}
	if first {
		for name, v := range variables(o.shards.module, ignore) {
			if t := v.Tensor(); !divided[v] {
				give = append(give, held{span{name, t.DType, t.Shape, 0, t.Len()}, t})
			}
		}
	}
	return give, err
}

// variables yields the parameters and buffers of a module, each once, with the names under which
// the ranks exchange them. It leaves out the names in the list `ignore`.
func variables(module nn.Model, ignore []string) iter.Seq2[string, *autograd.Variable] {
	return func(yield func(string, *autograd.Variable) bool) {
		seen := map[*autograd.Variable]bool{}
		once := func(name string, of func(string) string, v *autograd.Variable) bool {
			if seen[v] || slices.Contains(ignore, name) {
				return true
			}
			seen[v] = true
			return yield(of(name), v)
		}
		for _, p := range module.Parameters() {
			if !once(p.Name(), ofParameter, p.Var()) {
				return
			}
		}
		for _, b := range nn.Buffers(module) {
			if !once(b.Name(), ofBuffer, b.Var()) {
				return
			}
		}
	}
}

// taker is the destination of a tensor.
type taker struct {
	v     *autograd.Variable
	whole device.Shape
	of    func(whole device.Tensor) device.Tensor
}

// takers returns the destinations of this rank, by the name of the exchanged tensor.
func (o *Optimizer[O]) takers(module nn.Model, ignore []string) (map[string]taker, error) {
	all := map[string]taker{}
	for name, v := range variables(module, ignore) {
		all[name] = taker{v, v.Shape(), func(whole device.Tensor) device.Tensor { return whole }}
	}
	state, err := o.kept()
	for _, k := range state {
		all[ofState(k.Name())] = taker{k.Var(), k.whole(), k.of}
	}
	return all, err
}
