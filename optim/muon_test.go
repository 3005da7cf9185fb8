package optim_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/testkit/must"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

// muonModel returns matrices of several shapes, and a vector.
func muonModel(dev device.Device) (matrices, rest []*nn.Parameter) {
	numbers := func(n, seed int) []float64 {
		x := make([]float64, n)
		for i := range x {
			x[i] = math.Sin(float64(i*i + seed))
		}
		return x
	}
	for i, shape := range []device.Shape{{6, 4}, {3, 9}, {5, 5}, {4, 2, 3}, {0, 3}, {1, 7}} {
		matrices = append(matrices, parameter(dev, fmt.Sprint("matrix", i), numbers(shape.Len(), i), shape...))
	}
	return matrices, []*nn.Parameter{parameter(dev, "bias", numbers(4, 9))}
}

// muonSteps makes the steps from to to. One parameter has no gradient in some of them.
func muonSteps(t *testing.T, opt *optim.Muon, from, to int) {
	for step := from; step < to; step++ {
		opt.ZeroGrad()
		for i, p := range opt.Parameters() {
			if i == 1 && step%3 == 0 {
				continue
			}
			g := read(t, p.Var())
			for k := range g {
				g[k] = math.Cos(g[k] + float64(k*step))
			}
			give(t, p, g)
		}
		if err := opt.Step(); err != nil {
			t.Fatal(err)
		}
	}
}

func newMuon(matrices, rest []*nn.Parameter) *optim.Muon {
	return must.New(optim.NewMuon(matrices, &optim.MuonOptions{LR: 0.02, WeightDecay: 0.1},
		optim.AdamWGroup{Params: rest, AdamWOptions: optim.AdamWOptions{LR: 0.01}}))
}

// numbersOf returns the values of all parameters and of the state, by name.
func numbersOf(t *testing.T, opt *optim.Muon) map[string][]float64 {
	t.Helper()
	all := map[string][]float64{}
	for _, p := range opt.Parameters() {
		all[p.Name()] = read(t, p.Var())
	}
	state, err := opt.State()
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range state {
		all[b.Name()] = read(t, b.Var())
	}
	return all
}

// Ranks that divide the matrices compute bit for bit the same as one process. So does an optimizer
// that continues from a saved state.
func TestMuonDividedEqualsUndivided(t *testing.T) {
	const steps = 8
	dev := newDevice(t)
	whole := newMuon(muonModel(dev))
	muonSteps(t, whole, 0, steps)
	want := numbersOf(t, whole)
	for _, size := range []int{1, 2, 3} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			groups, err := comm.Local(size, nil)
			if err != nil {
				t.Fatal(err)
			}
			var wg sync.WaitGroup
			for _, pg := range groups {
				wg.Go(func() {
					defer pg.Close()
					opt := newMuon(muonModel(pg.Device()))
					divide := func() {
						if err := opt.Divide(pg.Rank(), pg.Size(), func(all, mine device.Tensor) error { return pg.AllGather(all, mine).Wait(ctx) }); err != nil {
							t.Error(err)
						}
						opt.SetStepHook(nil) // which leaves the division as it is
					}
					divide()
					muonSteps(t, opt, 0, 5)
					saved, err := optim.State(opt)
					if err != nil {
						t.Error(err)
					}
					again := newMuon(muonModel(pg.Device()))
					for i, p := range again.Parameters() {
						copy(device.Elements[float64](p.Var().Tensor()), read(t, opt.Parameters()[i].Var()))
					}
					if err := optim.LoadState(ctx, again, 5, saved); err != nil {
						t.Error(err)
					}
					opt = again
					divide()
					muonSteps(t, opt, 5, steps)
					for name, got := range numbersOf(t, opt) {
						if !slices.Equal(got, want[name]) {
							t.Errorf("rank %d: %s is %v, of one process %v", pg.Rank(), name, got, want[name])
						}
					}
				})
			}
			wg.Wait()
		})
	}
}

// A step that is skipped on the device changes neither parameters nor state, and gathers nothing. A
// gather that fails leaves the optimizer inconsistent.
func TestMuonAfterSkippedAndFailedSteps(t *testing.T) {
	dev := newDevice(t)
	matrices, rest := muonModel(dev)
	opt := newMuon(matrices, rest)
	gathers := 0
	lost := errors.New("rank 1 lost")
	for _, divided := range []bool{false, true} {
		if divided {
			if err := opt.Divide(0, 1, func(_, _ device.Tensor) error { gathers++; return lost }); err != nil {
				t.Fatal(err)
			}
		}
		before := numbersOf(t, opt)
		for _, p := range opt.Parameters() {
			give(t, p, make([]float64, p.Shape().Len()))
		}
		raised := autograd.Zeros(dev, device.Uint8, 1)
		device.Elements[uint8](raised.Tensor())[0] = 1
		err := opt.StepScaled(optim.Scaled{LossScale: 2, Overflow: raised.Tensor(), Err: func() error { return device.ErrSkipped }})
		if !errors.Is(err, device.ErrSkipped) || gathers != 0 {
			t.Errorf("divided %v: the step's error is %v, %d gathers", divided, err, gathers)
		}
		for name, got := range numbersOf(t, opt) {
			if !slices.Equal(got, before[name]) {
				t.Errorf("divided %v: the skipped step has changed %s", divided, name)
			}
		}
	}
	var inconsistent *optim.InconsistentError
	if err := opt.Step(); !errors.Is(err, lost) || !errors.As(err, &inconsistent) {
		t.Errorf("the error is %v, want a InconsistentError of %v", err, lost)
	}
}

// StepScaled divides the gradients by the loss scale. 16-bit matrices are their rounded masters, or
// follow their own rounding without masters.
func TestMuonOfScaledAndOf16BitGradients(t *testing.T) {
	dev := newDevice(t)
	data := []float64{0.5, -1, 2, 0.25, 1, -0.75}
	step := func(p *nn.Parameter, grad *owner, by float64, opts optim.MuonOptions) []float64 {
		scaled := make([]float64, len(data))
		for i := range scaled {
			scaled[i] = math.Ldexp(float64(i-2), -3) * by
		}
		put(t, dev, grad.t, scaled...)
		opts.LR, opts.WeightDecay = 0.25, 0.5
		opt := must.New(optim.NewMuon([]*nn.Parameter{p}, &opts))
		if err := opt.StepScaled(optim.Scaled{LossScale: by}); err != nil {
			t.Fatal(err)
		}
		return read(t, p.Var())
	}
	matrixOf := func(dt device.DType) (*nn.Parameter, *owner) {
		p := nn.NewParameter("p", autograd.Zeros(dev, dt, 2, 3))
		put(t, dev, p.Var().Tensor(), data...)
		o := &owner{memory: autograd.Zeros(dev, dt, 2, 3)}
		o.t = o.memory.Tensor()
		o.own(p.Var())
		return p, o
	}
	p, g := matrixOf(device.Float32)
	want := step(p, g, 1, optim.MuonOptions{})
	q, g := matrixOf(device.Float32)
	if got := step(q, g, 1024, optim.MuonOptions{}); !slices.Equal(got, want) {
		t.Errorf("by scaled gradients the parameter is %v, want %v", got, want)
	}
	for _, masters := range []bool{false, true} {
		h, g := matrixOf(device.BFloat16)
		for i, got := range step(h, g, 8, optim.MuonOptions{MasterWeights: masters}) {
			if math.Abs(got-want[i]) > math.Abs(want[i])/128 {
				t.Errorf("masters %v: element %d is %v, in float32 %v", masters, i, got, want[i])
			}
		}
	}
}
