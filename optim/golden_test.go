package optim_test

import (
	"encoding/json"
	"fmt"
	"os"
	"testing"

	"github.com/goddp/goddp/internal/testkit/must"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

// golden is the output of testdata/sgd.py and testdata/adamw.py: trainings with PyTorch.
type golden struct {
	LR       float64
	Shapes   [][]int
	Initial  [][]float64
	Grads    [][][]float64 // by step and parameter; nil: no gradient
	Variants []variant
}

type variant struct {
	Momentum, Dampening, WeightDecay, Eps float64
	Betas                                 [2]float64
	Nesterov, Coupled                     bool
	After                                 [][][]float64 // the parameters after each step
}

// readJSON decodes a file that a script of the same name has written.
func readJSON(t *testing.T, file string, into any) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(text, into)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// In each variant the parameters are those of torch.optim.SGD, AdamW and Adam, even if a parameter has no gradient
// in some steps, and after a restart from a saved state.
func TestRecordedTrainingOfPyTorch(t *testing.T) {
	for file, newOptimizer := range map[string]func(ps []*nn.Parameter, lr float64, v variant) optim.Optimizer{
		"sgd": func(ps []*nn.Parameter, lr float64, v variant) optim.Optimizer {
			return must.New(optim.NewSGD(ps, &optim.SGDOptions{LR: lr, Momentum: v.Momentum, Dampening: v.Dampening, WeightDecay: v.WeightDecay, Nesterov: v.Nesterov}))
		},
		"adamw": func(ps []*nn.Parameter, lr float64, v variant) optim.Optimizer {
			opts := optim.AdamWOptions{LR: lr, Betas: v.Betas, Eps: v.Eps, WeightDecay: v.WeightDecay, Coupled: v.Coupled}
			switch {
			case v.Betas == [2]float64{0.9, 0.999} && v.Eps == 1e-8:
				opts.Betas, opts.Eps = [2]float64{}, 0 // zero values select these defaults
			case v.Betas == [2]float64{} || v.Eps == 0:
				opts.NoDefaults = true
			}
			return must.New(optim.NewAdamW(ps, &opts))
		},
	} {
		var g golden
		readJSON(t, "testdata/"+file+".json", &g)
		for i, v := range g.Variants {
			for _, restart := range []int{-1, 0, 1, 3} {
				if v.Dampening != 0 && restart == 1 {
					continue // the state of SGD does not tell that a parameter has had no gradient yet
				}
				dev := newDevice(t)
				var params []*nn.Parameter
				for k, shape := range g.Shapes {
					params = append(params, parameter(dev, fmt.Sprint(k), g.Initial[k], shape...))
				}
				opt := newOptimizer(params, g.LR, v)
				for step, grads := range g.Grads {
					if step == restart {
						state := saved(t, must.New(optim.State(opt)))
						opt = newOptimizer(params, g.LR, v)
						if err := optim.LoadState(t.Context(), opt, step, state); err != nil {
							t.Fatal(err)
						}
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
						what := fmt.Sprintf("%s, variant %d, restart at %d: parameter %d after step %d", file, i, restart, k, step)
						near(t, what, read(t, p.Var()), v.After[step][k])
					}
				}
				if n, _ := opt.Committed(); n != len(g.Grads) {
					t.Errorf("%d steps committed, want %d", n, len(g.Grads))
				}
			}
		}
	}
}
