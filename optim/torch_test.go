package optim_test

import (
	_ "embed"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/testkit"
	"github.com/goddp/goddp/internal/testkit/must"
	"github.com/goddp/goddp/internal/testkit/torchtest"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
	"github.com/goddp/goddp/optim/schedule"
)

//go:embed testdata/torch_optim.py
var torchScript string

// torchShapes are the shapes of the parameters in all runs.
var torchShapes = [][]int{{5, 3}, {7}, {3, 8}, {4, 2, 3}, {1, 1}}

// torchGroup is a group of parameters, by index, with PyTorch's options.
type torchGroup struct {
	Params  []int          `json:"params"`
	Options map[string]any `json:"options"`
}

type torchOptimizer struct {
	Name    string         `json:"name"`
	Options map[string]any `json:"options"`
	Groups  []torchGroup   `json:"groups"`
}

// torchRun is one training, made with PyTorch's optimizers and with this package's.
type torchRun struct {
	DType      string           `json:"dtype"`
	Steps      int              `json:"steps"`
	Initial    [][]float64      `json:"initial"`
	Size       float64          `json:"size"` // the size of the gradients
	Clip       float64          `json:"clip"` // the bound of the norm; 0: no clipping by norm
	Norm       float64          `json:"norm"` // the p of the norm; 0: the largest magnitude
	ClipValue  float64          `json:"clip_value"`
	Rates      []float64        `json:"rates"` // by step: the factor of the learning rates
	Optimizers []torchOptimizer `json:"optimizers"`

	// open makes the optimizer, and a function that sets its learning rates to a multiple of the
	// initial ones.
	open func(p []*nn.Parameter) (opt optim.Optimizer, setRate func(float64))
}

type options = map[string]any

// pick returns the parameters with the given indices.
func pick(p []*nn.Parameter, numbers ...int) (out []*nn.Parameter) {
	for _, i := range numbers {
		out = append(out, p[i])
	}
	return out
}

