package optim

import (
	"fmt"
	"slices"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/nn"
)

// ClipGradNorm scales the gradients of params, which are at least one and on one
// device, so that the norm of all of them together, as one vector, is at most max: by
// max/norm where it is larger. It returns the norm before that, a scalar of Float32,
// or of Float64 if a parameter is. A parameter without a gradient counts for nothing.
//
// It is torch.nn.utils.clip_grad_norm_, called between Backward and Step. It is
// enqueued on the device, and waits for nothing; to read the norm waits. Replicas of
// package ddp have equal gradients, and come to equal ones. What is divided among
// ranks needs [ClipGradNormOver]. Gradients of a scaled loss are to be unscaled
// first, see package amp. As in PyTorch, a norm of NaN makes all gradients NaN, and an
// infinite one makes them 0, but NaN where they are infinite themselves: so do finite
// gradients whose squares add up to more than the norm's type holds.
//
// It panics with an [*OptionError] where max is not above 0.
func ClipGradNorm(params []*nn.Parameter, max float64) (norm *autograd.Variable, err error) {
	return ClipGradNormOver(params, max, func(device.Tensor) error { return nil })
}

// ClipGradNormOver is ClipGradNorm for parameters of which other ranks have others, or
// other parts. total makes the sum of the squares of this rank's gradients, one element
// on the device's compute stream, that of all ranks'; they have to agree on its type.
func ClipGradNormOver(params []*nn.Parameter, max float64, total func(squares device.Tensor) error) (norm *autograd.Variable, err error) {
	if !(max > 0) {
		panic(&OptionError{"max", max, "above 0"})
	}
	c, err := newClipping(params)
	if err == nil {
		defer c.dev.Free(c.mem)
		err = c.clip(max, total)
	}
	if err != nil {
		return nil, fmt.Errorf("optim: clipping gradients: %w", err)
	}
	return c.norm, nil
}

// clipping is one ClipGradNorm.
type clipping struct {
	dev     device.Device
	grads   []device.Tensor
	norm    *autograd.Variable
	mem     device.Buffer
	factor  device.Tensor // in mem: what the gradients are multiplied by
	one     device.Tensor // in mem
	scratch device.Buffer // of mem: for the squares of clipPart elements
}

// clipPart is how many elements are squared at a time: what that takes of memory is
// little beside gradients.
const clipPart = 1 << 22

// newClipping makes what a clipping needs.
func newClipping(params []*nn.Parameter) (*clipping, error) {
	c := &clipping{dev: params[0].Var().Device()}
	dt, longest := device.Float32, 0
	seen := map[*autograd.Variable]bool{}
	for _, p := range params {
		if p.Var().DType() == device.Float64 {
			dt = device.Float64
		}
		g := p.Grad()
		if g == nil || seen[g] { // or under another name
			continue
		}
		seen[g] = true
		if n := g.Tensor().Len(); n > 0 {
			c.grads, longest = append(c.grads, g.Tensor()), max(longest, n)
		}
	}
	c.norm = autograd.Zeros(c.dev, dt)
	if err := c.norm.Err(); err != nil {
		return nil, err
	}
	squares := max(1, min(longest, clipPart)) * dt.Size()
	var err error
	if c.mem, err = c.dev.Alloc(2*device.Align + squares); err != nil {
		return nil, err
	}
	c.factor = device.NewTensor(c.mem.Slice(0, dt.Size()), dt)
	c.one = device.NewTensor(c.mem.Slice(device.Align, dt.Size()), dt)
	c.scratch = c.mem.Slice(2*device.Align, squares)
	return c, nil
}

// clip enqueues everything.
func (c *clipping) clip(max float64, total func(device.Tensor) error) error {
	k, s := c.dev.Kernels(), c.dev.Compute()
	norm, factor, one := c.norm.Tensor(), c.factor, c.one
	var err error
	do := func(f func() error) {
		if err == nil {
			err = f()
		}
	}
	for _, g := range slices.Backward(c.grads) { // those of the last are there first
		for lo := 0; lo < g.Len(); lo += clipPart {
			part := g.Range(lo, min(lo+clipPart, g.Len()))
			x := device.NewTensor(c.scratch.Slice(0, part.Len()*norm.DType.Size()), norm.DType, part.Len())
			if part.DType != x.DType {
				do(func() error { return k.Copy(s, x, part) })
				part = x
			}
			do(func() error { return k.Binary(s, device.Mul, x, part, part) })
			do(func() error { return k.Sum(s, norm, device.Accum{Alpha: 1, Beta: 1}, x) })
		}
	}
	do(func() error { return total(norm) })
	do(func() error { return k.Unary(s, device.Sqrt, norm, norm) })
	// The factor is 1/(1 + ReLU(norm/max - 1)), which is 1 to the bit where nothing is
	// to be clipped.
	do(func() error { return k.Fill(s, one, 1) })
	do(func() error { return k.Axpby(s, factor, device.Accum{Alpha: 1 / max}, norm) })
	do(func() error { return k.Binary(s, device.Sub, factor, factor, one) })
	do(func() error { return k.Unary(s, device.ReLU, factor, factor) })
	do(func() error { return k.Binary(s, device.Add, factor, factor, one) })
	do(func() error { return k.Binary(s, device.Div, factor, one, factor) })
	for _, g := range c.grads {
		do(func() error { return c.scale(g) })
	}
	return err
}

// scale enqueues the multiplication of a gradient by the factor, of its own type.
func (c *clipping) scale(g device.Tensor) error {
	k, s, factor := c.dev.Kernels(), c.dev.Compute(), c.factor
	if g.DType != factor.DType {
		own := device.NewTensor(c.scratch.Slice(0, g.DType.Size()), g.DType)
		if err := k.Copy(s, own, factor); err != nil {
			return err
		}
		factor = own
	}
	return k.Binary(s, device.Mul, g, g, factor)
}
