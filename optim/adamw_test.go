package optim_test

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"slices"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/must"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

// goldenAdamW is the output of testdata/adamw.py.
type goldenAdamW struct {
	LR       float64
	Shapes   [][]int
	Initial  [][]float64
	Grads    [][][]float64 // by step and parameter; nil: no gradient
	Variants []struct {
		Coupled          bool
		WeightDecay, Eps float64
		Betas            [2]float64
		After            [][][]float64 // the parameters after each step
	}
}

// restore copies the state of from to to, and sets its number of committed steps.
func restore(t *testing.T, to, from *optim.AdamW) {
	t.Helper()
	saved, err := from.State()
	if err != nil {
		t.Fatal(err)
	}
	steps, _ := from.Committed()
	into, err := to.State()
	if err != nil {
		t.Fatal(err)
	}
	to.BeginLoad()
	for i, b := range saved {
		if into[i].Name() != b.Name() {
			t.Fatalf("state %s of %s", into[i].Name(), b.Name())
		}
		dev := b.Var().Device()
		if err := dev.Kernels().Copy(dev.Compute(), into[i].Var().Tensor(), b.Var().Tensor()); err != nil {
			t.Fatal(err)
		}
	}
	to.EndLoad(steps)
}

// In each variant the parameters are those of torch.optim.AdamW and Adam, even if a parameter has
// no gradient in some steps, and after a restart from a saved state.
func TestAdamWParityWithPyTorch(t *testing.T) {
	var g goldenAdamW
	file, err := os.ReadFile("testdata/adamw.json")
	if err == nil {
		err = json.Unmarshal(file, &g)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range g.Variants {
		opts := optim.AdamWOptions{LR: g.LR, Betas: v.Betas, Eps: v.Eps, WeightDecay: v.WeightDecay, Coupled: v.Coupled}
		switch {
		case v.Betas == [2]float64{0.9, 0.999} && v.Eps == 1e-8:
			opts.Betas, opts.Eps = [2]float64{}, 0 // zero values select these defaults
		case v.Betas == [2]float64{} || v.Eps == 0:
			opts.NoDefaults = true
		}
		for _, restart := range []int{-1, 0, 1, 3} {
			t.Run(fmt.Sprintf("%+v, restart at %d", opts, restart), func(t *testing.T) {
				dev := newDevice(t)
				var params []*nn.Parameter
				for k, shape := range g.Shapes {
					params = append(params, parameter(dev, fmt.Sprint(k), g.Initial[k], shape...))
				}
				opt := must.New(optim.NewAdamW(params, &opts))
				for step, grads := range g.Grads {
					if step == restart {
						again := must.New(optim.NewAdamW(params, &opts))
						restore(t, again, opt)
						opt = again
					}
					opt.ZeroGrad()
					for k, p := range params {
						if grads[k] != nil {
							give(t, p, grads[k])
						}
					}
					if err := opt.Step(); err != nil {
						t.Fatal(err)
					}
					for k, p := range params {
						near(t, fmt.Sprintf("parameter %d after step %d", k, step), read(t, p.Var()), v.After[step][k])
					}
				}
			})
		}
	}
}

// The number of updates is part of the state. It is right whenever the program asks for the state,
// and after an evaluation with averages.
func TestAdamWState(t *testing.T) {
	dev := newDevice(t)
	p, q := parameter(dev, "p", []float64{1, 2}), parameter(dev, "q", []float64{3})
	opt := must.New(optim.NewAdamW([]*nn.Parameter{p, q}, &optim.AdamWOptions{LR: 0.1}))
	state := func(want ...float64) {
		t.Helper()
		bufs, err := opt.State()
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		var counts []float64
		for _, b := range bufs {
			names = append(names, b.Name())
			if b.DType() == device.Int64 {
				counts = append(counts, b.Var().Item())
			}
		}
		if all := []string{"p.mean", "p.variance", "p.updates", "q.mean", "q.variance", "q.updates"}; !slices.Equal(names, all) {
			t.Fatalf("the state is %q, want %q", names, all)
		}
		if !slices.Equal(counts, want) {
			t.Errorf("%v updates, want %v", counts, want)
		}
	}
	state(0, 0)
	for n := range 3 {
		give(t, p, []float64{1, 1})
		if n == 1 {
			give(t, q, []float64{1})
		}
		if err := opt.Step(); err != nil {
			t.Fatal(err)
		}
		opt.ZeroGrad()
	}
	opt.BeginLoad() // as EMA.With does, which does not use the state
	opt.EndLoad(3)
	give(t, p, []float64{1, 1})
	if err := opt.Step(); err != nil {
		t.Fatal(err)
	}
	state(4, 1)
	opt.BeginLoad()
	opt.EndLoad(0)
	state(0, 0)
}

// Master weights take exactly the values of float32 parameters with the same gradients.
func TestAdamWMasters(t *testing.T) {
	for _, dt := range []device.DType{device.BFloat16, device.Float16} {
		dev := newDevice(t)
		half, halfGrad := typed(t, dev, "half", dt, dt, 1, -2, 3)
		full, fullGrad := typed(t, dev, "full", device.Float32, device.Float32, 1, -2, 3)
		opts := optim.AdamWOptions{LR: 1e-5, WeightDecay: 0.1}
		ref := must.New(optim.NewAdamW([]*nn.Parameter{full}, &opts))
		opts.MasterWeights = true
		opt := must.New(optim.NewAdamW([]*nn.Parameter{half}, &opts))
		for step := range 20 {
			g := math.Ldexp(1, -step)
			put(t, dev, halfGrad.t, g, -g, 2*g)
			put(t, dev, fullGrad.t, g, -g, 2*g)
			if opt.Step() != nil || ref.Step() != nil {
				t.Fatal("a step failed")
			}
		}
		state, err := opt.State()
		if err != nil {
			t.Fatal(err)
		}
		master := read(t, state[0].Var())
		if state[0].Name() != "half.master" || !slices.Equal(master, read(t, full.Var())) {
			t.Errorf("%v: %s is %v, the float32 parameter %v", dt, state[0].Name(), master, read(t, full.Var()))
		}
		rounded := autograd.Zeros(dev, dt, 3)
		put(t, dev, rounded.Tensor(), master...)
		if !slices.Equal(read(t, half.Var()), read(t, rounded)) {
			t.Errorf("%v: the parameter is not the rounded master", dt)
		}
	}
}

func TestAdamWOptions(t *testing.T) {
	dev := newDevice(t)
	p := parameter(dev, "p", []float64{1})
	for _, o := range []optim.AdamWOptions{
		{LR: -1}, {LR: math.NaN()}, {Eps: -1}, {WeightDecay: -1}, {Betas: [2]float64{1, 0.9}}, {Betas: [2]float64{0.9, -0.1}},
	} {
		_, err := optim.NewAdamW([]*nn.Parameter{p}, &o)
		refused(t, fmt.Sprintf("%+v", o), err)
	}
	_, err := optim.NewAdamW([]*nn.Parameter{p, p}, nil)
	refused(t, "a parameter twice", err)
	opt := must.New(optim.NewAdamW([]*nn.Parameter{p}, &optim.AdamWOptions{LR: 1}))
	opt.Groups()[0].MasterWeights = true
	refused(t, "masters that come later", opt.Step())
}
