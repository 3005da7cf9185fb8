package optim_test

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/testkit/must"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

// Master weights take exactly the values of float32 parameters with the same gradients, for gradients of 16 and of
// 32 bits, also after a restart from a saved state. The parameters are the rounded masters.
func TestMastersAreFloat32Training(t *testing.T) {
	const n, steps = 30, 12
	for name, newOptimizer := range optimizers {
		for _, types := range [][2]device.DType{{device.BFloat16, device.BFloat16}, {device.BFloat16, device.Float32}, {device.Float16, device.Float16}} {
			for _, restart := range []int{-1, 0, 5} {
				t.Run(fmt.Sprintf("%s, %v by %v, restart at %d", name, types[0], types[1], restart), func(t *testing.T) {
					dev, rnd := newDevice(t), rand.New(rand.NewPCG(1, 2))
					data := make([]float64, n)
					random := func() []float64 {
						for i := range data {
							data[i] = rnd.NormFloat64()
						}
						return data
					}
					half, halfGrad := typed(t, dev, "half", types[0], types[1], random()...)
					full, fullGrad := typed(t, dev, "full", device.Float32, device.Float32, read(t, half.Var())...)
					ref, opt := newOptimizer([]*nn.Parameter{full}, false), newOptimizer([]*nn.Parameter{half}, true)
					for step := range steps {
						if step == restart {
							state := saved(t, must.New(optim.State(opt)))
							opt = newOptimizer([]*nn.Parameter{half}, true)
							if err := optim.LoadState(t.Context(), opt, step, state); err != nil {
								t.Fatal(err)
							}
						}
						put(t, dev, halfGrad.t, random()...)
						if err := dev.Kernels().Copy(dev.Compute(), fullGrad.t, halfGrad.t); err != nil {
							t.Fatal(err)
						}
						if err := errors.Join(opt.Step(), ref.Step()); err != nil {
							t.Fatal(err)
						}
					}
					state := must.New(optim.State(opt))
					master := read(t, state["half.master"])
					if !slices.Equal(master, read(t, full.Var())) {
						t.Error("the master is not the float32 parameter")
					}
					for name, want := range must.New(optim.State(ref)) {
						name = strings.Replace(name, "full", "half", 1)
						if !slices.Equal(read(t, state[name]), read(t, want)) {
							t.Errorf("%s is not that of the float32 parameter", name)
						}
					}
					rounded := autograd.Zeros(dev, types[0], n)
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

// The unrounded values become the master without a copy. A parameter that the program writes before the first step still
// gives its master the new value, also after the optimizer has the master.
func TestMasterIsTheUnroundedValues(t *testing.T) {
	dev := newDevice(t)
	p, g := typed(t, dev, "p", device.BFloat16, device.BFloat16, 3)
	p.SetMaster(autograd.FromSlice(dev, []float32{3.001}))
	at := p.Master().Tensor().Buf.Addr()
	opt := must.New(optim.NewSGD([]*nn.Parameter{p}, &optim.SGDOptions{LR: 1, MasterWeights: true}))
	for range 2 {
		if m := stateOf(t, opt)[0].Var(); m.Tensor().Buf.Addr() != at || float32(m.Item()) != 3.001 {
			t.Fatalf("the master is %v, want the memory of the unrounded value", m.Item())
		}
	}
	put(t, dev, p.Var().Tensor(), 5)
	p.Var().BumpVersion()
	put(t, dev, g.t, 1)
	if m := stateOf(t, opt)[0].Var(); m.Item() != 5 {
		t.Errorf("after a write of 5 the master is %v", m.Item())
	}
	if err := opt.Step(); err != nil || stateOf(t, opt)[0].Var().Item() != 4 || p.Master() != nil {
		t.Errorf("%v: the step went to a master of %v, want 4; the parameter still has an unrounded value: %t", err, stateOf(t, opt)[0].Var().Item(), p.Master() != nil)
	}
}
