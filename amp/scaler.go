package amp

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/capture"
	"github.com/goddp/goddp/optim"
)

// Options are the options of [NewScaler]. The zero value is the default, which is PyTorch's.
type Options struct {
	// InitScale is the first scale. 0 means 65536.
	InitScale float64
	// GrowthFactor is the factor by which the scale grows after GrowthInterval Updates without
	// overflow. It must exceed 1. 0 means 2.
	GrowthFactor float64
	// BackoffFactor is the factor by which the scale is multiplied after an overflow. It must be
	// less than 1. 0 means 0.5.
	BackoffFactor float64
	// GrowthInterval is the number of Updates without overflow after which the scale grows. 0 means
	// 2000.
	GrowthInterval int
	// Disabled makes a Scaler that only calls the optimizer, so that one program can train in all
	// types.
	Disabled bool
	// Group is the group whose ranks agree on each step because their gradients differ. It is nil
	// if the gradients are equal, or if the optimizer supplies the group: see the package
	// documentation.
	Group *comm.ProcessGroup
}

// OrderError is the panic value of calls in a wrong order.
type OrderError struct {
	// Call was called after After, for the same optimizer and without an Update between them.
	Call, After string
}

func (e *OrderError) Error() string {
	return fmt.Sprintf("amp: %s was called after %s for the same optimizer: call Update between them", e.Call, e.After)
}

// withDefaults returns o with the defaults filled in, or an error if an option cannot be used.
func (o Options) withDefaults() (Options, error) {
	var err error
	set := func(name string, v *float64, defaultValue float64, want string, fits func(float64) bool) {
		if *v == 0 {
			*v = defaultValue
		}
		if !fits(*v) && err == nil {
			err = fmt.Errorf("amp: %s is %v, want %s", name, *v, want)
		}
	}
	set("InitScale", &o.InitScale, 1<<16, wantScale, func(v float64) bool { return v > 0 && isScale(v) })
	set("GrowthFactor", &o.GrowthFactor, 2, "more than 1", func(v float64) bool { return v > 1 })
	set("BackoffFactor", &o.BackoffFactor, 0.5, "between 0 and 1", func(v float64) bool { return v > 0 && v < 1 })
	interval := float64(o.GrowthInterval)
	set("GrowthInterval", &interval, 2000, "1 or more", func(v float64) bool { return v >= 1 })
	o.GrowthInterval = int(interval)
	return o, err
}

// Scaler scales losses and steps optimizers with the scaled gradients. Only one goroutine may use it.
type Scaler struct {
	opts   Options
	state  state
	checks map[optim.Optimizer]*check
	free   []*check      // checks of no optimizer, whose memory can be used again
	dev    device.Device // the device of the last loss; nil before the first loss
}

// NewScaler makes a Scaler. It returns an error if an option cannot be used.
func NewScaler(opts *Options) (*Scaler, error) {
	o := *cmp.Or(opts, &Options{})
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	return &Scaler{opts: o, state: state{Scale: float64(float32(o.InitScale))}, checks: map[optim.Optimizer]*check{}}, nil
}

// Scale returns the loss times the scale, in Float32 or Float64. The program calls Backward of the
// result.
func (s *Scaler) Scale(loss *autograd.Variable) *autograd.Variable {
	if s.opts.Disabled {
		return loss
	}
	if loss.DType().Size() == 2 {
		loss = autograd.Cast(loss, device.Float32)
	}
	s.dev = loss.Device()
	if r := capture.Of(s.dev); r != nil {
		return autograd.Mul(loss, autograd.FromTensor(loss.Device(), s.scaleOnDevice(r, loss.DType(), false)))
	}
	return autograd.MulScalar(loss, s.state.Scale)
}

// GetScale returns the scale; 1 if the Scaler is disabled. A step that calls it cannot be captured, because the
// scale is a number of the host.
func (s *Scaler) GetScale() float64 {
	if s.opts.Disabled {
		return 1
	}
	if s.dev != nil {
		if r := capture.Of(s.dev); r != nil {
			r.Refuse("amp: GetScale reads the scale on the host")
		}
	}
	return s.state.Scale
}

