package optim_test

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/must"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

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
	o := &owner{t: autograd.Zeros(dev, grad, len(data)).Tensor()}
	p.Var().SetGradSink(o)
	return p, o
}

// A thousand steps, each too small to change a 16-bit parameter, add up in its master copy.
func TestSmallStepsAreKeptByMasters(t *testing.T) {
	for _, dt := range []device.DType{device.BFloat16, device.Float16} {
		for _, masters := range []bool{false, true} {
			dev := newDevice(t)
			p, g := typed(t, dev, "p", dt, dt, 1)
			put(t, dev, g.t, 1)
			opt := must.New(optim.NewSGD([]*nn.Parameter{p}, &optim.SGDOptions{LR: 0.5 / 4096, MasterWeights: masters}))
			for range 1000 {
				if err := opt.Step(); err != nil {
					t.Fatal(err)
				}
			}
			want := 1.0
			if masters {
				want = 1 - 1000*0.5/4096 // 0.8779; adjacent bfloat16 numbers differ by 1/256 there
			}
			if got := p.Item(); math.Abs(got-want) > 1./512 || !masters && got != 1 {
				t.Errorf("%v, masters %v: 1 became %v, want %v", dt, masters, got, want)
			}
		}
	}
}

// Master weights take exactly the values of float32 parameters with the same gradients, for
// gradients of 16 and of 32 bits, also after a restart from a saved state. The parameters are the
// rounded masters.
func TestMastersAreFloat32Training(t *testing.T) {
	const n, steps = 300, 12
	for _, dt := range []device.DType{device.BFloat16, device.Float16} {
		for _, grad := range []device.DType{dt, device.Float32} {
			for _, restart := range []int{-1, 0, 5} {
				t.Run(fmt.Sprintf("%v by %v, restart at %d", dt, grad, restart), func(t *testing.T) {
					dev, rnd := newDevice(t), rand.New(rand.NewPCG(1, 2))
					data := make([]float64, n)
					for i := range data {
						data[i] = rnd.NormFloat64()
					}
					opts := optim.SGDOptions{LR: 0.01, Momentum: 0.9, WeightDecay: 0.01, Nesterov: true}
					half, halfGrad := typed(t, dev, "half", dt, grad, data...)
					full, fullGrad := typed(t, dev, "full", device.Float32, device.Float32, read(t, half.Var())...)
					ref := must.New(optim.NewSGD([]*nn.Parameter{full}, &opts))
					opts.MasterWeights = true
					opt := must.New(optim.NewSGD([]*nn.Parameter{half}, &opts))
					for step := range steps {
						if step == restart {
							again := must.New(optim.NewSGD([]*nn.Parameter{half}, &opts))
							to := stateOf(t, again)
							for i, b := range stateOf(t, opt) {
								put(t, dev, to[i].Var().Tensor(), read(t, b.Var())...)
							}
							again.EndLoad(step)
							opt = again
						}
						for i := range data {
							data[i] = rnd.NormFloat64()
						}
						put(t, dev, halfGrad.t, data...)
						if err := dev.Kernels().Copy(dev.Compute(), fullGrad.t, halfGrad.t); err != nil {
							t.Fatal(err)
						}
						if err := errors.Join(opt.Step(), ref.Step()); err != nil {
							t.Fatal(err)
						}
					}
					state := stateOf(t, opt)
					if names := []string{state[0].Name(), state[1].Name()}; !slices.Equal(names, []string{"half.master", "half.velocity"}) {
						t.Fatalf("the state is %q", names)
					}
					master := read(t, state[0].Var())
					if !slices.Equal(master, read(t, full.Var())) {
						t.Error("the master is not the float32 parameter")
					}
					if !slices.Equal(read(t, state[1].Var()), read(t, stateOf(t, ref)[0].Var())) {
						t.Error("the velocity is not that of the float32 parameter")
					}
					rounded := autograd.Zeros(dev, dt, n)
					put(t, dev, rounded.Tensor(), master...)
					if !slices.Equal(read(t, half.Var()), read(t, rounded)) {
						t.Error("the parameter is not the rounded master")
					}
				})
			}
		}
	}
}

func stateOf(t *testing.T, opt *optim.SGD) []*nn.Buffer {
	t.Helper()
	state, err := opt.State()
	if err != nil {
		t.Fatal(err)
	}
	return state
}

// Before the first step a master equals its parameter, whatever the program writes to the
// parameter, and even if it asked for the state before.
func TestMastersEqualParametersBeforeFirstStep(t *testing.T) {
	dev := newDevice(t)
	p, g := typed(t, dev, "p", device.BFloat16, device.BFloat16, 3)
	q := parameter(dev, "q", []float64{1}) // 64 bits: no master
	opt := must.New(optim.NewSGD([]*nn.Parameter{p, q}, &optim.SGDOptions{LR: 1, MasterWeights: true}))
	state := stateOf(t, opt)
	if len(state) != 1 || state[0].Var().Item() != 3 {
		t.Fatalf("the state is %v, want the master of p, 3", state)
	}
	put(t, dev, p.Var().Tensor(), 5)
	if stateOf(t, opt)[0].Var().Item() != 5 {
		t.Error("the state does not follow the parameter")
	}
	put(t, dev, p.Var().Tensor(), 7)
	put(t, dev, g.t, 1)
	if err := opt.Step(); err != nil || p.Item() != 6 {
		t.Errorf("the step went to %v, %v; want 6", p.Item(), err)
	}
}

func TestMasterWeightsAreChosenOnce(t *testing.T) {
	p, _ := typed(t, newDevice(t), "p", device.BFloat16, device.BFloat16, 3)
	opt := must.New(optim.NewSGD([]*nn.Parameter{p}, &optim.SGDOptions{LR: 1}))
	opt.Groups()[0].MasterWeights = true
	refused(t, "masters that come later", opt.Step())
}

// A step whose gradients overflowed changes nothing: the velocity is not initialized, and the step
// is not counted. Other steps divide the gradients by the loss scale.
func TestStepScaled(t *testing.T) {
	for _, dt := range []device.DType{device.Float16, device.Float32} {
		dev := newDevice(t)
		p, g := typed(t, dev, "p", dt, dt, 1)
		opt := must.New(optim.NewSGD([]*nn.Parameter{p}, &optim.SGDOptions{LR: 0.5, Momentum: 0.5, Dampening: 0.5, MasterWeights: true}))
		overflow := []byte{0}
		scaled := optim.Scaled{LossScale: 1024, Overflow: device.HostTensor(overflow, device.Invalid), Err: func() error {
			if overflow[0] != 0 {
				return skipped{}
			}
			return nil
		}}
		for i, c := range []struct {
			grad     float64
			overflow byte
			want     float64
			steps    int
		}{
			{math.Inf(1), 1, 1, 0},
			{1024, 0, 0.5, 1}, // v = 1, without dampening
			{math.NaN(), 1, 0.5, 1},
			{1024, 0, 0, 2}, // v = 0.5·1 + 0.5·1
		} {
			put(t, dev, g.t, c.grad)
			overflow[0] = c.overflow
			err := opt.StepScaled(scaled)
			if (err != nil) != (c.overflow != 0) || err != nil && !errors.Is(err, device.ErrSkipped) {
				t.Errorf("%v, step %d: %v", dt, i, err)
			}
			if n, whole := opt.Committed(); n != c.steps || !whole || p.Item() != c.want {
				t.Errorf("%v, step %d: %v after %d steps, whole: %v; want %v after %d", dt, i, p.Item(), n, whole, c.want, c.steps)
			}
		}
	}
}
