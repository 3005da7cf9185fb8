package optim_test

import (
	"errors"
	"math"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/cpu"
	"github.com/goddp/goddp/internal/gradsink"
	"github.com/goddp/goddp/internal/testkit/must"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

func newDevice(t *testing.T) device.Device {
	dev := cpu.New(&cpu.Options{Threads: 1})
	t.Cleanup(func() { dev.Close() })
	return dev
}

func parameter(dev device.Device, name string, data []float64, shape ...int) *nn.Parameter {
	return nn.NewParameter(name, autograd.FromSlice(dev, data, shape...))
}

// give sets the gradient of p to g.
func give(t *testing.T, p *nn.Parameter, g []float64) {
	t.Helper()
	dev := p.Var().Device()
	if err := p.Var().Backward(&autograd.BackwardOptions{Gradient: autograd.FromSlice(dev, g, p.Shape()...)}); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, v *autograd.Variable) []float64 {
	t.Helper()
	x, err := v.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func near(t *testing.T, what string, got, want []float64) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d numbers, want %d", what, len(got), len(want))
	}
	for i := range got {
		if !(math.Abs(got[i]-want[i]) <= 1e-12) {
			t.Fatalf("%s: element %d is %v, want %v", what, i, got[i], want[i])
		}
	}
}

// put writes numbers to dst, rounded to its type.
func put(t *testing.T, dev device.Device, dst device.Tensor, data ...float64) {
	t.Helper()
	if err := dev.Kernels().Copy(dev.Compute(), dst, device.HostTensor(data, device.Invalid)); err != nil {
		t.Fatal(err)
	}
}

// typed returns a parameter of a given type, and the owner of its gradient.
func typed(t *testing.T, dev device.Device, name string, dt, grad device.DType, data ...float64) (*nn.Parameter, *owner) {
	t.Helper()
	p := nn.NewParameter(name, autograd.Zeros(dev, dt, len(data)))
	put(t, dev, p.Var().Tensor(), data...)
	o := &owner{memory: autograd.Zeros(dev, grad, len(data))}
	o.t = o.memory.Tensor()
	o.own(p.Var())
	return p, o
}

// owner is a gradient sink, as package ddp has.
type owner struct {
	t, skip device.Tensor
	memory  *autograd.Variable // keeps t reachable
	pending bool               // the outcome is not known until Err is called
	err     error
	onErr   func() // called by Err, unless nil
	settle  func() // called by Settle, unless nil
}

// own makes o the owner of v's gradient, which is o.t, if any.
func (o *owner) own(v *autograd.Variable) {
	state := &gradsink.State{}
	if !o.t.IsZero() {
		state.Write()
	}
	gradsink.Set(v, o, state)
}

func (o *owner) Grad() device.Tensor { return o.t }
func (o *owner) Scale() float64      { return 1 }
func (o *owner) Ready(device.Event)  {}
func (o *owner) Pending() bool       { return o.pending }
func (o *owner) Settle() {
	if o.settle != nil {
		o.settle()
	}
}
func (o *owner) Err() error {
	o.pending = false
	if o.onErr != nil {
		o.onErr()
	}
	return o.err
}
func (o *owner) Skip() device.Tensor { return o.skip }

// skipped is the error of a step that raised flags skip.
type skipped struct{}

func (skipped) Error() string        { return "rank 3 has no gradient" }
func (skipped) Is(target error) bool { return target == device.ErrSkipped }

// refused fails the test unless err is an [*optim.OptionError].
func refused(t *testing.T, what string, err error) {
	t.Helper()
	if !errors.As(err, new(*optim.OptionError)) {
		t.Errorf("%s: %v, want an OptionError", what, err)
	}
}

// saved returns a copy of a state.
func saved(t *testing.T, state map[string]*autograd.Variable) map[string]*autograd.Variable {
	t.Helper()
	copies := map[string]*autograd.Variable{}
	for name, v := range state {
		data, err := v.Bytes(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		copies[name] = autograd.FromBytes(v.Device(), v.DType(), v.Shape(), data)
	}
	return copies
}

// optimizers make optimizers with momentum, and with weight decay where that is usual.
var optimizers = map[string]func(ps []*nn.Parameter, masters bool) optim.Optimizer{
	"SGD": func(ps []*nn.Parameter, masters bool) optim.Optimizer {
		return must.New(optim.NewSGD(ps, &optim.SGDOptions{LR: 0.01, Momentum: 0.9, WeightDecay: 0.01, Nesterov: true, MasterWeights: masters}))
	},
	"AdamW": func(ps []*nn.Parameter, masters bool) optim.Optimizer {
		return must.New(optim.NewAdamW(ps, &optim.AdamWOptions{LR: 1e-3, WeightDecay: 0.1, MasterWeights: masters}))
	},
	"RMSProp": func(ps []*nn.Parameter, masters bool) optim.Optimizer {
		return must.New(optim.NewRMSProp(ps, &optim.RMSPropOptions{LR: 1e-3, Momentum: 0.5, Centered: true, MasterWeights: masters}))
	},
}
