package checkpoint

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/internal/transfer"
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
// Transfer ignores RankValues. It does not copy what is divided among the ranks, as the optimizer's state of ddp/zero,
// which [zero.Optimizer.Regroup] must have restored before. It returns an error if the state has a Hook, if from is
// inconsistent, and if the states of two ranks have different tensors.
func Transfer(ctx context.Context, pg *comm.ProcessGroup, s State, from int, to []int) error {
	if len(to) == 0 {
		return nil
	}
	if err := copyState(ctx, pg, s, from, to); err != nil {
		return fmt.Errorf("checkpoint: copying the state of rank %d to ranks %v: %w", from, to, err)
	}
	return nil
}

func copyState(ctx context.Context, pg *comm.ProcessGroup, s State, from int, to []int) error {
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
	all := transfer.State{Optimizers: s.Optimizers, Steps: its.Steps, Loaded: func() error { return decodeValues(s.Values, its.Values) }}
	for _, it := range items {
		all.Variables = append(all.Variables, it.v)
	}
	return transfer.Copy(ctx, pg, all, from, to)
}

// describe returns what the rank would send, and the tensors of the state.
func (s *State) describe(isSource bool) (mine sent, items []item, err error) {
	if s.Hook != nil {
		return mine, nil, fmt.Errorf("the state of the hook, a %T, differs between ranks: want State.Hook to be nil", s.Hook)
	}
	if items, err = s.items(); err != nil {
		return mine, nil, err
	}
	all := len(items)
	items = slices.DeleteFunc(items, func(it item) bool { return it.sharded })
	mine.Layout = layout(items)
	for _, it := range items {
		mine.Bytes += it.v.Tensor().Bytes()
	}
	for i, opt := range s.Optimizers {
		steps, isConsistent := opt.Committed()
		if !isConsistent && (isSource || len(items) < all) {
			return mine, nil, fmt.Errorf("optimizer %d is inconsistent after step %d", i, steps)
		}
		mine.Steps = append(mine.Steps, steps)
	}
	mine.Values, err = encodeValues(s.Values)
	return mine, items, err
}
