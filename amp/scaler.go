package amp

import (
	"fmt"
	"slices"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

// Optimizer is what a [Scaler] needs to know of one, such as [optim.SGD]. It is
// comparable.
type Optimizer interface {
	// Parameters are those that are optimized, at least one, on one device.
	Parameters() []*nn.Parameter
	// StepScaled makes a step with gradients of a scaled loss, or returns
	// s.Err's error and leaves everything as it was.
	StepScaled(s optim.Scaled) error
}

// Options are the choices of [NewScaler]; the zero value is the good default, and
// PyTorch's.
type Options struct {
	// InitScale is what the loss is multiplied by at first; 0: 65536.
	InitScale float64
	// GrowthFactor is what the scale is multiplied by after GrowthInterval
	// Updates without overflow, more than 1; 0: 2.
	GrowthFactor float64
	// BackoffFactor is what it is multiplied by after an overflow, less than 1;
	// 0: 0.5.
	BackoffFactor float64
	// GrowthInterval is the number of Updates; 0: 2000.
	GrowthInterval int
	// Disabled makes the Scaler one that does nothing but call the optimizer, so
	// that a program can be written once for all types.
	Disabled bool
	// Group is the ranks that have to agree on each step because their gradients
	// differ; nil where they are equal, or where the optimizer knows them: see the
	// package documentation.
	Group *comm.ProcessGroup
}

// OptionError is the panic value of options that make no sense.
type OptionError struct {
	Option string
	Value  float64
	Want   string
}

func (e *OptionError) Error() string {
	return fmt.Sprintf("amp: %s is %v, want %s", e.Option, e.Value, e.Want)
}

// OrderError is the panic value of calls in an order that makes no sense.
type OrderError struct {
	Call, After string // what was called, after what, for one optimizer and without an Update between
}

func (e *OrderError) Error() string {
	return fmt.Sprintf("amp: %s after %s, of the same optimizer and without an Update between", e.Call, e.After)
}

// orDefaults are o with what is not set, checked.
func (o Options) orDefaults() Options {
	set := func(name string, v *float64, otherwise float64, want string, fits func(float64) bool) {
		if *v == 0 {
			*v = otherwise
		}
		if !fits(*v) {
			panic(&OptionError{name, *v, want})
		}
	}
	set("InitScale", &o.InitScale, 1<<16, "a number of float32 above 0", func(v float64) bool { return v > 0 && usable(v) })
	set("GrowthFactor", &o.GrowthFactor, 2, "more than 1", func(v float64) bool { return v > 1 })
	set("BackoffFactor", &o.BackoffFactor, 0.5, "between 0 and 1", func(v float64) bool { return v > 0 && v < 1 })
	interval := float64(o.GrowthInterval)
	set("GrowthInterval", &interval, 2000, "1 or more", func(v float64) bool { return v >= 1 })
	o.GrowthInterval = int(interval)
	return o
}

// Scaler scales a loss and steps optimizers by its gradients. It is driven by
// one goroutine.
type Scaler struct {
	opts   Options
	state  State
	checks map[Optimizer]*check
	spare  []*check // of no optimizer
}

// NewScaler makes a Scaler; nil options are all defaults. It panics with an
// [*OptionError] when opts make no sense.
func NewScaler(opts *Options) *Scaler {
	var o Options
	if opts != nil {
		o = *opts
	}
	o = o.orDefaults()
	return &Scaler{opts: o, state: State{Scale: float64(float32(o.InitScale))}, checks: map[Optimizer]*check{}}
}

// Scale is loss times the scale, of Float32 at least: what to call Backward of.
func (s *Scaler) Scale(loss *autograd.Variable) *autograd.Variable {
	if s.opts.Disabled {
		return loss
	}
	if loss.DType().Size() == 2 {
		loss = autograd.Cast(loss, device.Float32)
	}
	return autograd.MulScalar(loss, s.state.Scale)
}

// GetScale is what the loss is multiplied by; 1 when disabled.
func (s *Scaler) GetScale() float64 {
	if s.opts.Disabled {
		return 1
	}
	return s.state.Scale
}

// Unscale divides opt's gradients by the scale, in place: they are then those of
// the loss, and Step does not divide again. The error is that of the device or
// of the group. It panics with a [*device.DTypeError] where a gradient is of
// Float16, in which it could be lost, or of a type that the device does not
// compute in, and with an [*OrderError] after another Unscale or a Step of opt
// since the last Update.
func (s *Scaler) Unscale(opt Optimizer) error {
	if s.opts.Disabled {
		return nil
	}
	c := s.check(opt, "Unscale")
	for _, p := range opt.Parameters() {
		if g := p.Grad(); g != nil && g.DType() == device.Float16 {
			panic(&device.DTypeError{Op: "Unscale of " + g.Name(), Got: device.Float16, Want: device.Float32})
		}
	}
	err := c.scan(opt.Parameters(), s.group(opt))
	if err == nil {
		err = c.divide(opt.Parameters(), s.state.Scale)
	}
	if err != nil {
		c.phase = idle
		return fmt.Errorf("amp: unscaling: %w", err)
	}
	c.phase = unscaled
	return nil
}

// Step calls opt's StepScaled, which changes nothing if a gradient holds a NaN or
// an infinity. That is no error; any other of the optimizer's is returned, and
// opt then counts as neither unscaled nor stepped. Step panics with an
// [*OrderError] after another Step of opt since the last Update.
func (s *Scaler) Step(opt Optimizer) error {
	if s.opts.Disabled {
		return opt.StepScaled(optim.Scaled{})
	}
	c := s.check(opt, "Step")
	by := 1.0
	if c.phase == idle {
		by = s.state.Scale
		if err := c.scan(opt.Parameters(), s.group(opt)); err != nil {
			return fmt.Errorf("amp: looking at the gradients: %w", err)
		}
	}
	c.phase = idle
	err := opt.StepScaled(optim.Scaled{By: by, Overflow: c.found.Tensor(), Err: c.err})
	if err == nil {
		err = c.err() // which nobody has asked for where there was nothing to update
	}
	return c.settle(err)
}

// Update changes the scale by what the Unscales and Steps since the last Update found;
// it does nothing if there was none. It is called once, after the Steps of all
// optimizers. It waits for what an Unscale found that no Step came after; if the
// device or the group has failed meanwhile, that counts for nothing, and their next
// call tells.
func (s *Scaler) Update() {
	looked, overflow := false, false
	for opt, c := range s.checks {
		if c.phase == idle { // since the last Update: its optimizer may be gone
			s.forget(opt)
			continue
		}
		if c.phase == stepped || c.settle(c.err()) == nil { // or unscaled alone
			looked, overflow = true, overflow || c.overflow
		}
		c.phase = idle
	}
	if looked {
		s.state = s.state.next(overflow, s.opts)
	}
}

// Divided is an [Optimizer] whose ranks each look at gradients of their own, such
// as [github.com/goddp/goddp/ddp/zero.Optimizer].
type Divided interface {
	// Group is these ranks.
	Group() *comm.ProcessGroup
}

// group is the ranks that have to agree on opt's steps, nil for none.
func (s *Scaler) group(opt Optimizer) *comm.ProcessGroup {
	if d, ok := opt.(Divided); ok && s.opts.Group == nil {
		return d.Group()
	}
	return s.opts.Group
}

// check is what the Scaler has of opt, for a call that comes now.
func (s *Scaler) check(opt Optimizer, call string) *check {
	c := s.checks[opt]
	if c == nil {
		c = s.unused(opt.Parameters()[0].Var().Device())
		s.checks[opt] = c
	}
	if c.phase == stepped || c.phase == unscaled && call == "Unscale" {
		panic(&OrderError{call, c.phase.String()})
	}
	return c
}

// forget drops what the Scaler has of opt, which it would keep alive. Its memory is for
// another one.
func (s *Scaler) forget(opt Optimizer) {
	if c := s.checks[opt]; c.found != nil {
		s.spare = append(s.spare, &check{found: c.found, seen: c.seen})
	}
	delete(s.checks, opt)
}

// unused is a check of no optimizer, with memory on dev where there is some.
func (s *Scaler) unused(dev device.Device) *check {
	for i, c := range s.spare {
		if c.found.Device() == dev {
			s.spare = slices.Delete(s.spare, i, i+1)
			return c
		}
	}
	return &check{}
}
