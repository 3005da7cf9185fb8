package optim

import (
	"fmt"
	"math"
	"slices"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/nn"
)

// ClipGradNorm scales the gradients of params, which are at least one and on one
// device, so that the norm of all of them together, as one vector, is at most max: by
// max/(norm + 1e-6) where that is below 1. It returns the norm before that, a scalar of
// Float32, or of Float64 if a parameter is. A parameter without a gradient counts for
// nothing. The sum over all gradients is made in Float64.
//
// It is torch.nn.utils.clip_grad_norm_, called between Backward and Step. It is
// enqueued on the device, and waits for nothing; to read the norm waits. Replicas of
// package ddp have equal gradients, and come to equal ones. What is divided among
// ranks needs [ClipGradPNormOver]. Gradients of a scaled loss are to be unscaled
// first, see package amp. As in PyTorch, a norm of NaN makes all gradients NaN, and an
// infinite one makes them 0, but NaN where they are infinite themselves: so does one
// finite gradient whose squares add up to more than the norm's type holds.
//
// It panics with an [*OptionError] where max is not above 0.
func ClipGradNorm(params []*nn.Parameter, max float64) (norm *autograd.Variable, err error) {
	return ClipGradPNorm(params, 2, max)
}

// ClipGradPNorm is ClipGradNorm by the p-norm, (Σ|g|^p)^(1/p): with p = 1 the sum of the
// magnitudes, with an infinite p the largest of them. It panics with an [*OptionError]
// where p is not above 0.
func ClipGradPNorm(params []*nn.Parameter, p, max float64) (norm *autograd.Variable, err error) {
	return ClipGradPNormOver(params, p, max, func(device.Tensor) error { return nil })
}

// ClipGradPNormOver is ClipGradPNorm for parameters of which other ranks have others, or
// other parts. total makes of Σ|g|^p over this rank's gradients, one element of Float64 on
// the device's compute stream, the sum of all ranks'. With an infinite p it makes of the
// largest magnitude the largest of all ranks'.
func ClipGradPNormOver(params []*nn.Parameter, p, max float64, total func(sum device.Tensor) error) (norm *autograd.Variable, err error) {
	if !(p > 0) {
		panic(&OptionError{"p", p, "above 0"})
	}
	if !(max > 0) {
		panic(&OptionError{"max", max, "above 0"})
	}
	c, err := newClipping(params, p)
	if err == nil {
		defer c.dev.Free(c.mem)
		err = c.clip(max, total)
	}
	if err != nil {
		return nil, fmt.Errorf("optim: clipping gradients: %w", err)
	}
	return c.norm, nil
}

// ClipGradValue brings each element of the gradients of params within -bound to bound, as
// torch.nn.utils.clip_grad_value_ does. A NaN stays one. Otherwise it is as
// ClipGradNorm. It panics with an [*OptionError] where bound is not 0 or more.
func ClipGradValue(params []*nn.Parameter, bound float64) error {
	checkPositive([]string{"bound"}, bound)
	seen := map[*autograd.Variable]bool{}
	for _, p := range slices.Backward(params) { // those of the last are there first
		g := p.Grad()
		if g == nil || seen[g] { // or under another name
			continue
		}
		seen[g] = true
		dev, t := p.Var().Device(), g.Tensor()
		if err := dev.Kernels().Unary(dev.Compute(), device.Clamp(-bound, bound), t, t); err != nil {
			return fmt.Errorf("optim: clipping the gradient of %s: %w", p.Name(), err)
		}
	}
	return nil
}

// clipping is one ClipGradPNormOver.
type clipping struct {
	dev     device.Device
	p       float64
	grads   []device.Tensor
	norm    *autograd.Variable
	mem     device.Buffer
	powers  device.Tensor // in mem: what reduce makes of the p-th powers of parts of gradients, of the norm's type
	total   device.Tensor // in mem: the sum of all, then the norm; Float64, as the next two
	factor  device.Tensor // in mem: what the gradients are multiplied by
	one     device.Tensor // in mem
	scratch device.Buffer // of mem: for the powers of clipPart elements, then for the sums in Float64

	factors map[device.DType]device.Tensor // in mem: factor in the gradients' types
}

// clipPart is how many elements are raised to their power at a time: what that takes of memory is
// little beside gradients.
const clipPart = 1 << 22

// maximumBlocks is how many blocks look for the largest magnitude of a part.
const maximumBlocks = 64

// clipEpsilon is added to the norm, so that gradients of 0 are not divided by it. It is
// that of torch.nn.utils.clip_grad_norm_.
const clipEpsilon = 1e-6

