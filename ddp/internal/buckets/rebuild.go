package buckets

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/awake"
	"github.com/goddp/goddp/internal/gradsink"
	"github.com/goddp/goddp/profile"
)

// order broadcasts the order in which rank 0's gradients became final. Buckets that follow this order
// can be reduced as early as possible. Rank 0 sends the order after a pass that reduces, and all ranks
// receive it when the next pass that reduces begins. Once the ranks have received a valid order, they no
// longer need this object, and each Reducer sets its field `order` to nil.
type order struct {
	params device.Tensor // Int32: the parameters in the order of rank 0; all -1 if rank 0 lacked a gradient
	sent   *comm.Work    // the broadcast; nil if there is nothing to receive
}

func newOrder(pg *comm.ProcessGroup, params int) (*order, error) {
	size := device.Int32.Size() * params
	buf, err := pg.Alloc(device.AlignUp(size))
	if err != nil {
		return nil, fmt.Errorf("reducer: allocating memory for the order of %d parameters: %w", params, err)
	}
	return &order{params: device.NewTensor(buf.Slice(0, size), device.Int32, params)}, nil
}

// send starts the broadcast of rank 0's order. On rank 0, the parameter `mine` is the order, or nil if
// rank 0 lacked a gradient. Other ranks ignore `mine`. If rank 0 cannot copy its order to the device, the ranks
// receive no valid order and keep their buckets; the pass does not fail.
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
			pg.Log().Warn("rank 0 cannot send the order of its gradients", "error", err)
		}
	}
	o.sent = pg.With(&comm.CallOptions{Name: "order of gradients"}).Broadcast(o.params, 0)
}

// receive waits for the order that rank 0 has sent. It returns nil if rank 0 has sent no valid order.
func (o *order) receive(ctx context.Context, pg *comm.ProcessGroup) ([]int, error) {
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
		pg.Abort(err) // this rank cannot rebuild its buckets, and the other ranks may rebuild theirs
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

// rebuild assigns the parameters to buckets in rank 0's order. If the result differs from the buckets in
// use, rebuild allocates new buckets and copies the gradients to them. If one rank has no memory for the
// new buckets, all ranks keep their old buckets.
func (r *Reducer) rebuild(ctx context.Context) error {
	start := time.Now()
	params, err := r.order.receive(ctx, r.pg)
	if err != nil || params == nil {
		return err
	}
	r.order, r.core.reorder = nil, false
	plan := assign(r.params, params, r.caps)
	if slices.EqualFunc(plan, r.buckets, func(a assignment, b bucket) bool { return sameSet(a.params, b.params) }) {
		return nil
	}
	l, err := r.lay(plan)
	if err := comm.Agree(ctx, r.pg, err); err != nil {
		r.pg.Log().Warn("the reducer's buckets were not rebuilt", "error", err)
		return nil // the pass goes on with the old buckets; if the group is broken, the next call of the group returns the error
	}
	for i, s := range r.states {
		if s.Content == gradsink.Written {
			err = errors.Join(err, r.pg.Device().Copy(r.pg.Device().Compute(), l.grads[i].Buf, r.grads[i].Buf))
		}
	}
	r.use(l)
	r.core.rebuild(members(plan))
	r.stats.Rebuilt = r.names(params)
	r.pg.Log().Debug("the reducer's buckets have been rebuilt in rank 0's order", "buckets", len(plan), "order", r.stats.Rebuilt)
	r.traceSpan(profile.Span{
		Track: profile.Host, Name: "rebuild buckets", Begin: profile.At(start), End: profile.At(time.Now()),
		Args: []profile.Arg{{Name: "buckets", Value: len(plan)}},
	})
	return err
}

// sameSet reports whether a and b have the same elements.
func sameSet(a, b []int) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}
