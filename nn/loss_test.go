package nn_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/cpu"
	"github.com/goddp/goddp/internal/testkit"
	"github.com/goddp/goddp/internal/torchtest"
	"github.com/goddp/goddp/nn"
)

var reductions = map[nn.Reduction]string{nn.ReduceMean: "mean", nn.ReduceSum: "sum", nn.ReduceNone: "none"}

// input returns random numbers from [lo, hi).
func input(rng *rand.Rand, lo, hi float64, shape ...int) torchtest.Input {
	v := make([]float64, device.Shape(shape).Len())
	for i := range v {
		v[i] = lo + (hi-lo)*rng.Float64()
	}
	return torchtest.Input{Shape: shape, Numbers: v}
}

func TestLossesArePyTorchs(t *testing.T) {
	testkit.Long(t)
	rng := rand.New(rand.NewPCG(9, 10))
	type vars = []*autograd.Variable
	var cases []torchtest.Case
	for range randomCases() {
		shape := make([]int, rng.IntN(4))
		for i := range shape {
			shape[i] = 1 + rng.IntN(5)
		}
		x, y, probs := input(rng, -3, 3, shape...), input(rng, -3, 3, shape...), input(rng, 0, 1, shape...)
		weight := input(rng, 0.5, 2, shape...)
		weight.Constant = true
		for r, name := range reductions {
			add := func(expr string, in []torchtest.Input, f func(x vars) *autograd.Variable) {
				expr = fmt.Sprintf(expr, name)
				cases = append(cases, torchtest.Case{Name: fmt.Sprint(expr, shape), Expr: expr, In: in, Go: f})
			}
			add("F.mse_loss(x[0], x[1], reduction='%s')", []torchtest.Input{x, y}, func(x vars) *autograd.Variable {
				return nn.MSELoss(x[0], x[1], nn.LossOptions{Reduction: r})
			})
			add("F.l1_loss(x[0], x[1], reduction='%s')", []torchtest.Input{x, y}, func(x vars) *autograd.Variable {
				return nn.L1Loss(x[0], x[1], nn.LossOptions{Reduction: r})
			})
			add("F.huber_loss(x[0], x[1], delta=1.5, reduction='%s')", []torchtest.Input{x, y}, func(x vars) *autograd.Variable {
				return nn.HuberLoss(x[0], x[1], nn.HuberOptions{Reduction: r, Threshold: 1.5})
			})
			add("F.smooth_l1_loss(x[0], x[1], reduction='%s')", []torchtest.Input{x, y}, func(x vars) *autograd.Variable {
				return nn.SmoothL1Loss(x[0], x[1], nn.HuberOptions{Reduction: r})
			})
			add("F.kl_div(x[0], x[1], reduction='%s')", []torchtest.Input{x, probs}, func(x vars) *autograd.Variable {
				return nn.KLDivLoss(x[0], x[1], nn.KLDivOptions{Reduction: r})
			})
			add("F.kl_div(x[0], x[1], reduction='%s', log_target=True)", []torchtest.Input{x, y}, func(x vars) *autograd.Variable {
				return nn.KLDivLoss(x[0], x[1], nn.KLDivOptions{Reduction: r, LogTarget: true})
			})
			add("F.binary_cross_entropy_with_logits(x[0], x[1], reduction='%s')", []torchtest.Input{x, probs}, func(x vars) *autograd.Variable {
				return nn.BCEWithLogitsLoss(x[0], x[1], nn.BCEOptions{Reduction: r})
			})
			add("F.binary_cross_entropy_with_logits(x[0], x[1], weight=x[2], pos_weight=x[3], reduction='%s')", []torchtest.Input{x, probs, weight, weight}, func(x vars) *autograd.Variable {
				return nn.BCEWithLogitsLoss(x[0], x[1], nn.BCEOptions{Reduction: r, Weight: x[2], PosWeight: x[3]})
			})
		}
	}
	torchtest.Check(t, cases)
}

