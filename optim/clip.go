package optim

import (
	"fmt"
	"math"
	"slices"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
	"github.com/goddp/goddp/nn"
)

// ClipGradNorm scales all gradients of params by one factor so that their common norm, as one vector,
// is at most max. The factor is max/(norm + 1e-6) if that is below 1. It returns the norm
// before clipping, a scalar of type Float32, or Float64 if a parameter is. params must not be empty, and
// all must be on one device. A parameter without a gradient is ignored. The sum over all gradients is
// computed in Float64.
//
// It is torch.nn.utils.clip_grad_norm_. The program calls it between Backward and Step. It only
// enqueues work on the device; reading the norm waits for the device. Replicas of package ddp have
// equal gradients, so they compute equal norms. If parameters are divided among ranks, use
// [ClipGradPNormOver]. Gradients of a scaled loss must be unscaled first: see package amp. As in
// PyTorch, a norm of NaN makes all gradients NaN. An infinite norm makes finite gradients 0 and
// infinite ones NaN; a norm is also infinite if the sum of squares overflows the norm's type.
//
// It returns an [*OptionError] unless max is above 0.
func ClipGradNorm(params []*nn.Parameter, max float64) (norm *autograd.Variable, err error) {
	return ClipGradPNorm(params, 2, max)
}

// ClipGradPNorm is ClipGradNorm for the p-norm, (Σ|g|^p)^(1/p). With p = 1 this is the sum of the
// magnitudes, with an infinite p the largest magnitude. It returns an [*OptionError] unless p is
// above 0.
func ClipGradPNorm(params []*nn.Parameter, p, max float64) (norm *autograd.Variable, err error) {
	return ClipGradPNormOver(params, p, max, func(device.Tensor) error { return nil })
}