// torchRuns returns trainings with each optimizer, with groups, schedules and clipping.
func torchRuns() map[string]*torchRun {
	adam := func(name string, opts options, of optim.AdamWOptions) *torchRun {
		second := of
		second.LR, second.WeightDecay, second.Betas = 0.003, 0.2, [2]float64{0.8, 0.95}
		return &torchRun{
			Optimizers: []torchOptimizer{{name, opts, []torchGroup{
				{[]int{0, 1, 4}, nil}, {[]int{2, 3}, options{"lr": 0.003, "weight_decay": 0.2, "betas": []float64{0.8, 0.95}}},
			}}},
			open: func(p []*nn.Parameter) (optim.Optimizer, func(float64)) {
				opt := must.New(optim.NewAdamW(pick(p, 0, 1, 4), &of, optim.AdamWGroup{Params: pick(p, 2, 3), AdamWOptions: second}))
				return opt, func(rate float64) { opt.Groups()[0].LR, opt.Groups()[1].LR = of.LR*rate, second.LR*rate }
			},
		}
	}
	rmsProp := func(opts options, of optim.RMSPropOptions) *torchRun {
		second := of
		second.LR, second.WeightDecay, second.Alpha = 0.003, 0.2, 0.9
		return &torchRun{
			Optimizers: []torchOptimizer{{"RMSprop", opts, []torchGroup{
				{[]int{0, 1, 4}, nil}, {[]int{2, 3}, options{"lr": 0.003, "weight_decay": 0.2, "alpha": 0.9}},
			}}},
			open: func(p []*nn.Parameter) (optim.Optimizer, func(float64)) {
				opt := must.New(optim.NewRMSProp(pick(p, 0, 1, 4), &of, optim.RMSPropGroup{Params: pick(p, 2, 3), RMSPropOptions: second}))
				return opt, func(rate float64) { opt.Groups()[0].LR, opt.Groups()[1].LR = of.LR*rate, second.LR*rate }
			},
		}
	}
	sgd := func(opts options, of optim.SGDOptions) *torchRun {
		second := of
		second.LR, second.WeightDecay = 0.003, 0.2
		return &torchRun{
			Optimizers: []torchOptimizer{{"SGD", opts, []torchGroup{{[]int{0, 1, 4}, nil}, {[]int{2, 3}, options{"lr": 0.003, "weight_decay": 0.2}}}}},
			open: func(p []*nn.Parameter) (optim.Optimizer, func(float64)) {
				opt := must.New(optim.NewSGD(pick(p, 0, 1, 4), &of, optim.SGDGroup{Params: pick(p, 2, 3), SGDOptions: second}))
				return opt, func(rate float64) { opt.Groups()[0].LR, opt.Groups()[1].LR = of.LR*rate, second.LR*rate }
			},
		}
	}
	muon := func(opts options, of optim.MuonOptions) *torchRun {
		second := of
		second.LR, second.WeightDecay = 0.003, 0.2
		rest := optim.AdamWOptions{LR: 0.01, WeightDecay: 0.01}
		return &torchRun{
			Optimizers: []torchOptimizer{
				{"Muon", opts, []torchGroup{{[]int{0, 4}, nil}, {[]int{2, 3}, options{"lr": 0.003, "weight_decay": 0.2}}}},
				{"AdamW", options{"lr": 0.01, "weight_decay": 0.01}, []torchGroup{{[]int{1}, nil}}},
			},
			open: func(p []*nn.Parameter) (optim.Optimizer, func(float64)) {
				opt := must.New(optim.NewMuonGroups([]optim.MuonGroup{{Params: pick(p, 0, 4), MuonOptions: of}, {Params: pick(p, 2, 3), MuonOptions: second}},
					optim.AdamWGroup{Params: pick(p, 1), AdamWOptions: rest}))
				return opt, func(rate float64) {
					opt.Groups()[0].LR, opt.Groups()[1].LR, opt.Rest()[0].LR = of.LR*rate, second.LR*rate, rest.LR*rate
				}
			},
		}
	}
	with := func(r *torchRun, change func(*torchRun)) *torchRun {
		change(r)
		return r
	}
	plain := optim.AdamWOptions{LR: 0.01, WeightDecay: 0.01}
	return map[string]*torchRun{
		"SGD":            sgd(options{"lr": 0.01}, optim.SGDOptions{LR: 0.01}),
		"SGD, Nesterov":  sgd(options{"lr": 0.01, "momentum": 0.9, "nesterov": true}, optim.SGDOptions{LR: 0.01, Momentum: 0.9, Nesterov: true}),
		"AdamW":          adam("AdamW", options{"lr": 0.01}, plain),
		"AdamW, AMSGrad": adam("AdamW", options{"lr": 0.01, "amsgrad": true}, optim.AdamWOptions{LR: 0.01, WeightDecay: 0.01, AMSGrad: true}),
		"Adam":           adam("Adam", options{"lr": 0.01, "weight_decay": 0.1}, optim.AdamWOptions{LR: 0.01, WeightDecay: 0.1, Coupled: true}),
		"Adam, AMSGrad":  adam("Adam", options{"lr": 0.01, "amsgrad": true}, optim.AdamWOptions{LR: 0.01, Coupled: true, AMSGrad: true}),
		"RMSProp":        rmsProp(options{"lr": 0.01}, optim.RMSPropOptions{LR: 0.01}),
		"RMSProp, momentum": rmsProp(options{"lr": 0.01, "momentum": 0.9, "weight_decay": 0.1, "eps": 1e-3},
			optim.RMSPropOptions{LR: 0.01, Momentum: 0.9, WeightDecay: 0.1, Eps: 1e-3}),
		"RMSProp, centered": rmsProp(options{"lr": 0.01, "momentum": 0.5, "centered": true, "eps": 1e-2},
			optim.RMSPropOptions{LR: 0.01, Momentum: 0.5, Centered: true, Eps: 1e-2}),
		"Muon":             muon(options{"lr": 0.01}, optim.MuonOptions{LR: 0.01, WeightDecay: 0.1}),
		"Muon, otherwise":  muon(options{"lr": 0.01, "momentum": 0.5, "nesterov": false, "match_rms": true}, optim.MuonOptions{LR: 0.01, Momentum: 0.5, NoNesterov: true, MatchRMS: true, WeightDecay: 0.1}),
		"a 1-norm":         with(adam("AdamW", options{"lr": 0.01}, plain), func(r *torchRun) { r.Clip, r.Norm, r.Size = 3, 1, 10 }),
		"a 2-norm":         with(sgd(options{"lr": 0.01}, optim.SGDOptions{LR: 0.01}), func(r *torchRun) { r.Clip, r.Norm, r.Size = 0.5, 2, 10 }),
		"a 3-norm":         with(sgd(options{"lr": 0.01}, optim.SGDOptions{LR: 0.01}), func(r *torchRun) { r.Clip, r.Norm, r.Size = 0.5, 3, 10 }),
		"an infinite norm": with(sgd(options{"lr": 0.01}, optim.SGDOptions{LR: 0.01}), func(r *torchRun) { r.Clip, r.Size = 0.5, 10 }),
		"values":           with(sgd(options{"lr": 0.01}, optim.SGDOptions{LR: 0.01}), func(r *torchRun) { r.ClipValue, r.Size = 0.5, 2 }),
	}
}

