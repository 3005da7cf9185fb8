package schedule

import (
	"math"
	"strings"
	"testing"
)

// The rates are those of torch.optim.lr_scheduler 1.13, after each of the first steps.
func TestRatesMatchPyTorch(t *testing.T) {
	for name, c := range map[string]struct {
		schedule Schedule
		want     []float64
	}{
		"OneCycleLR(max_lr=0.5, total_steps=21)": {OneCycle(0.5, 21), []float64{
			0.020000000000000018, 0.06094263549195156, 0.1698013802925829, 0.3094348684978636, 0.4322017416906395,
			0.49621533870742324, 0.49720771772545586, 0.48368117780225767, 0.45952218813485524, 0.4258299829241349,
			0.38413755774568853, 0.3363419182402725, 0.28461776634372427, 0.23131855133348753, 0.17886938786982853,
			0.12965671326162684, 0.08591970455192757, 0.04964839594663274, 0.022493132244044537, 0.00568947813486046,
		}},
		"CosineAnnealingLR(T_max=10, eta_min=0.05)": {Cosine(0.5, 0.05, 10), []float64{
			0.5, 0.48898771616640957, 0.45702882373436315, 0.40725168176580645, 0.34452882373436317, 0.275,
			0.20547117626563688, 0.1427483182341936, 0.09297117626563686, 0.06101228383359046, 0.05,
		}},
		"LinearLR(start_factor=0.1, total_iters=5)": {Linear(0.05, 0.5, 5), []float64{0.05, 0.14, 0.23, 0.32, 0.41, 0.5, 0.5, 0.5}},
		"StepLR(step_size=3, gamma=0.1)":            {Step(0.5, 0.1, 3), []float64{0.5, 0.5, 0.5, 0.05, 0.05, 0.05, 0.005, 0.005, 0.005, 0.0005}},
	} {
		for step, want := range c.want {
			if got := c.schedule(step); math.Abs(got-want) > 1e-12 {
				t.Errorf("%s: step %d has %v, want %v", name, step, got, want)
			}
		}
	}
}

// The schedules of docs/migrate.md are those of PyTorch (the formulas of torch.optim.lr_scheduler's documentation) and
// of Hugging Face (those of transformers.optimization), in each step up to the last.
func TestRatesOfOtherLibraries(t *testing.T) {
	const lr, f, e, g, m, w, n = 0.3, 0.25, 0.75, 0.9, 0.01, 7, 40
	warm := func(s int) float64 { return float64(s) / max(1, w) } // of get_..._schedule_with_warmup
	for name, c := range map[string]struct {
		schedule Schedule
		factor   func(s int) float64 // of lr, in step s
	}{
		"ConstantLR": {Sequence(Phase{Steps: w, Schedule: Constant(f * lr)}, Phase{Schedule: Constant(lr)}), func(s int) float64 {
			if s < w {
				return f
			}
			return 1
		}},
		"LinearLR": {Linear(f*lr, e*lr, w), func(s int) float64 { return f + (e-f)*float64(min(s, w))/w }},
		"LinearLR(1/w, total_iters=w-1)": {WarmUp(lr, w), func(s int) float64 {
			return 1./w + (1-1./w)*float64(min(s, w-1))/(w-1)
		}},
		"llm.c": {WarmUp(lr, w), func(s int) float64 { return min(1, float64(s+1)/w) }},
		"CosineAnnealingLR": {Cosine(lr, m, n), func(s int) float64 {
			return (m + (lr-m)*(1+math.Cos(float64(s)*math.Pi/n))/2) / lr
		}},
		"StepLR":                {Step(lr, g, w), func(s int) float64 { return math.Pow(g, float64(s/w)) }},
		"ExponentialLR":         {Step(lr, g, 1), func(s int) float64 { return math.Pow(g, float64(s)) }},
		"get_constant_schedule": {Constant(lr), func(int) float64 { return 1 }},
		"get_constant_schedule_with_warmup": {Linear(0, lr, w), func(s int) float64 {
			if s < w {
				return warm(s)
			}
			return 1
		}},
		"get_linear_schedule_with_warmup": {WSD(lr, n, w, n-w), func(s int) float64 {
			if s < w {
				return warm(s)
			}
			return max(0, float64(n-s)/max(1, n-w))
		}},
		"get_cosine_schedule_with_warmup": {Sequence(Phase{Steps: w, Schedule: Linear(0, lr, w)}, Phase{Schedule: Cosine(lr, 0, n-w)}), func(s int) float64 {
			if s < w {
				return warm(s)
			}
			progress := float64(s-w) / max(1, n-w)
			return max(0, 0.5*(1+math.Cos(math.Pi*0.5*2*progress)))
		}},
	} {
		for s := range n + 1 {
			if got, want := c.schedule(s), lr*c.factor(s); math.Abs(got-want) > 1e-15 {
				t.Errorf("%s: step %d has %v, want %v", name, s, got, want)
			}
		}
	}
}

func TestSequence(t *testing.T) {
	s := Sequence(Phase{Steps: 2, Schedule: Linear(0, 1, 2)}, Phase{Steps: 3, Schedule: Constant(1)}, Phase{Schedule: Step(1, 0.5, 2)})
	for step, want := range []float64{0, 0.5, 1, 1, 1, 1, 1, 0.5, 0.5, 0.25} {
		if got := s(step); got != want {
			t.Errorf("step %d has %v, want %v", step, got, want)
		}
	}
}

func TestWSD(t *testing.T) {
	s := WSD(2, 10, 2, 4)
	for step, want := range []float64{0, 1, 2, 2, 2, 2, 2, 1.5, 1, 0.5, 0, 0} {
		if got := s(step); got != want {
			t.Errorf("step %d has %v, want %v", step, got, want)
		}
	}
	if got := WSD(2, 3, 0, 0)(5); got != 2 {
		t.Errorf("a schedule that is stable alone ends with %v, want 2", got)
	}
}

func TestPanics(t *testing.T) {
	for want, f := range map[string]func(){
		"WarmUp in 0 steps":            func() { WarmUp(1, 0) },
		"Linear in 0 steps":            func() { Linear(0, 1, 0) },
		"Cosine in -1 steps":           func() { Cosine(0, 1, -1) },
		"Step in 0 steps":              func() { Step(1, 1, 0) },
		"OneCycle in 0 steps":          func() { OneCycle(1, 0) },
		"Sequence without phases":      func() { Sequence() },
		"phase 0 of a Sequence has -1": func() { Sequence(Phase{Steps: -1, Schedule: Constant(1)}, Phase{Schedule: Constant(2)}) },
		"WSD with steps 5, warmUp 3":   func() { WSD(1, 5, 3, 3) },
	} {
		func() {
			defer func() {
				if got, _ := recover().(string); !strings.Contains(got, want) {
					t.Errorf("panic %q, want one with %q", got, want)
				}
			}()
			f()
		}()
	}
}