// ClipGradPNormOver is ClipGradPNorm for parameters that are divided among ranks. total gets
// Σ|g|^p over this rank's gradients, one Float64 element on the device's compute stream, and must
// replace it by the sum over all ranks. With an infinite p it gets the largest magnitude, and must
// replace it by the largest over all ranks.
func ClipGradPNormOver(params []*nn.Parameter, p, max float64, total func(sum device.Tensor) error) (norm *autograd.Variable, err error) {
	if !(p > 0) {
		return nil, &OptionError{"p", p, "above 0"}
	}
	if !(max > 0) {
		return nil, &OptionError{"max", max, "above 0"}
	}
	if len(params) == 0 {
		return nil, &OptionError{"params", "empty", "at least one parameter"}
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

// ClipGradValue limits each element of the gradients of params to the range -bound to bound, as
// torch.nn.utils.clip_grad_value_ does. A NaN stays NaN. It returns an [*OptionError] unless bound is 0
// or more.
func ClipGradValue(params []*nn.Parameter, bound float64) error {
	if err := checkNotNegative([]string{"bound"}, bound); err != nil {
		return err
	}
	seen := map[*autograd.Variable]bool{}
	for _, p := range slices.Backward(params) { // the gradients of the last parameters are reduced first
		g := p.Grad()
		if g == nil || seen[g] { // tied weights have one gradient
			continue
		}
		seen[g] = true
		dev, t := p.Var().Device(), g.Tensor()
		if err := kernels.Of(dev).Unary(dev.Compute(), kernels.Clamp(-bound, bound), t, t); err != nil {
			return fmt.Errorf("optim: clipping the gradient of %s: %w", p.Name(), err)
		}
	}
	return nil
}

// clipping is one call of ClipGradPNormOver.
type clipping struct {
	dev     device.Device
	p       float64
	grads   []device.Tensor
	norm    *autograd.Variable
	mem     device.Buffer
	powers  device.Tensor // in mem: for each part of a gradient, the sum of its p-th powers; of the norm's type
	total   device.Tensor // in mem: the sum over all parts, later the norm; Float64
	factor  device.Tensor // in mem: the factor of the gradients; Float64
	one     device.Tensor // in mem: the number 1; Float64
	scratch device.Buffer // in mem: the p-th powers of one part, later the sums of all parts in Float64

	factors map[device.DType]device.Tensor // in mem: factor, converted to each type of the gradients
}

// clipPart is the number of elements that are processed at a time, so that the scratch memory is
// small compared with the gradients.
const clipPart = 1 << 22

// maximumBlocks is the number of GPU blocks that search a part for its largest magnitude.
const maximumBlocks = 64

// clipEpsilon is added to the norm, so that a norm of 0 does not divide by zero. It is the value of
// torch.nn.utils.clip_grad_norm_.
const clipEpsilon = 1e-6

// newClipping collects the gradients and allocates the memory.
func newClipping(params []*nn.Parameter, p float64) (*clipping, error) {
	c := &clipping{p: p, dev: params[0].Var().Device(), factors: map[device.DType]device.Tensor{}}
	dt, longest, parts := device.Float32, 0, 0
	seen := map[*autograd.Variable]bool{}
	for _, p := range params {
		if p.Var().DType() == device.Float64 {
			dt = device.Float64
		}
		g := p.Grad()
		if g == nil || seen[g] { // tied weights have one gradient
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

// clip enqueues all kernels.
func (c *clipping) clip(max float64, total func(device.Tensor) error) error {
	k, s := kernels.Of(c.dev), c.dev.Compute()
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
	for _, g := range slices.Backward(c.grads) { // the gradients of the last parameters are reduced first
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
	// The sum is in Float64: the rounding errors of a Float32 sum grow with the number of parameters.
	wide := device.NewTensor(c.scratch.Slice(0, at*device.Float64.Size()), device.Float64, at)
	do(func() error { return k.Copy(s, wide, c.powers) })
	do(func() error { return c.reduce(c.total, wide) })
	do(func() error { return total(c.total) })
	switch c.p {
	case 1, math.Inf(1):
	case 2:
		do(func() error { return k.Unary(s, kernels.Sqrt, c.total, c.total) })
	default:
		do(func() error { return k.Unary(s, kernels.Pow(1/c.p), c.total, c.total) })
	}
	do(func() error { return k.Copy(s, c.norm.Tensor(), c.total) })
	// The factor is 1/(1 + ReLU((norm+clipEpsilon)/max - 1)), which is exactly 1 if no clipping is
	// needed.
	do(func() error { return k.Fill(s, c.one, 1) })
	do(func() error { return k.Fill(s, c.factor, clipEpsilon/max-1) })
	do(func() error { return k.Axpby(s, c.factor, device.Accum{Alpha: 1 / max, Beta: 1}, c.total) })
	do(func() error { return k.Unary(s, kernels.ReLU, c.factor, c.factor) })
	do(func() error { return k.Binary(s, kernels.Add, c.factor, c.factor, c.one) })
	do(func() error { return k.Binary(s, kernels.Div, c.factor, c.one, c.factor) })
	for _, converted := range c.factors {
		do(func() error { return k.Copy(s, converted, c.factor) })
	}
	for _, g := range c.grads {
		do(func() error { return k.Binary(s, kernels.Mul, g, g, c.factors[g.DType]) })
	}
	return err
}

// power writes |x|^p to dst. dst may be x.
func (c *clipping) power(dst, x device.Tensor) error {
	k, s := kernels.Of(c.dev), c.dev.Compute()
	if c.p == 2 {
		return k.Binary(s, kernels.Mul, dst, x, x)
	}
	err := k.Unary(s, kernels.Abs, dst, x)
	if err == nil && c.p != 1 {
		err = k.Unary(s, kernels.Pow(c.p), dst, dst)
	}
	return err
}

// reduce writes the sum of x to dst. With an infinite p it writes the largest magnitude of x to one
// element of dst, and 0 or more to the others.
func (c *clipping) reduce(dst, x device.Tensor) error {
	k, s := kernels.Of(c.dev), c.dev.Compute()
	if math.IsInf(c.p, 1) {
		return maximum(k, s, dst, x)
	}
	return k.Sum(s, dst, device.Store, x)
}
