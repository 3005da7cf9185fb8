package reducer

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/arena"
	"github.com/goddp/goddp/internal/awake"
	"github.com/goddp/goddp/profile"
)

// order is rank 0's order on its way to all ranks: that in which its gradients
// became final in a pass. Buckets that follow it can be reduced as early as may
// be. It is sent behind the first pass that reduces, taken where the next one
// begins, and there no more after that.
type order struct {
	params device.Tensor // Int32: the order, or -1 where the pass lacked something
	sent   *comm.Work    // nil when there is nothing to take
}

func newOrder(pg *comm.ProcessGroup, params int) (*order, error) {
	size := device.Int32.Size() * params
	buf, err := pg.Alloc(arena.AlignUp(size))
	if err != nil {
		return nil, fmt.Errorf("reducer: order of %d parameters: %w", params, err)
	}
	return &order{params: device.NewTensor(buf.Slice(0, size), device.Int32, params)}, nil
}

// send starts to tell rank 0's order, which is nil where its pass was incomplete,
// to all ranks. What fails here leaves the gradients as they are: there is no order
// then, and no reason to give up the pass.
func (o *order) send(pg *comm.ProcessGroup, mine []int) {
	if pg.Rank() == 0 {
		words := make([]byte, 0, o.params.Bytes())
		for i := range o.params.Len() {
			p := -1
			if mine != nil {
				p = mine[i]
			}
			words = binary.NativeEndian.AppendUint32(words, uint32(int32(p)))
		}
		if err := pg.Device().CopyIn(pg.Device().Compute(), o.params.Buf, words); err != nil {
			pg.Log().Warn("the order of gradients cannot be told", "error", err)
		}
	}
	o.sent = pg.With(comm.CallOptions{Name: "order of gradients"}).Broadcast(o.params, 0)
}

// take waits for what was sent, nil if that was no order.
func (o *order) take(ctx context.Context, pg *comm.ProcessGroup) ([]int, error) {
	sent := o.sent
	o.sent = nil
	if err := sent.Wait(ctx); err != nil {
		return nil, err
	}
	ctx, cancel := awake.WithTimeoutCause(ctx, pg.Timeout(), comm.ErrTimeout)
	defer cancel()
	words := make([]byte, o.params.Bytes())
	if err := pg.Device().CopyOut(ctx, pg.Device().Compute(), words, o.params.Buf); err != nil {
		err = fmt.Errorf("reducer: rank %d: reading the order of gradients: %w", pg.Rank(), err)
		pg.Abort(err) // the others may rebuild their buckets
		return nil, err
	}
	params, seen := make([]int, o.params.Len()), make([]bool, o.params.Len())
	for i := range params {
		p := int(int32(binary.NativeEndian.Uint32(words[4*i:])))
		if p < 0 || p >= len(seen) || seen[p] {
			return nil, nil
		}
		params[i], seen[p] = p, true
	}
	return params, nil
}

// rebuild puts the gradients into buckets by rank 0's order, once, if that makes
// them others. All ranks do, or none: one that has no memory for it keeps all
// from it. The gradients that are there move along.
func (r *Reducer) rebuild(ctx context.Context) error {
	begun := time.Now()
	params, err := r.order.take(ctx, r.pg)
	if err != nil || params == nil {
		return err
	}
	r.order, r.core.reorder = nil, false
	plan := Assign(r.params, params, r.caps)
	if slices.EqualFunc(plan, r.buckets, func(a Assignment, b bucket) bool { return sameSet(a.Params, b.Params) }) {
		return nil
	}
	l, err := r.lay(plan)
	if err := comm.Agree(ctx, r.pg, err); err != nil {
		r.pg.Log().Warn("the reducer's buckets stay as they are", "error", err)
		return nil // a group that is broken will say so
	}
	for i, fresh := range r.fresh {
		if !fresh {
			err = errors.Join(err, r.pg.Device().Copy(r.pg.Device().Compute(), l.grads[i].Buf, r.grads[i].Buf))
		}
	}
	r.use(l)
	r.core.rebuild(members(plan))
	r.stats.Rebuilt = r.names(params)
	r.pg.Log().Debug("the reducer's buckets have been rebuilt in rank 0's order", "buckets", len(plan), "order", r.stats.Rebuilt)
	r.record(profile.Span{
		Track: profile.Host, Name: "rebuild buckets", Begin: profile.At(begun), End: profile.At(time.Now()),
		Args: []profile.Arg{{Name: "buckets", Value: len(plan)}},
	})
	return err
}

func sameSet(a, b []int) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}
