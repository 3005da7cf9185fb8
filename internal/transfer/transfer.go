// Package transfer copies the state of one rank to ranks that lack it, and writes nothing on other ranks.
package transfer

import (
	"context"
	"fmt"
	"slices"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/optim"
)

// State is what Copy copies.
type State struct {
	// Variables are all tensors, those of the optimizers' states included. Their order, types and shapes are the same
	// on all ranks.
	Variables  []*autograd.Variable
	Optimizers []optim.Optimizer
	Steps      []int // the numbers of steps that the source's optimizers have committed
	// Loaded, if it is not nil, is called on a receiver before its optimizers become consistent.
	Loaded func() error
}

// Copy copies the state of the rank from to the ranks in `to`. All ranks call it, with the same from and to. The state
// of from is consistent.
//
// A receiver that has a consistent state keeps it until it has received all of the new one, so a failure of the group
// costs it nothing. If it has no memory for both, or no state yet, it is inconsistent until Copy succeeds.
func Copy(ctx context.Context, pg *comm.ProcessGroup, s State, from int, to []int) (err error) {
	s.Variables = slices.DeleteFunc(slices.Clone(s.Variables), func(v *autograd.Variable) bool { return v.Shape().Len() == 0 })
	isReceiver := slices.Contains(to, pg.Rank())
	var p parcel
	if isReceiver || pg.Rank() == from {
		if p, err = newParcel(pg.Device(), tensors(s.Variables)); p.whole.Len() > 0 {
			defer pg.Device().Free(p.whole.Buf)
		}
	}
	if err == nil && pg.Rank() == from {
		err = p.fill(pg.Device(), tensors(s.Variables))
	}
	if err := comm.Agree(ctx, pg, err); err != nil {
		return err
	}
	r := receiver{dev: pg.Device(), state: s, parcel: p}
	defer r.free()
	if isReceiver {
		r.prepare()
	}
	messages := p.replace(r.into)
	if pg.Rank() == from {
		messages = p.replace(tensors(s.Variables))
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
	return r.finish()
}

// tensors returns the memory of the variables.
func tensors(vars []*autograd.Variable) (all []device.Tensor) {
	for _, v := range vars {
		all = append(all, v.Tensor().Flat())
	}
	return all
}

// parcel is the memory in which the small tensors are sent together, because each message has a latency.
type parcel struct {
	whole device.Tensor
	parts []device.Tensor // by variable; the zero Tensor for one that is sent by itself
}

// small is a size in bytes. Smaller tensors are copied into one buffer, the parcel, and sent together.
const small = 256 << 10

func newParcel(dev device.Device, all []device.Tensor) (p parcel, err error) {
	size := 0
	for _, t := range all {
		if t.Bytes() < small {
			size += device.AlignUp(t.Bytes())
		}
	}
	if size == 0 {
		return parcel{parts: make([]device.Tensor, len(all))}, nil
	}
	buf, err := dev.Alloc(size)
	if err != nil {
		return p, fmt.Errorf("memory for the small tensors: %w", err)
	}
	p.whole = device.NewTensor(buf, device.Uint8, size)
	at := 0
	for _, t := range all {
		if t.Bytes() >= small {
			p.parts = append(p.parts, device.Tensor{})
			continue
		}
		p.parts = append(p.parts, device.NewTensor(buf.Slice(at, t.Bytes()), t.DType, t.Len()))
		at += device.AlignUp(t.Bytes())
	}
	return p, nil
}

// fill copies the small tensors into the parcel.
func (p *parcel) fill(dev device.Device, all []device.Tensor) error {
	for i, t := range all {
		if !p.parts[i].IsZero() {
			if err := dev.Copy(dev.Compute(), p.parts[i].Buf, t.Buf); err != nil {
				return err
			}
		}
	}
	return nil
}

// replace returns the messages for all tensors: the parcel in place of the small ones.
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
	parcel parcel
	into   []device.Tensor // where the tensors arrive
	// isStaged says that into is not the memory of the variables, so that the state is unchanged until all has arrived.
	isStaged bool
	staged   []device.Buffer // the memory of into beside the parcel and the variables themselves
}

// prepare chooses where the state arrives.
func (r *receiver) prepare() {
	isStaged := r.hasState() && r.stage()
	if !isStaged {
		r.beginLoad()
		r.into = tensors(r.state.Variables)
	}
	for i, part := range r.parcel.parts {
		if !part.IsZero() {
			r.into[i] = part
		}
	}
	r.isStaged = isStaged
}

// stage allocates memory for the tensors that are not in the parcel. It reports whether there is enough.
func (r *receiver) stage() bool {
	for i, t := range tensors(r.state.Variables) {
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
func (r *receiver) hasState() (isAfterSteps bool) {
	for _, opt := range r.state.Optimizers {
		steps, isConsistent := opt.Committed()
		if !isConsistent {
			return false
		}
		isAfterSteps = isAfterSteps || steps > 0
	}
	return isAfterSteps
}

// beginLoad is called before the first write to the state.
func (r *receiver) beginLoad() {
	for _, opt := range r.state.Optimizers {
		opt.BeginLoad()
	}
	for _, v := range r.state.Variables {
		v.BumpVersion()
	}
}

// finish takes over the state that has arrived.
func (r *receiver) finish() error {
	if r.isStaged {
		r.beginLoad()
	}
	for i, t := range tensors(r.state.Variables) {
		if r.isStaged || !r.parcel.parts[i].IsZero() {
			if err := r.dev.Copy(r.dev.Compute(), t.Buf, r.into[i].Buf); err != nil {
				return err
			}
		}
	}
	if r.state.Loaded != nil {
		if err := r.state.Loaded(); err != nil {
			return err
		}
	}
	for i, opt := range r.state.Optimizers {
		opt.EndLoad(r.state.Steps[i])
	}
	return nil
}

// free frees the staging memory, after the copies that are enqueued.
func (r *receiver) free() {
	for _, b := range r.staged {
		r.dev.Free(b)
	}
}
