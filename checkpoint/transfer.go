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
	isReceiver := slices.Contains(to, pg.Rank())
	var p parcel
	if err == nil && (isReceiver || pg.Rank() == from) {
		if p, err = newParcel(pg.Device(), items); p.whole.Len() > 0 {
			defer pg.Device().Free(p.whole.Buf)
		}
	}
	if err == nil && pg.Rank() == from {
		err = p.fill(pg.Device(), items)
	}
	if err := comm.Agree(ctx, pg, err); err != nil {
		return err
	}
	r := receiver{dev: pg.Device(), state: s, items: items, parcel: p}
	defer r.free()
	if isReceiver {
		r.prepare(mine.Steps)
	}
	messages := p.replace(r.into)
	if pg.Rank() == from {
		messages = p.replace(tensors(items))
	}
	// A rank that neither sends nor receives makes the call too, because the ranks number their calls.
	work := pg.With(&comm.CallOptions{Name: "state"}).Coalesce(func(pg *comm.ProcessGroup) {
		for _, t := range messages {
			if isReceiver {
				pg.Recv(t, from)
				continue
			}
			for _, peer := range to {
				pg.Send(t, peer)
			}
		}
	})
	// Sync makes sure that data which did not arrive is an error.
	if err := work.Sync(ctx); err != nil || !isReceiver {
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

// tensors returns the memory of the items.
func tensors(items []item) (all []device.Tensor) {
	for _, it := range items {
		all = append(all, it.v.Tensor().Flat())
	}
	return all
}

// parcel is the memory in which the small items are sent together, because each message has a latency.
type parcel struct {
	whole device.Tensor
	parts []device.Tensor // by item; the zero Tensor for an item that is sent by itself
}

// smallItem is the size in bytes below which an item is sent in the parcel.
const smallItem = 256 << 10

func newParcel(dev device.Device, items []item) (p parcel, err error) {
	size := 0
	for _, it := range items {
		if n := it.v.Tensor().Bytes(); n < smallItem {
			size += device.AlignUp(n)
		}
	}
	if size == 0 {
		return parcel{parts: make([]device.Tensor, len(items))}, nil
	}
	buf, err := dev.Alloc(size)
	if err != nil {
		return p, fmt.Errorf("memory for the small tensors: %w", err)
	}
	p.whole = device.NewTensor(buf, device.Uint8, size)
	at := 0
	for _, t := range tensors(items) {
		if t.Bytes() >= smallItem {
			p.parts = append(p.parts, device.Tensor{})
			continue
		}
		p.parts = append(p.parts, device.NewTensor(buf.Slice(at, t.Bytes()), t.DType, t.Len()))
		at += device.AlignUp(t.Bytes())
	}
	return p, nil
}

// fill copies the small items into the parcel.
func (p *parcel) fill(dev device.Device, items []item) error {
	for i, t := range tensors(items) {
		if !p.parts[i].IsZero() {
			if err := dev.Copy(dev.Compute(), p.parts[i].Buf, t.Buf); err != nil {
				return err
			}
		}
	}
	return nil
}

// replace returns the messages for the memory of all items: the parcel in place of the small ones.
func (p *parcel) replace(all []device.Tensor) (messages []device.Tensor) {
	if p.whole.Len() > 0 && all != nil {
		messages = append(messages, p.whole)
	}
	for i, t := range all {
		if p.parts[i].IsZero() {
			messages = append(messages, t)
		}
	}
	return messages
}

// receiver is a rank that receives a state.
type receiver struct {
	dev    device.Device
	state  State
	items  []item
	parcel parcel
	into   []device.Tensor // where the items arrive
	// isStaged says that into is not the memory of the items, so that the state is unchanged until all has arrived.
	isStaged bool
	staged   []device.Buffer // the memory of into beside the parcel and the items themselves
}

// prepare chooses where the state arrives. steps are the steps of the receiver's own optimizers.
func (r *receiver) prepare(steps []int) {
	isStaged := r.hasState(steps) && r.stage()
	if !isStaged {
		r.beginLoad()
		r.into = tensors(r.items)
	}
	for i, part := range r.parcel.parts {
		if !part.IsZero() {
			r.into[i] = part
		}
	}
	r.isStaged = isStaged
}

// stage allocates memory for the items that are not in the parcel. It reports whether there is enough.
func (r *receiver) stage() bool {
	for i, t := range tensors(r.items) {
		if r.parcel.parts[i].IsZero() {
			b, err := r.dev.Alloc(t.Bytes())
			if err != nil {
				r.free()
				r.into, r.staged = nil, nil
				return false
			}
			r.staged = append(r.staged, b)
			t = device.NewTensor(b, t.DType, t.Len())
		}
		r.into = append(r.into, t)
	}
	return true
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
	if r.isStaged {
		r.beginLoad()
	}
	for i, t := range tensors(r.items) {
		if r.isStaged || !r.parcel.parts[i].IsZero() {
			if err := r.dev.Copy(r.dev.Compute(), t.Buf, r.into[i].Buf); err != nil {
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