// Unscale divides the gradients of opt by the scale, in place. They are then the gradients of the unscaled
// loss, and Step does not divide them again. Unscale returns a [*device.DTypeError] and changes nothing if a
// gradient is Float16, in which it could become zero. It returns the error of the device or of the group if one
// of them fails. It panics with an [*OrderError] after another Unscale or Step of opt since the last Update,
// and with a [*device.DTypeError] if the device does not compute in a gradient's type.
func (s *Scaler) Unscale(opt optim.Optimizer) error {
	if s.opts.Disabled {
		return nil
	}
	c := s.check(opt, "Unscale")
	for _, p := range opt.Parameters() {
		if g := p.Grad(); g != nil && g.DType() == device.Float16 {
			return fmt.Errorf("amp: unscaling: %w", &device.DTypeError{Op: "Unscale of " + g.Name(), Got: device.Float16, Want: device.Float32})
		}
	}
	err := c.scan(opt.Parameters(), s.group(opt))
	if err == nil {
		err = c.divide(opt.Parameters(), s)
	}
	if err != nil {
		c.phase = idle
		return fmt.Errorf("amp: unscaling: %w", err)
	}
	c.phase = unscaled
	if c.capturing != nil {
		c.replays(unscaled)
	}
	return nil
}

// Step calls StepScaled of opt, which has to be an [optim.ScaledStepper]. If a gradient holds a NaN or an
// infinity, StepScaled changes nothing and Step returns nil. Step returns all other errors of the optimizer;
// opt then counts as neither unscaled nor stepped. Step panics with an [*OrderError] after another Step of opt
// since the last Update.
func (s *Scaler) Step(opt optim.Optimizer) error {
	stepper, ok := opt.(optim.ScaledStepper)
	if !ok {
		return fmt.Errorf("amp: %T has no method StepScaled", opt)
	}
	if s.opts.Disabled {
		return stepper.StepScaled(optim.Scaled{})
	}
	c := s.check(opt, "Step")
	scale := 1.0
	if c.phase == idle {
		scale = s.state.Scale
		if err := c.scan(opt.Parameters(), s.group(opt)); err != nil {
			return fmt.Errorf("amp: checking the gradients: %w", err)
		}
	}
	isUnscaled := c.phase == unscaled
	c.phase = idle
	scaled := optim.Scaled{LossScale: scale, Overflow: c.found.Tensor(), Err: c.err}
	if c.capturing != nil {
		return s.captureStep(c, stepper, scaled, isUnscaled)
	}
	err := stepper.StepScaled(scaled)
	if err == nil {
		err = c.err() // an optimizer without gradients has not called c.err
	}
	return c.settle(err)
}

// Update changes the scale according to all Unscales and Steps since the last Update. Without any it
// does nothing. The program calls it once, after the Steps of all optimizers. After an Unscale without a
// Step, Update waits for the check of the gradients. If the device or the group has failed, Update
// ignores that check, and the next call of the device or the group returns the error.
func (s *Scaler) Update() {
	if s.captureUpdate() {
		return
	}
	hasChecked, overflow := false, false
	for opt, c := range s.checks {
		if c.phase == idle { // not used since the last Update: the program may have dropped the optimizer
			s.forget(opt)
			continue
		}
		if c.phase == stepped || c.settle(c.err()) == nil { // in phase unscaled the result is not known yet
			hasChecked, overflow = true, overflow || c.overflow
		}
		c.phase = idle
	}
	if hasChecked {
		s.state = s.state.next(overflow, s.opts)
	}
}

// group returns the group whose ranks have to agree on opt's steps, or nil.
func (s *Scaler) group(opt optim.Optimizer) *comm.ProcessGroup {
	if d, ok := opt.(interface{ Group() *comm.ProcessGroup }); ok && s.opts.Group == nil {
		return d.Group()
	}
	return s.opts.Group
}

// check returns the check of opt. It panics if call is out of order.
func (s *Scaler) check(opt optim.Optimizer, call string) *check {
	c := s.checks[opt]
	if c == nil {
		c = s.takeFree(opt.Parameters()[0].Var().Device())
		s.checks[opt] = c
	}
	if c.phase == stepped || c.phase == unscaled && call == "Unscale" {
		panic(&OrderError{call, c.phase.String()})
	}
	if r := capture.Of(opt.Parameters()[0].Var().Device()); r != nil {
		s.capture(r, opt, c)
	}
	return c
}

// forget deletes the check of opt, which would keep opt alive, and keeps its memory for another.
func (s *Scaler) forget(opt optim.Optimizer) {
	if c := s.checks[opt]; c.found != nil {
		s.free = append(s.free, &check{found: c.found, hostFound: c.hostFound})
	}
	delete(s.checks, opt)
}

// takeFree returns a check of no optimizer, if possible one that has memory on dev.
func (s *Scaler) takeFree(dev device.Device) *check {
	for i, c := range s.free {
		if c.found.Device() == dev {
			s.free = slices.Delete(s.free, i, i+1)
			return c
		}
	}
	return &check{}
}
