package optim

import (
	"cmp"
	"fmt"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/capture"
	"github.com/goddp/goddp/internal/kernels"
	"github.com/goddp/goddp/nn"
)

// AdamWOptions are the options of [NewAdamW]. [kernels.AdamWStep] describes the update rule, which is
// that of torch.optim.AdamW.
type AdamWOptions struct {
	// LR is the learning rate, 0 or more. With 0 the parameters do not change.
	LR float64
	// Betas are the decay rates, below 1, of the mean gradient and of the mean squared gradient: the fractions of
	// the previous means that a step keeps. If both are 0 and NoDefaults is not set, they are 0.9 and 0.999.
	Betas [2]float64
	// Eps is added to the root of the mean squared gradient, so that the step never divides by zero.
	// If it is 0 and NoDefaults is not set, it is 1e-8.
	Eps float64
	// NoDefaults uses Betas and Eps even if they are 0. With Eps 0 an element becomes NaN if its mean
	// squared gradient is 0.
	NoDefaults bool
	// WeightDecay times LR is the fraction of a parameter that a step subtracts.
	// PyTorch's default is 0.01.
	WeightDecay float64
	// Coupled adds WeightDecay times the parameter to the gradient instead. This is
	// torch.optim.Adam.
	Coupled bool
	// AMSGrad divides by the root of the largest mean squared gradient so far instead of the current
	// mean. The program cannot change AMSGrad later.
	AMSGrad bool
	// MasterWeights keeps a Float32 copy of every 16-bit parameter: see [SGDOptions]. The means are Float32 too,
	// because in Float16 the mean squares of small gradients would be zero.
	MasterWeights bool
	// MomentDType is the type of the means where they would be Float32. BFloat16 halves their memory. They are then
	// rounded at random, because the mean of the squares changes in steps that rounding to nearest would lose: see
	// [kernels.AdamWStep] and docs/results/moments.md. Invalid means Float32. The program cannot change MomentDType
	// later. A saved state of the other type is converted when it is loaded.
	MomentDType device.DType
}

func (o *AdamWOptions) rate() *float64 { return &o.LR }

func (o *AdamWOptions) check() error {
	for i, beta := range o.Betas {
		if !(beta < 1) {
			return &OptionError{fmt.Sprintf("Betas[%d]", i), beta, "less than 1"}
		}
	}
	if dt := o.MomentDType; dt != device.Invalid && dt != device.Float32 && dt != device.BFloat16 {
		return &OptionError{"MomentDType", dt, "BFloat16 or Float32"}
	}
	return checkNotNegative([]string{"LR", "Betas[0]", "Betas[1]", "Eps", "WeightDecay"}, o.LR, o.Betas[0], o.Betas[1], o.Eps, o.WeightDecay)
}

// rates returns Betas and Eps, with the defaults filled in.
func (o *AdamWOptions) rates() (betas [2]float64, eps float64) {
	betas, eps = o.Betas, o.Eps
	if betas == [2]float64{} && !o.NoDefaults {
		betas = [2]float64{0.9, 0.999}
	}
	if eps == 0 && !o.NoDefaults {
		eps = 1e-8
	}
	return betas, eps
}

// AdamWGroup is a group of parameters that share options. The caller may change the options between
// steps, but not the parameters.
type AdamWGroup struct {
	Params []*nn.Parameter
	AdamWOptions
	hasMaster, hasAMSGrad bool         // MasterWeights and AMSGrad when the optimizer was made
	moments               device.DType // MomentDType then
	replayed              adamNumbers  // of the parameter that was asked last
}

// adamNumbers are the numbers of an update in a replay, and what they depend on. Most parameters of a group have the same.
// They are computed between the outcome of a step and the next launch, while the GPU waits, and a number takes two powers.
type adamNumbers struct {
	of     [7]float64
	values [5]float64
}

// numbers returns step.Numbers(), until the next call.
func (n *adamNumbers) numbers(step *kernels.AdamWStep) []float64 {
	of := [...]float64{step.LR, step.Beta1, step.Beta2, step.WeightDecay, step.LossScale, float64(step.Step), 0}
	if step.Coupled {
		of[6] = 1
	}
	if of != n.of {
		n.of, n.values = of, step.Numbers()
	}
	return n.values[:]
}

// AdamW divides the mean of the gradients by the root of the mean of their squares. Its State has the
// means, named "NAME.mean" and "NAME.variance", and the number of updates that they include, named
// "NAME.updates"; with AMSGrad also the largest mean square, named "NAME.max_variance". Only Committed
// may be called from several goroutines.
type AdamW struct {
	optimizer
	updatesParts
	groups[*AdamWGroup]
}

// NewAdamW returns an optimizer for params with the options opts, and for more parameter groups with
// their own options, such as biases without weight decay. It handles tied weights and returns errors as
// [NewSGD] does.
func NewAdamW(params []*nn.Parameter, opts *AdamWOptions, more ...AdamWGroup) (*AdamW, error) {
	first := AdamWGroup{Params: params}
	if opts != nil {
		first.AdamWOptions = *opts
	}
	o := &AdamW{}
	for _, group := range append([]AdamWGroup{first}, more...) {
		if err := o.addAdamW(&group); err != nil {
			return nil, err
		}
		o.all = append(o.all, &group)
	}
	return o, nil
}

// addAdamW adds the parameters of a group with the rule of AdamW.
func (o *optimizer) addAdamW(g *AdamWGroup) error {
	g.hasMaster, g.hasAMSGrad, g.moments = g.MasterWeights, g.AMSGrad, g.MomentDType
	if err := g.check(); err != nil {
		return err
	}
	return o.add(g.Params, func() rule { return &adamRule{group: g} })
}

