package zero

import (
	"context"
	"errors"
	"fmt"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/optim"
)

// hasCopies reports whether this rank keeps copies of the shards of the rank before it, and they are up to date.
func (o *Optimizer[O]) hasCopies() bool { return o.shards.copied != nil && !o.isStale }

// prepare makes sure that all ranks can make the updates of a step, before any of them does: each has the averages of
// its shards, and of those that it copies. So if a rank has made them, and another one has failed to, that rank can
// still catch up.
func (o *Optimizer[O]) prepare(scaled optim.Scaled) error {
	s := o.shards
	ctx := s.pg.Context()
	if o.hasCopies() {
		var own, copies []device.Tensor
		for _, b := range s.buckets {
			own, copies = append(own, s.shard(b.grads, s.rank)), append(copies, s.shard(b.grads, s.before()))
		}
		if err := s.sendOn("copies of gradients", own, copies).Wait(ctx); err != nil {
			return err
		}
	}
	s.prepared = &scaled
	return s.pg.With(&comm.CallOptions{Name: "commit"}).Barrier().Sync(ctx)
}

// sendOn sends this rank's tensors to the rank after it, and receives those of the rank before it.
func (s *shards) sendOn(name string, own, copies []device.Tensor) *comm.Work {
	return s.pg.With(&comm.CallOptions{Name: name}).Coalesce(func(pg *comm.ProcessGroup) {
		for _, t := range own {
			if t.Len() > 0 {
				pg.Send(t, s.after())
			}
		}
		for _, t := range copies {
			if t.Len() > 0 {
				pg.Recv(t, s.before())
			}
		}
	})
}

// refreshCopies sets the parameters of the copied shards to the values that they have in this rank's replica.
func (s *shards) refreshCopies() error {
	for _, b := range s.buckets {
		if err := s.pg.Device().Copy(s.pg.Device().Compute(), b.copy.Buf, s.shard(b.flat, s.before()).Buf); err != nil {
			return fmt.Errorf("copying the parameters of %s: %w", b.name, err)
		}
	}
	return nil
}

// SendCopies sends the state of each rank's shards to the rank that keeps copies of them. Without Options.CopyShards it
// does nothing. Package elastic calls it on all ranks when the ranks have changed or a state was loaded: until then the
// copies are out of date, and are not used. The optimizer is consistent.
func (o *Optimizer[O]) SendCopies(ctx context.Context) error {
	if o.shards.copied == nil {
		return nil
	}
	if err := o.sendCopies(ctx); err != nil {
		return fmt.Errorf("zero: copying the state of shards: %w", err)
	}
	return nil
}

func (o *Optimizer[O]) sendCopies(ctx context.Context) error {
	s := o.shards
	mine, err := keptOf(o.local, s.parts)
	theirs, errCopies := keptOf(o.copy, s.copied)
	if err := comm.Agree(ctx, s.pg, errors.Join(err, errCopies, s.refreshCopies())); err != nil {
		return err
	}
	if steps, _ := o.Committed(); steps > 0 { // before the first step the state of all shards is new
		o.copy.BeginLoad()
		if err := s.sendOn("copies of state", tensorsOf(mine), tensorsOf(theirs)).Sync(ctx); err != nil {
			return err
		}
		o.copy.EndLoad(steps)
	}
	o.isStale = false
	return nil
}

// tensorsOf returns the tensors of a state.
func tensorsOf(state []kept) (all []device.Tensor) {
	for _, k := range state {
		all = append(all, k.Var().Tensor().Flat())
	}
	return all
}