func TestClassLossesArePyTorchs(t *testing.T) {
	testkit.Long(t)
	rng := rand.New(rand.NewPCG(11, 12))
	type vars = []*autograd.Variable
	var cases []torchtest.Case
	for range randomCases() {
		classes := 1 + rng.IntN(6)
		shape := []int{rng.IntN(5), classes}
		for range rng.IntN(3) {
			shape = append(shape, 1+rng.IntN(3))
		}
		rows := append([]int{shape[0]}, shape[2:]...)
		labels := make([]int64, device.Shape(rows).Len())
		const ignore = -100
		for i := range labels {
			if labels[i] = rng.Int64N(int64(classes)); rng.IntN(4) == 0 {
				labels[i] = ignore
			}
		}
		x, l := input(rng, -4, 4, shape...), torchtest.Input{Shape: rows, Integers: labels}
		weight := input(rng, 0.5, 2, classes)
		weight.Constant = true
		for r, name := range reductions {
			add := func(expr string, f func(x vars) *autograd.Variable) {
				expr = fmt.Sprintf(expr, name)
				cases = append(cases, torchtest.Case{Name: fmt.Sprint(expr, shape, labels), Expr: expr, In: []torchtest.Input{x, l, weight}, Go: f})
			}
			add("F.cross_entropy(x[0], x[1], reduction='%s')", func(x vars) *autograd.Variable {
				return nn.CrossEntropyLoss(x[0], x[1], nn.CrossEntropyOptions{Reduction: r, IgnoreIndex: new(int64(ignore))})
			})
			add("F.cross_entropy(x[0], x[1], weight=x[2], label_smoothing=0.1, reduction='%s')", func(x vars) *autograd.Variable {
				return nn.CrossEntropyLoss(x[0], x[1], nn.CrossEntropyOptions{Reduction: r, IgnoreIndex: new(int64(ignore)), Weight: x[2], LabelSmoothing: 0.1})
			})
			add("F.cross_entropy(x[0], x[1], label_smoothing=0.3, reduction='%s')", func(x vars) *autograd.Variable {
				return nn.CrossEntropyLoss(x[0], x[1], nn.CrossEntropyOptions{Reduction: r, IgnoreIndex: new(int64(ignore)), LabelSmoothing: 0.3})
			})
			add("F.nll_loss(x[0], x[1], weight=x[2], reduction='%s')", func(x vars) *autograd.Variable {
				return nn.NLLLoss(x[0], x[1], nn.NLLOptions{Reduction: r, IgnoreIndex: new(int64(ignore)), Weight: x[2]})
			})
		}
	}
	torchtest.Check(t, cases)
}

// The panic of a loss whose operands do not fit names both shapes.
func TestLossMisfits(t *testing.T) {
	dev := newDevice(t, cpu.Options{})
	x, y := autograd.Zeros(dev, device.Float32, 2, 3), autograd.Zeros(dev, device.Float32, 3)
	labels := autograd.FromLabels(dev, []int64{1, 2, 0})
	for name, f := range map[string]func(){
		"MSELoss":           func() { nn.MSELoss(x, y, nn.LossOptions{Reduction: nn.ReduceSum}) },
		"L1Loss":            func() { nn.L1Loss(x, y) },
		"HuberLoss":         func() { nn.HuberLoss(x, y) },
		"SmoothL1Loss":      func() { nn.SmoothL1Loss(x, y) },
		"KLDivLoss":         func() { nn.KLDivLoss(x, y) },
		"BCEWithLogitsLoss": func() { nn.BCEWithLogitsLoss(x, y) },
		"CrossEntropyLoss":  func() { nn.CrossEntropyLoss(x, labels, nn.CrossEntropyOptions{Reduction: nn.ReduceSum}) },
		"NLLLoss":           func() { nn.NLLLoss(x, labels) },
	} {
		func() {
			defer func() {
				if e, ok := recover().(*device.ShapeError); !ok || e.Op != name {
					t.Errorf("%s: panic with %v, want a ShapeError of its name", name, e)
				}
			}()
			f()
		}()
	}
}
