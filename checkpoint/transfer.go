package checkpoint

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
)

// sent is what the source of a Transfer tells the other ranks.
type sent struct {
	Layout uint64
	Bytes  int
	Steps  []int // by optimizer
	Values map[string]json.RawMessage
}

// Transfer copies the state of the rank from to the ranks in `to`, as if they loaded a checkpoint that from has
// saved. All ranks call it, with the same from and to. It writes nothing on other ranks.
//
// A receiver that has a consistent state keeps it until it has received all of the new one, so a failure of the group
// costs it nothing. If it has no memory for both, or no state yet, it is inconsistent until Transfer succeeds.
//
// Transfer ignores RankValues. It returns an error if the state has a Hook or is divided among the ranks, as
// ddp/zero's is, if from is inconsistent, and if the states of two ranks have different tensors.
func Transfer(ctx context.Context, pg *comm.ProcessGroup, s State, from int, to []int) error {
	if len(to) == 0 {
		return nil
	}
	if err := transfer(ctx, pg, s, from, to); err != nil {
		return fmt.Errorf("checkpoint: copying the state of rank %d to ranks %v: %w", from, to, err)
	}
	return nil
}

func transfer(ctx context.Context, pg *comm.ProcessGroup, s State, from int, to []int) error {
	mine, items, err := s.describe(pg.Rank() == from)
	if err := comm.Agree(ctx, pg, err); err != nil {
		return err
	}
	its := mine
	if err := comm.BroadcastObject(ctx, pg, &its, from); err != nil {
		return err
	}
	if its.Layout != mine.Layout || its.Bytes != mine.Bytes || len(its.Steps) != len(mine.Steps) {
		err = fmt.Errorf("rank %d has %d optimizers and %d bytes with layout %016x, rank %d has %d and %d with layout %016x: want the same names, types and shapes",
			pg.Rank(), len(mine.Steps), mine.Bytes, mine.Layout, from, len(its.Steps), its.Bytes, its.Layout)
	} else if missing := lacking(s.Values, its.Values); missing != nil {
		err = fmt.Errorf("rank %d lacks the values %q", from, missing)
	}
	if err := comm.Agree(ctx, pg, err); err != nil {
		return err
	}
	r := receiver{dev: pg.Device(), state: s, items: items}
	defer r.free()
	if slices.Contains(to, pg.Rank()) {
		r.prepare(mine.Steps)
	}
	work := pg.With(&comm.CallOptions{Name: "state"}).Coalesce(func(pg *comm.ProcessGroup) {
		for i, it := range items {
			if pg.Rank() == from {
				for _, peer := range to {
					pg.Send(it.v.Tensor().Flat(), peer)
				}
			}
			if r.into != nil {
				pg.Recv(r.into[i], from)
			}
		}
	})
	// Sync makes sure that data which did not arrive is an error.
	if err := work.Sync(ctx); err != nil || r.into == nil {
		return err
	}
	return r.finish(&its)
}

// describe returns what the rank would send, and the tensors of the state that are not empty.
func (s *State) describe(isSource bool) (mine sent, items []item, err error) {
	if s.Hook != nil {
		return mine, nil, fmt.Errorf("the state of the hook, a %T, differs between ranks: want State.Hook to be nil", s.Hook)
	}
	if items, err = s.items(); err != nil {
		return mine, nil, err
	}
	if i := slices.IndexFunc(items, func(it item) bool { return it.sharded }); i >= 0 {
		return mine, nil, fmt.Errorf("%s is divided among the ranks (ddp/zero), so that no rank has all of it: load a checkpoint", items[i].name)
	}
	mine.Layout = layout(items)
	items = slices.DeleteFunc(items, func(it item) bool { return it.Whole.Len() == 0 })
	for _, it := range items {
		mine.Bytes += it.v.Tensor().Bytes()
	}
	for i, opt := range s.Optimizers {
		steps, isConsistent := opt.Committed()
		if isSource && !isConsistent {
			return mine, nil, fmt.Errorf("optimizer %d is inconsistent after step %d", i, steps)
		}
		mine.Steps = append(mine.Steps, steps)
	}
	mine.Values, err = encodeValues(s.Values)
	return mine, items, err
}

// receiver is a rank that receives a state.
type receiver struct {
	dev    device.Device
	state  State
	items  []item
	into   []device.Tensor // where the items arrive
	staged []device.Buffer // the memory of into; nil if into are the items themselves
}

// prepare chooses where the state arrives. steps are the steps of the receiver's own optimizers.
func (r *receiver) prepare(steps []int) {
	if r.hasState(steps) {
		for _, it := range r.items {
			t := it.v.Tensor().Flat()
			b, err := r.dev.Alloc(t.Bytes())
			if err != nil {
				r.free()
				r.into, r.staged = nil, nil
				break
			}
			r.staged = append(r.staged, b)
			r.into = append(r.into, device.NewTensor(b, t.DType, t.Len()))
		}
	}
	if r.staged == nil {
		r.beginLoad()
		for _, it := range r.items {
			r.into = append(r.into, it.v.Tensor().Flat())
		}
	}
}

// hasState reports whether the receiver has a state that it must not lose.
func (r *receiver) hasState(steps []int) bool {
	for _, opt := range r.state.Optimizers {
		if _, isConsistent := opt.Committed(); !isConsistent {
			return false
		}
	}
	return slices.ContainsFunc(steps, func(n int) bool { return n > 0 })
}

// beginLoad is called before the first write to the state.
func (r *receiver) beginLoad() {
	for _, opt := range r.state.Optimizers {
		opt.BeginLoad()
	}
	for _, it := range r.items {
		it.v.BumpVersion()
	}
}

// finish takes over the state that has arrived.
func (r *receiver) finish(its *sent) error {
	if r.staged != nil {
		r.beginLoad()
		for i, it := range r.items {
			if err := r.dev.Copy(r.dev.Compute(), it.v.Tensor().Flat().Buf, r.into[i].Buf); err != nil {
				return err
			}
		}
	}
	if err := decodeValues(r.state.Values, its.Values); err != nil {
		return err
	}
	for i, opt := range r.state.Optimizers {
		opt.EndLoad(its.Steps[i])
	}
	return nil
}

// free frees the staging memory, after the copies that are enqueued.
func (r *receiver) free() {
	for _, b := range r.staged {
		r.dev.Free(b)
	}
}