// newClipping makes what a clipping needs.
func newClipping(params []*nn.Parameter, p float64) (*clipping, error) {
	c := &clipping{p: p, dev: params[0].Var().Device(), factors: map[device.DType]device.Tensor{}}
	dt, longest, parts := device.Float32, 0, 0
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
		if t := g.Tensor(); t.Len() > 0 {
			c.grads, longest = append(c.grads, t), max(longest, t.Len())
			parts += (t.Len() + clipPart - 1) / clipPart
			c.factors[t.DType] = device.Tensor{}
		}
	}
	if math.IsInf(p, 1) {
		parts *= maximumBlocks
	}
	c.norm = autograd.Zeros(c.dev, dt)
	if err := c.norm.Err(); err != nil {
		return nil, err
	}
	size := 0
	reserve := func(bytes int) (at int) {
		at = size
		size += (bytes + device.Align - 1) / device.Align * device.Align
		return at
	}
	scratchBytes := max(min(longest, clipPart)*dt.Size(), parts*device.Float64.Size())
	scratch, powers := reserve(scratchBytes), reserve(parts*dt.Size())
	scalars := reserve((3 + len(c.factors)) * device.Align)
	var err error
	if c.mem, err = c.dev.Alloc(size); err != nil {
		return nil, err
	}
	scalar := func(dt device.DType) device.Tensor {
		t := device.NewTensor(c.mem.Slice(scalars, dt.Size()), dt)
		scalars += device.Align
		return t
	}
	c.scratch = c.mem.Slice(scratch, scratchBytes)
	c.powers = device.NewTensor(c.mem.Slice(powers, parts*dt.Size()), dt, parts)
	c.total, c.factor, c.one = scalar(device.Float64), scalar(device.Float64), scalar(device.Float64)
	for dt := range c.factors {
		c.factors[dt] = scalar(dt)
	}
	return c, nil
}

// clip enqueues everything.
func (c *clipping) clip(max float64, total func(device.Tensor) error) error {
	k, s := c.dev.Kernels(), c.dev.Compute()
	var err error
	do := func(f func() error) {
		if err == nil {
			err = f()
		}
	}
	at, each := 0, 1
	if math.IsInf(c.p, 1) {
		each = maximumBlocks
	}
	for _, g := range slices.Backward(c.grads) { // those of the last are there first
		for lo := 0; lo < g.Len(); lo += clipPart {
			part, dt := g.Range(lo, min(lo+clipPart, g.Len())), c.powers.DType
			x := device.NewTensor(c.scratch.Slice(0, part.Len()*dt.Size()), dt, part.Len())
			if part.DType != dt {
				do(func() error { return k.Copy(s, x, part) })
				part = x
			}
			if each == 1 {
				do(func() error { return c.power(x, part) })
				part = x
			}
			do(func() error { return c.reduce(c.powers.Range(at, at+each), part) })
			at += each
		}
	}
	// In Float64: the roundings of a sum of Float32 grow with the number of parameters.
	wide := device.NewTensor(c.scratch.Slice(0, at*device.Float64.Size()), device.Float64, at)
	do(func() error { return k.Copy(s, wide, c.powers) })
	do(func() error { return c.reduce(c.total, wide) })
	do(func() error { return total(c.total) })
	switch c.p {
	case 1, math.Inf(1):
	case 2:
		do(func() error { return k.Unary(s, device.Sqrt, c.total, c.total) })
	default:
		do(func() error { return k.Unary(s, device.Pow(1/c.p), c.total, c.total) })
	}
	do(func() error { return k.Copy(s, c.norm.Tensor(), c.total) })
	// The factor is 1/(1 + ReLU((norm+clipEpsilon)/max - 1)), which is 1 to the bit where
	// nothing is to be clipped.
	do(func() error { return k.Fill(s, c.one, 1) })
	do(func() error { return k.Fill(s, c.factor, clipEpsilon/max-1) })
	do(func() error { return k.Axpby(s, c.factor, device.Accum{Alpha: 1 / max, Beta: 1}, c.total) })
	do(func() error { return k.Unary(s, device.ReLU, c.factor, c.factor) })
	do(func() error { return k.Binary(s, device.Add, c.factor, c.factor, c.one) })
	do(func() error { return k.Binary(s, device.Div, c.factor, c.one, c.factor) })
	for _, own := range c.factors {
		do(func() error { return k.Copy(s, own, c.factor) })
	}
	for _, g := range c.grads {
		do(func() error { return k.Binary(s, device.Mul, g, g, c.factors[g.DType]) })
	}
	return err
}

// power writes |x|^p to dst, which may be x.
func (c *clipping) power(dst, x device.Tensor) error {
	k, s := c.dev.Kernels(), c.dev.Compute()
	if c.p == 2 {
		return k.Binary(s, device.Mul, dst, x, x)
	}
	err := k.Unary(s, device.Abs, dst, x)
	if err == nil && c.p != 1 {
		err = k.Unary(s, device.Pow(c.p), dst, dst)
	}
	return err
}

// reduce writes the sum of x to dst, or for an infinite p to one of dst's elements the
// largest magnitude.
func (c *clipping) reduce(dst, x device.Tensor) error {
	k, s := c.dev.Kernels(), c.dev.Compute()
	if math.IsInf(c.p, 1) {
		return maximum(k, s, dst, x)
	}
	return k.Sum(s, dst, device.Store, x)
}