// adamRule is the rule of AdamW for one parameter. The host counts the updates that the means include,
// because it knows which step was skipped. In the state the count is a variable on the device. The rule writes
// it when the caller requests the state, and reads it when the caller may have loaded another state.
type adamRule struct {
	group          *AdamWGroup
	mean, variance *autograd.Variable // nil before the first step
	maxVariance    *autograd.Variable // nil before the first step, and without AMSGrad
	updates        int                // the number of updates that the means include

	count      *autograd.Variable // updates, on the device; nil before the first step
	isWritten  bool               // count holds updates, or a value that the caller loaded
	isLoaded   bool               // the next allocate must read updates from count
	writeError error              // why count could not be written
}

func (r *adamRule) check() error {
	if err := checkUnchanged("MasterWeights", r.group.MasterWeights, r.group.hasMaster); err != nil {
		return err
	}
	if err := checkUnchanged("AMSGrad", r.group.AMSGrad, r.group.hasAMSGrad); err != nil {
		return err
	}
	if err := checkUnchanged("MomentDType", r.group.MomentDType, r.group.moments); err != nil {
		return err
	}
	return r.group.check()
}

func (r *adamRule) hasMaster() bool { return r.group.hasMaster }

func (r *adamRule) allocate(s *slot, dt device.DType) (err error) {
	if dt == device.Float32 {
		dt = cmp.Or(r.group.MomentDType, dt)
	}
	for _, m := range []struct {
		v     **autograd.Variable
		what  string
		dt    device.DType
		shape device.Shape
	}{
		{&r.mean, "mean", dt, s.Var().Shape()}, {&r.variance, "variance", dt, s.Var().Shape()},
		{&r.maxVariance, "max_variance", dt, s.Var().Shape()}, {&r.count, "updates", device.Int64, nil},
	} {
		if *m.v == nil && (m.v != &r.maxVariance || r.group.AMSGrad) {
			if *m.v, err = s.zeros(m.what, m.dt, m.shape...); err != nil {
				*m.v = nil
				return err
			}
		}
	}
	if !r.isLoaded {
		return nil
	}
	if c := capture.Of(s.Var().Device()); c != nil {
		return c.NotYet("%s was loaded", r.count.Name())
	}
	if r.writeError != nil {
		return r.writeError
	}
	n, err := r.count.TryItem(kernels.Unbounded)
	if err != nil {
		return fmt.Errorf("updates of %s: %w", s.Name(), err)
	}
	r.updates, r.isLoaded = int(n), false
	return nil
}

func (r *adamRule) update(s *slot, scaled Scaled, batch *batch) error {
	v, o := s.Var(), &r.group.AdamWOptions
	betas, eps := o.rates()
	step := kernels.AdamWStep{
		Param: v.Tensor(), Grad: s.grad, Master: s.masterTensor(), Mean: r.mean.Tensor(), Variance: r.variance.Tensor(),
		Skip: s.skip(), LossScale: scaled.LossScale, Overflow: scaled.Overflow,
		LR: o.LR, Beta1: betas[0], Beta2: betas[1], Eps: eps, WeightDecay: o.WeightDecay, Coupled: o.Coupled,
		Step: r.updates + 1,
	}
	if r.maxVariance != nil {
		step.MaxVariance = r.maxVariance.Tensor()
	}
	if scaled.capturing != nil {
		r.capture(scaled, &step)
	}
	batch.adamW = append(batch.adamW, step)
	return nil
}

// capture makes a captured step use the learning rate and the number of updates of each replay.
func (r *adamRule) capture(scaled Scaled, step *kernels.AdamWStep) {
	first, isLoaded := r.updates == 0, r.isLoaded
	requireSame(scaled, r.group, r.check, func() AdamWOptions {
		now := r.group.AdamWOptions
		now.LR = 0
		return now
	})
	scaled.capturing.Require(func() bool { return (r.updates == 0) == first && r.isLoaded == isLoaded })
	numbers := *step
	step.At = scaled.numbers(r, len(step.Numbers()), func() []float64 {
		numbers.LR, numbers.Step, numbers.LossScale = r.group.LR, r.updates+1, scaled.scale()
		return r.group.replayed.numbers(&numbers)
	})
}

func (r *adamRule) updated() {
	r.updates++
	r.isWritten = false
	r.mean.BumpVersion()
	r.variance.BumpVersion()
	if r.maxVariance != nil {
		r.maxVariance.BumpVersion()
	}
}

func (r *adamRule) state() ([]*autograd.Variable, error) {
	kept := []*autograd.Variable{r.mean, r.variance}
	if r.maxVariance != nil {
		kept = append(kept, r.maxVariance)
	}
	return append(kept, r.count), r.writeCount()
}

// writeCount enqueues a copy of updates to count.
func (r *adamRule) writeCount() error {
	if r.count == nil || r.isWritten {
		return nil
	}
	dev := r.count.Device()
	r.count.BumpVersion()
	if err := dev.Kernels().Fill(dev.Compute(), r.count.Tensor(), float64(r.updates)); err != nil {
		return fmt.Errorf("setting %s: %w", r.count.Name(), err)
	}
	r.isWritten = true
	return nil
}

func (r *adamRule) beginLoad() {
	if r.count != nil {
		r.writeError, r.isWritten = r.writeCount(), true
	}
}

func (r *adamRule) endLoad(steps int) {
	if r.isLoaded = r.isWritten && steps > 0; steps == 0 {
		r.updates, r.isWritten = 0, false
	}
}