// In 200 steps the parameters are those of PyTorch's optimizers. The runs have groups with different options,
// scheduled rates, clipped gradients, and steps in which a parameter has no gradient. PyTorch runs once for all of
// them.
func TestTrainingMatchesPyTorch(t *testing.T) {
	testkit.Long(t)
	dev, err := comm.OpenDevice(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	names, runs := typedRuns(200)
	var answer struct {
		Version, Device string
		Runs            [][][][]float64 // by run, step, parameter and element
	}
	torchtest.Run(t, torchScript, map[string]any{"cuda": dev.String() != "cpu", "shapes": torchShapes, "runs": runs}, &answer)
	t.Logf("%v, and PyTorch %s on %s", dev, answer.Version, answer.Device)
	for i, r := range runs {
		t.Run(names[i], func(t *testing.T) { t.Logf("off by at most %.1g", r.train(t, dev, answer.Runs[i])) })
	}
}

// The same runs, with fewer steps, follow the optimizers' published rules in float64.
func TestTrainingMatchesTheRules(t *testing.T) {
	names, runs := typedRuns(24)
	for i, r := range runs {
		t.Run(names[i], func(t *testing.T) { r.train(t, newDevice(t), r.byTheRules()) })
	}
}

// typedRuns returns the runs in each type, with the given number of steps.
func typedRuns(steps int) (names []string, runs []*torchRun) {
	rng := rand.New(rand.NewPCG(1, 2))
	warmup := steps / 10
	rate := schedule.Sequence(schedule.Phase{Steps: warmup, Schedule: schedule.Linear(0, 1, warmup)}, schedule.Phase{Schedule: schedule.Cosine(1, 0.1, steps-warmup)})
	for name, run := range torchRuns() {
		for _, dtype := range []string{"float32", "float64"} {
			r := *run
			r.DType, r.Steps, r.Size = dtype, steps, max(r.Size, 1)
			for step := range steps {
				r.Rates = append(r.Rates, rate(step))
			}
			for _, shape := range torchShapes {
				data := make([]float64, device.Shape(shape).Len())
				for i := range data {
					data[i] = float64(float32(rng.NormFloat64()))
				}
				r.Initial = append(r.Initial, data)
			}
			names, runs = append(names, name+" in "+dtype), append(runs, &r)
		}
	}
	return names, runs
}

// train makes the steps on dev, and returns the largest deviation of a parameter.
func (r *torchRun) train(t *testing.T, dev device.Device, want [][][]float64) (off float64) {
	dt, tolerance := device.Float64, 1e-12
	if r.DType == "float32" {
		dt, tolerance = device.Float32, 1e-5
	}
	number := func(x []float64, shape ...int) *autograd.Variable {
		return autograd.Cast(autograd.FromSlice(dev, x, shape...), dt).Detach()
	}
	var params []*nn.Parameter
	for i, shape := range torchShapes {
		v := autograd.Zeros(dev, dt, shape...)
		if err := dev.Kernels().Copy(dev.Compute(), v.Tensor(), number(r.Initial[i], shape...).Tensor()); err != nil {
			t.Fatal(err)
		}
		params = append(params, nn.NewParameter(fmt.Sprint(i), v))
	}
	opt, setRate := r.open(params)
	for step := range r.Steps {
		opt.ZeroGrad()
		for i, p := range params {
			if (step+i)%7 == 6 {
				continue
			}
			g := read(t, p.Var())
			for k := range g {
				g[k] = -math.Sin(g[k]+float64(k+step)) * r.Size
			}
			if err := p.Var().Backward(&autograd.BackwardOptions{Gradient: number(g, p.Shape()...)}); err != nil {
				t.Fatal(err)
			}
		}
		if r.Clip != 0 {
			p := r.Norm
			if p == 0 {
				p = math.Inf(1)
			}
			if _, err := optim.ClipGradNorm(params, r.Clip, &optim.ClipOptions{NormType: p}); err != nil {
				t.Fatal(err)
			}
		}
		if r.ClipValue != 0 {
			if err := optim.ClipGradValue(params, r.ClipValue); err != nil {
				t.Fatal(err)
			}
		}
		setRate(r.Rates[step])
		if err := opt.Step(); err != nil {
			t.Fatal(err)
		}
		for i, p := range params {
			for k, got := range read(t, p.Var()) {
				d := math.Abs(got - want[step][i][k])
				if off = max(off, d); !(d <= tolerance*max(1, math.Abs(want[step][i][k]))) {
					t.Fatalf("after step %d element %d of parameter %d is %v, PyTorch's %v", step, k, i, got, want[step][i][k])
				}
			}
		}
	}
	return off
}
