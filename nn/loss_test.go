package nn_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
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

// The losses have the values of their definitions, and the gradients of the values.
func TestLosses(t *testing.T) {
	dev := newDevice(t, cpu.Options{})
	rng := rand.New(rand.NewPCG(9, 10))
	data := func(lo, hi float64, shape ...int) []float64 { return input(rng, lo, hi, shape...).Numbers }
	on := func(x []float64, shape ...int) *autograd.Variable { return autograd.FromSlice(dev, x, shape...) }
	abs, exp, log := math.Abs, math.Exp, math.Log
	x, y, probs, weight, positive := data(-3, 3, 3, 4), data(-3, 3, 3, 4), data(0, 1, 3, 4), data(0.5, 2, 3, 4), data(0.5, 2, 3, 4)
	probs[5] = 0
	vy, vp := on(y, 3, 4), on(probs, 3, 4)
	huber := func(d, threshold float64) float64 {
		if d = abs(d); d > threshold {
			return threshold * (d - threshold/2)
		}
		return d * d / 2
	}
	bce := func(i int, w, p float64) float64 {
		return w * (p*probs[i]*log(1+exp(-x[i])) + (1-probs[i])*log(1+exp(x[i])))
	}
	// Rows of 4 logits. Labels of -1 are ignored.
	labels, classWeight, ignore := []int64{2, -1, 0}, []float64{0.5, 1, 2, 3}, new(int64(-1))
	vl, vw := autograd.FromLabels(dev, labels), on(classWeight)
	logits := func(i int) (logProb []float64) {
		sum := 0.0
		for _, v := range x[4*i:][:4] {
			sum += exp(v)
		}
		for _, v := range x[4*i:][:4] {
			logProb = append(logProb, v-log(sum))
		}
		return logProb
	}
	// class returns the loss of a row by its numbers for the classes, and the weight with which the row counts.
	class := func(i int, logProb []float64, weights []float64, smoothing float64) (loss, counts float64) {
		if labels[i] < 0 {
			return 0, 0
		}
		for c, p := range logProb {
			part := smoothing / 4
			if int64(c) == labels[i] {
				part += 1 - smoothing
				counts = weights[c]
			}
			loss -= part * weights[c] * p
		}
		return loss, counts
	}
	ones := []float64{1, 1, 1, 1}
	type reduction = nn.Reduction
	for name, c := range map[string]struct {
		loss func(x *autograd.Variable, r reduction) *autograd.Variable
		n    int // the number of losses before the reduction
		want func(i int) (loss, counts float64)
	}{
		"MSELoss": {func(x *autograd.Variable, r reduction) *autograd.Variable {
			return nn.MSELoss(x, vy, nn.LossOptions{Reduction: r})
		}, 12, func(i int) (float64, float64) { return (x[i] - y[i]) * (x[i] - y[i]), 1 }},
		"L1Loss": {func(x *autograd.Variable, r reduction) *autograd.Variable {
			return nn.L1Loss(x, vy, nn.LossOptions{Reduction: r})
		}, 12, func(i int) (float64, float64) { return abs(x[i] - y[i]), 1 }},
		"HuberLoss": {func(x *autograd.Variable, r reduction) *autograd.Variable {
			return nn.HuberLoss(x, vy, nn.HuberOptions{Reduction: r, Threshold: 1.5})
		}, 12, func(i int) (float64, float64) { return huber(x[i]-y[i], 1.5), 1 }},
		"SmoothL1Loss": {func(x *autograd.Variable, r reduction) *autograd.Variable {
			return nn.SmoothL1Loss(x, vy, nn.HuberOptions{Reduction: r, Threshold: 2})
		}, 12, func(i int) (float64, float64) { return huber(x[i]-y[i], 2) / 2, 1 }},
		"KLDivLoss": {func(x *autograd.Variable, r reduction) *autograd.Variable {
			return nn.KLDivLoss(x, vp, nn.KLDivOptions{Reduction: r})
		}, 12, func(i int) (float64, float64) {
			if probs[i] == 0 {
				return 0, 1
			}
			return probs[i] * (log(probs[i]) - x[i]), 1
		}},
		"KLDivLoss, LogTarget": {func(x *autograd.Variable, r reduction) *autograd.Variable {
			return nn.KLDivLoss(x, vy, nn.KLDivOptions{Reduction: r, LogTarget: true})
		}, 12, func(i int) (float64, float64) { return exp(y[i]) * (y[i] - x[i]), 1 }},
		"BCEWithLogitsLoss": {func(x *autograd.Variable, r reduction) *autograd.Variable {
			return nn.BCEWithLogitsLoss(x, vp, nn.BCEOptions{Reduction: r})
		}, 12, func(i int) (float64, float64) { return bce(i, 1, 1), 1 }},
		"BCEWithLogitsLoss, weighted": {func(x *autograd.Variable, r reduction) *autograd.Variable {
			return nn.BCEWithLogitsLoss(x, vp, nn.BCEOptions{Reduction: r, Weight: on(weight, 3, 4), PosWeight: on(positive, 3, 4)})
		}, 12, func(i int) (float64, float64) { return bce(i, weight[i], positive[i]), 1 }},
		"NLLLoss": {func(x *autograd.Variable, r reduction) *autograd.Variable {
			return nn.NLLLoss(x, vl, nn.NLLOptions{Reduction: r, IgnoreIndex: ignore, Weight: vw})
		}, 3, func(i int) (float64, float64) { return class(i, x[4*i:][:4], classWeight, 0) }},
		"CrossEntropyLoss": {func(x *autograd.Variable, r reduction) *autograd.Variable {
			return nn.CrossEntropyLoss(x, vl, nn.CrossEntropyOptions{Reduction: r, IgnoreIndex: ignore})
		}, 3, func(i int) (float64, float64) { return class(i, logits(i), ones, 0) }},
		"CrossEntropyLoss, smoothed": {func(x *autograd.Variable, r reduction) *autograd.Variable {
			return nn.CrossEntropyLoss(x, vl, nn.CrossEntropyOptions{Reduction: r, IgnoreIndex: ignore, Weight: vw, LabelSmoothing: 0.1})
		}, 3, func(i int) (float64, float64) { return class(i, logits(i), classWeight, 0.1) }},
	} {
		var each []float64
		var sum, counts float64
		for i := range c.n {
			l, n := c.want(i)
			each, sum, counts = append(each, l), sum+l, counts+n
		}
		for r, want := range map[reduction][]float64{nn.ReduceNone: each, nn.ReduceSum: {sum}, nn.ReduceMean: {sum / counts}} {
			v := on(x, 3, 4).RequireGrad()
			loss := c.loss(v, r)
			near(t, name+" by "+reductions[r], read(t, loss), want, 1e-12)
			if err := autograd.Sum(loss).Backward(); err != nil {
				t.Fatal(err)
			}
			along, grad := data(-1, 1, 3, 4), read(t, v.Grad())
			moved := func(h float64) float64 {
				at := slices.Clone(x)
				for i := range at {
					at[i] += h * along[i]
				}
				return autograd.Sum(c.loss(on(at, 3, 4), r)).Item()
			}
			var slope float64
			for i := range grad {
				slope += grad[i] * along[i]
			}
			near(t, name+"'s derivative by "+reductions[r], []float64{slope}, []float64{(moved(1e-6) - moved(-1e-6)) / 2e-6}, 1e-6)
		}
	}
	batch := autograd.Sum(nn.KLDivLoss(on(x, 3, 4), vp, nn.KLDivOptions{})).Item() * 12 / 3
	near(t, "KLDivLoss, BatchMean", read(t, nn.KLDivLoss(on(x, 3, 4), vp, nn.KLDivOptions{BatchMean: true})), []float64{batch}, 1e-12)
	// The classes are the second axis, whatever axes follow.
	image := nn.CrossEntropyLoss(autograd.Reshape(autograd.Transpose(on(x, 3, 4), 0, 1), 1, 4, 3), autograd.Reshape(vl, 1, 3), nn.CrossEntropyOptions{IgnoreIndex: ignore})
	near(t, "CrossEntropyLoss of an image", read(t, image), read(t, nn.CrossEntropyLoss(on(x, 3, 4), vl, nn.CrossEntropyOptions{IgnoreIndex: ignore})), 1e-12)
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
		if e, ok := thrown(f).(*device.ShapeError); !ok || e.Op != name {
			t.Errorf("%s: panic with %v, want a ShapeError of its name", name, e)
		}
	}
}
