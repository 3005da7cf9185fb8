package elastic

import (
	"encoding/json"
	"fmt"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/jsonfloat"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

// commit is a copy of what the repetition of a failed step needs, from the time of the last committed step. It does
// not contain parameters and the optimizer's state, because only a committed step changes them.
type commit struct {
	values  map[string]json.RawMessage
	buffers []buffer
	err     error // why the copy is not complete
}

// buffer is a buffer of the model, which a forward pass may change.
type buffer struct {
	v    *autograd.Variable
	copy device.Buffer
}

// bytes returns the memory of the buffer's values.
func (b buffer) bytes() device.Buffer {
	t := b.v.Tensor()
	return t.Buf.Slice(0, t.Bytes())
}

// observe makes the optimizer call r.commit after each step, until r.close.
func (r *run) observe() error {
	opt := r.optimizer
	if ema, ok := opt.(*optim.EMA); ok {
		opt = ema.Optimizer
	}
	o, ok := opt.(interface{ OnCommit(f func()) })
	if !ok {
		return fmt.Errorf("a %T cannot survive the loss of ranks, want an optimizer of package optim", opt)
	}
	r.divided, _ = opt.(divided)
	dev := r.pg.Device()
	for _, b := range nn.Buffers(r.State.Model) {
		copied, err := dev.Alloc(b.Var().Tensor().Bytes())
		if err != nil {
			r.free()
			return fmt.Errorf("a copy of the model's buffers: %w", err)
		}
		r.last.buffers = append(r.last.buffers, buffer{b.Var(), copied})
	}
	o.OnCommit(r.commit)
	r.close = func() {
		o.OnCommit(nil)
		r.free()
	}
	return nil
}

// free frees the copies.
func (r *run) free() {
	for _, b := range r.last.buffers {
		r.pg.Device().Free(b.copy)
	}
}

// commit copies what the repetition of a later step needs.
func (r *run) commit() {
	if r.Data != nil {
		r.position = r.Data.Position()
	}
	c := &r.last
	c.values, c.err = map[string]json.RawMessage{}, nil
	for name, v := range r.all.Values {
		data, err := jsonfloat.Marshal(v)
		if err != nil && c.err == nil {
			c.err = fmt.Errorf("copying value %q: %w", name, err)
		}
		c.values[name] = data
	}
	dev := r.pg.Device()
	for _, b := range c.buffers {
		if err := dev.Copy(dev.Compute(), b.copy, b.bytes()); err != nil && c.err == nil {
			c.err = fmt.Errorf("copying a buffer of the model: %w", err)
		}
	}
}

// rollBack undoes what a failed step has changed. Before the first commit it does nothing.
func (r *run) rollBack() error {
	c := &r.last
	if c.values == nil || c.err != nil {
		return c.err
	}
	for name, v := range r.all.Values {
		if err := jsonfloat.Unmarshal(c.values[name], v); err != nil {
			return fmt.Errorf("value %q, %s: %w", name, c.values[name], err)
		}
	}
	dev := r.pg.Device()
	for _, b := range c.buffers {
		b.v.BumpVersion()
		if err := dev.Copy(dev.Compute(), b.bytes(), b.copy); err != nil {
			return fmt.Errorf("restoring a buffer of the model: %w", err)
		}
	}
	return r.resume()
}

// resume sets the loader to the position in the values.
func (r *run) resume() error {
	if r.Data == nil {
		return nil
	}
	return r.Data.Resume(r.position)
}
