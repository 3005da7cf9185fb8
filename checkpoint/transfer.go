package checkpoint

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
)

// sent is what the source of a Transfer tells the other ranks.
type sent struct {
	Layout uint64
	Steps  int
	Values map[string]json.RawMessage
}

// Transfer copies the state of the rank from to the ranks in `to`, as if they loaded a checkpoint that from has
// saved. All ranks call it, with the same from and to. It writes nothing on other ranks.
//
// A receiver that has a consistent state keeps it until it has received all of the new one, so a failure of the group
// costs it nothing. It needs memory for both. Another receiver is inconsistent until Transfer succeeds.
//
// Transfer ignores RankValues. It returns an error if the state has a Hook or is divided among the ranks, as
// ddp/zero's is, and if the states of two ranks have different tensors.
func Transfer(ctx context.Context, pg *comm.ProcessGroup, s State, from int, to []int) error {
	if err := transfer(ctx, pg, s, from, to); err != nil {
		return fmt.Errorf("checkpoint: copying the state of rank %d to ranks %v: %w", from, to, err)
	}
	return nil
}

func transfer(ctx context.Context, pg *comm.ProcessGroup, s State, from int, to []int) error {
	var mine sent
	items, err := s.items()
	if err == nil {
		mine.Layout = layout(items)
		mine.Values, err = encodeValues(s.Values)
	}
	if i := slices.IndexFunc(items, func(it item) bool { return it.sharded }); i >= 0 {
		err = fmt.Errorf("%s is divided among the ranks, so that no rank has all of it", items[i].name)
	}
	if s.Hook != nil {
		err = fmt.Errorf("a %T differs between ranks", s.Hook)
	}
	for _, opt := range s.Optimizers {
		mine.Steps, _ = opt.Committed()
	}
	if err := comm.Agree(ctx, pg, err); err != nil {
		return err
	}
	its := mine
	if err := comm.BroadcastObject(ctx, pg, &its, from); err != nil {
		return err
	}
	if its.Layout != mine.Layout {
		err = fmt.Errorf("the tensors, their types or shapes differ from those of rank %d", from)
	} else if missing := lacking(s.Values, its.Values); missing != nil {
		err = fmt.Errorf("rank %d lacks the values %q", from, missing)
	}
	if err := comm.Agree(ctx, pg, err); err != nil {
		return err
	}
	r := receiver{pg: pg, state: s, items: items}
	defer r.free()
	if isReceiver := slices.Contains(to, pg.Rank()); isReceiver {
		err = r.prepare(mine.Steps)
	}
	if err := comm.Agree(ctx, pg, err); err != nil {
		return err
	}
	work := pg.With(&comm.CallOptions{Name: "state"}).Coalesce(func(pg *comm.ProcessGroup) {
		for i, it := range items {
			if it.v.Tensor().Len() == 0 {
				continue
			}
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

// receiver is a rank that receives a state.
type receiver struct {
	pg     *comm.ProcessGroup
	state  State
	items  []item
	into   []device.Tensor // where the items arrive
	staged []device.Buffer // the memory of into; nil if into are the items themselves
}

// prepare chooses where the state arrives. steps is the number of steps in the receiver's own state.
func (r *receiver) prepare(steps int) error {
	isConsistent := steps > 0
	for _, opt := range r.state.Optimizers {
		_, consistent := opt.Committed()
		isConsistent = isConsistent && consistent
	}
	for _, it := range r.items {
		t := it.v.Tensor().Flat()
		if isConsistent {
			b, err := r.pg.Device().Alloc(t.Bytes())
			if err != nil {
				return fmt.Errorf("memory for a second state: %w", err)
			}
			r.staged = append(r.staged, b)
			t = device.NewTensor(b, t.DType, t.Len())
		}
		r.into = append(r.into, t)
	}
	if !isConsistent {
		r.beginLoad()
	}
	return nil
}

func (r *receiver) beginLoad() {
	for _, opt := range r.state.Optimizers {
		opt.BeginLoad()
	}
}

// finish takes over the state that has arrived.
func (r *receiver) finish(its *sent) error {
	dev := r.pg.Device()
	var errs []error
	if r.staged != nil {
		r.beginLoad()
		for i, it := range r.items {
			errs = append(errs, dev.Copy(dev.Compute(), it.v.Tensor().Flat().Buf, r.into[i].Buf))
		}
	}
	for _, it := range r.items {
		it.v.BumpVersion()
	}
	errs = append(errs, decodeValues(r.state.Values, its.Values))
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for _, opt := range r.state.Optimizers {
		opt.EndLoad(its.Steps)
	}
	return nil
}

// free frees the staging memory, after the copies that are enqueued.
func (r *receiver) free() {
	for _, b := range r.staged {
		r.pg.Device().Free(b)
	}
}
