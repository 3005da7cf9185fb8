package optim

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
	"github.com/goddp/goddp/nn"
)

// ClipOptions are the choices of [ClipGradNorm].
type ClipOptions struct {
	// NormType is the p of the norm (Σ|g|^p)^(1/p); 0 means 2. If p is 1, the norm is the sum of the magnitudes; if p
	// is infinite, it is the largest magnitude.
	NormType float64
	// Total is for sharded parameters, of which params are this rank's parts ([nn.NewPart]). It is called with
	// Σ|g|^p over this rank's gradients, one Float64 element, and must enqueue work on the device's compute stream
	// that replaces this element by its sum over all ranks. If p is infinite, the element is the largest
	// magnitude, and Total must replace it by the maximum over all ranks.
	Total func(sum device.Tensor) error
}

// ClipGradNorm scales all gradients of params by one factor so that their total norm is at most max. The
// factor is max/(norm + 1e-6) if that is below 1. ClipGradNorm returns the norm before clipping, a scalar. Its
// type is Float64 if a parameter has that type, else Float32. params must not be empty, and all must be on one device. A
// parameter without a gradient is ignored. The norm is computed in Float64.
//
// It is torch.nn.utils.clip_grad_norm_. Call it between Backward and Step. It only enqueues work on the
// device; reading the norm waits for the device. Replicas of package ddp have equal gradients, so their
// norms are equal. If parameters are sharded, set Total, or with package ddp/zero use the method
// ClipGradNorm of its optimizer: for parameters of ddp/zero ClipGradNorm returns an error. Unscale
// the gradients of a scaled loss first or, in Float16, scale max: see package amp. As in PyTorch, a norm
// of NaN makes all gradients NaN. With an infinite norm finite gradients become 0 and infinite ones NaN.
//
// It returns an [*OptionError] unless max is above 0.
func ClipGradNorm(params []*nn.Parameter, max float64, opts *ClipOptions) (norm *autograd.Variable, err error) {
	o := *cmp.Or(opts, &ClipOptions{})
	o.NormType = cmp.Or(o.NormType, 2)
	if !(o.NormType > 0) {
		return nil, &OptionError{"NormType", o.NormType, "above 0"}
	}
	if !(max > 0) {
		return nil, &OptionError{"max", max, "above 0"}
	}
	if len(params) == 0 {
		return nil, &OptionError{"params", "empty", "at least one parameter"}
	}
	for _, param := range params {
		if param.Var().GradDivided() || o.Total == nil && param.IsPart() {
			return nil, fmt.Errorf("optim: clipping gradients: the gradient of %s is sharded: call the method ClipGradNorm of the optimizer that zero.New returned", param.Name())
		}
	}
	norm, err = clip(params, max, &o)
	if err != nil {
		return nil, fmt.Errorf("optim: clipping gradients: %w", err)
	}
	return norm, nil
}

// clip enqueues the kernels of ClipGradNorm.
func clip(params []*nn.Parameter, max float64, o *ClipOptions) (*autograd.Variable, error) {
	dev, dt := params[0].Var().Device(), device.Float32
	var grads []device.Tensor
	for _, p := range params {
		if p.Var().DType() == device.Float64 {
			dt = device.Float64
		}
	}
	for _, g := range gradients(params) {
		grads = append(grads, g.Tensor())
	}
	norm := autograd.Zeros(dev, dt)
	if err := norm.Err(); err != nil {
		return nil, err
	}
	mem, err := dev.Alloc(device.Float64.Size())
	if err != nil {
		return nil, err
	}
	defer dev.Free(mem)
	k, s, sum := kernels.Of(dev), dev.Compute(), device.NewTensor(mem, device.Float64)
	if err := k.PowerSum(s, sum, o.NormType, grads...); err != nil {
		return nil, err
	}
	if o.Total != nil {
		if err := o.Total(sum); err != nil {
			return nil, err
		}
	}
	return norm, k.ScaleToNorm(s, norm.Tensor(), sum, o.NormType, max, grads...)
}

// gradients returns the gradients of params, each once. They are in reverse order, because the gradients of the
// last parameters are reduced first. Tied weights have one gradient.
func gradients(params []*nn.Parameter) (grads []*autograd.Variable) {
	seen := map[*autograd.Variable]bool{}
	for _, p := range slices.Backward(params) {
		if g := p.Grad(); g != nil && !seen[g] {
			seen[g] = true
			grads = append(grads, g)
		}
	}
	return grads
}

// ClipGradValue limits each element of the gradients of params to the range -bound to bound, as
// torch.nn.utils.clip_grad_value_ does. A NaN stays NaN. It also works on sharded gradients. It returns
// an [*OptionError] unless bound is 0 or more.
func ClipGradValue(params []*nn.Parameter, bound float64) error {
	if err := checkNotNegative([]string{"bound"}, bound); err != nil {
		return err
	}
	for _, g := range gradients(params) {
		dev, t := g.Device(), g.Tensor()
		if err := kernels.Of(dev).Unary(dev.Compute(), kernels.Clamp(-bound, bound), t, t); err != nil {
			return fmt.Errorf("optim: clipping %s: %w", g.Name(), err)
		}
	}
	return nil
}
