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
	"github.com/goddp/goddp/internal/testkit/torchtest"
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

type variables = []*autograd.Variable

// lossCase is a loss of the operands that newLossCases returns.
type lossCase struct {
	torch string // the same in PyTorch, where %s stands for the reduction
	loss  func(v variables, r nn.Reduction) *autograd.Variable
	n     int                                // the number of losses before the reduction
	want  func(i int) (loss, counts float64) // one of them, and how much it counts in a mean
}

// newLossCases returns losses of some rows of predictions for some classes, x[0]. The other operands are targets x[1],
// which may be probabilities, x[2], weights of elements, x[3] and x[4], labels, x[5], some of which are ignored, and
// weights of classes, x[6].
func newLossCases(rng *rand.Rand) (in []torchtest.Input, cases []lossCase) {
	rows, classes := 1+rng.IntN(4), 1+rng.IntN(6)
	n := rows * classes
	constant := func(in torchtest.Input) torchtest.Input {
		in.Constant = true
		return in
	}
	ignore := new(int64(-100))
	labels := make([]int64, rows)
	for i := range labels {
		if labels[i] = rng.Int64N(int64(classes)); i > 0 && rng.IntN(3) == 0 {
			labels[i] = *ignore
		}
	}
	in = []torchtest.Input{
		input(rng, -3, 3, rows, classes), input(rng, -3, 3, rows, classes), constant(input(rng, 0, 1, rows, classes)),
		constant(input(rng, 0.5, 2, rows, classes)), constant(input(rng, 0.5, 2, rows, classes)),
		{Shape: []int{rows}, Integers: labels}, constant(input(rng, 0.5, 2, classes)),
	}
	x, y, probs, weight, positive, classWeight := in[0].Numbers, in[1].Numbers, in[2].Numbers, in[3].Numbers, in[4].Numbers, in[6].Numbers
	probs[n-1] = 0
	abs, exp, log := math.Abs, math.Exp, math.Log
	each := func(f func(i int) float64) func(i int) (float64, float64) {
		return func(i int) (float64, float64) { return f(i), 1 }
	}
	huber := func(d, threshold float64) float64 {
		if d = abs(d); d > threshold {
			return threshold * (d - threshold/2)
		}
		return d * d / 2
	}
	bce := func(i int, w, p float64) float64 {
		return w * (p*probs[i]*log(1+exp(-x[i])) + (1-probs[i])*log(1+exp(x[i])))
	}
	ones := slices.Repeat([]float64{1}, classes)
	// class returns the loss of a row of numbers for the classes, or of their log-softmax.
	class := func(softmax bool, weights []float64, smoothing float64) func(i int) (loss, counts float64) {
		return func(i int) (loss, counts float64) {
			if labels[i] < 0 {
				return 0, 0
			}
			row, sum := x[classes*i:][:classes], 0.0
			for _, v := range row {
				sum += exp(v)
			}
			for c, p := range row {
				if softmax {
					p -= log(sum)
				}
				part := smoothing / float64(classes)
				if int64(c) == labels[i] {
					part += 1 - smoothing
					counts = weights[c]
				}
				loss -= part * weights[c] * p
			}
			return loss, counts
		}
	}
	crossEntropy := func(o nn.CrossEntropyOptions, isWeighted bool) func(v variables, r nn.Reduction) *autograd.Variable {
		return func(v variables, r nn.Reduction) *autograd.Variable {
			o := o
			if o.Reduction, o.IgnoreIndex = r, ignore; isWeighted {
				o.Weight = v[6]
			}
			return nn.CrossEntropyLoss(v[0], v[5], &o)
		}
	}
	return in, []lossCase{
		{"F.mse_loss(x[0], x[1], reduction='%s')", func(v variables, r nn.Reduction) *autograd.Variable {
			return nn.MSELoss(v[0], v[1], &nn.LossOptions{Reduction: r})
		}, n, each(func(i int) float64 { return (x[i] - y[i]) * (x[i] - y[i]) })},
		{"F.l1_loss(x[0], x[1], reduction='%s')", func(v variables, r nn.Reduction) *autograd.Variable {
			return nn.L1Loss(v[0], v[1], &nn.LossOptions{Reduction: r})
		}, n, each(func(i int) float64 { return abs(x[i] - y[i]) })},
		{"F.huber_loss(x[0], x[1], delta=1.5, reduction='%s')", func(v variables, r nn.Reduction) *autograd.Variable {
			return nn.HuberLoss(v[0], v[1], &nn.HuberOptions{Reduction: r, Threshold: 1.5})
		}, n, each(func(i int) float64 { return huber(x[i]-y[i], 1.5) })},
		{"F.smooth_l1_loss(x[0], x[1], reduction='%s')", func(v variables, r nn.Reduction) *autograd.Variable {
			return nn.SmoothL1Loss(v[0], v[1], &nn.HuberOptions{Reduction: r})
		}, n, each(func(i int) float64 { return huber(x[i]-y[i], 1) })},
		{"F.smooth_l1_loss(x[0], x[1], beta=2.0, reduction='%s')", func(v variables, r nn.Reduction) *autograd.Variable {
			return nn.SmoothL1Loss(v[0], v[1], &nn.HuberOptions{Reduction: r, Threshold: 2})
		}, n, each(func(i int) float64 { return huber(x[i]-y[i], 2) / 2 })},
		{"F.kl_div(x[0], x[2], reduction='%s')", func(v variables, r nn.Reduction) *autograd.Variable {
			return nn.KLDivLoss(v[0], v[2], &nn.KLDivOptions{Reduction: r})
		}, n, each(func(i int) float64 { return probs[i] * (log(max(probs[i], 1e-300)) - x[i]) })},
		{"F.kl_div(x[0], x[1], reduction='%s', log_target=True)", func(v variables, r nn.Reduction) *autograd.Variable {
			return nn.KLDivLoss(v[0], v[1], &nn.KLDivOptions{Reduction: r, LogTarget: true})
		}, n, each(func(i int) float64 { return exp(y[i]) * (y[i] - x[i]) })},
		{"F.binary_cross_entropy_with_logits(x[0], x[2], reduction='%s')", func(v variables, r nn.Reduction) *autograd.Variable {
			return nn.BCEWithLogitsLoss(v[0], v[2], &nn.BCEOptions{Reduction: r})
		}, n, each(func(i int) float64 { return bce(i, 1, 1) })},
		{"F.binary_cross_entropy_with_logits(x[0], x[2], weight=x[3], pos_weight=x[4], reduction='%s')", func(v variables, r nn.Reduction) *autograd.Variable {
			return nn.BCEWithLogitsLoss(v[0], v[2], &nn.BCEOptions{Reduction: r, Weight: v[3], PosWeight: v[4]})
		}, n, each(func(i int) float64 { return bce(i, weight[i], positive[i]) })},
		{"F.nll_loss(x[0], x[5], weight=x[6], reduction='%s')", func(v variables, r nn.Reduction) *autograd.Variable {
			return nn.NLLLoss(v[0], v[5], &nn.NLLOptions{Reduction: r, IgnoreIndex: ignore, Weight: v[6]})
		}, rows, class(false, classWeight, 0)},
		{"F.cross_entropy(x[0], x[5], reduction='%s')", crossEntropy(nn.CrossEntropyOptions{}, false), rows, class(true, ones, 0)},
		{"F.cross_entropy(x[0], x[5], label_smoothing=0.3, reduction='%s')", crossEntropy(nn.CrossEntropyOptions{LabelSmoothing: 0.3}, false), rows, class(true, ones, 0.3)},
		{"F.cross_entropy(x[0], x[5], weight=x[6], label_smoothing=0.1, reduction='%s')", crossEntropy(nn.CrossEntropyOptions{LabelSmoothing: 0.1}, true), rows, class(true, classWeight, 0.1)},
	}
}

// The losses have the values of their definitions, and the gradients of the values.
func TestLosses(t *testing.T) {
	dev := newDevice(t, cpu.Options{})
	rng := rand.New(rand.NewPCG(9, 10))
	for range 20 {
		in, cases := newLossCases(rng)
		operands := func(x []float64) (v variables) {
			for _, in := range in {
				if in.Integers != nil {
					v = append(v, autograd.FromSlice(dev, in.Integers))
				} else {
					v = append(v, autograd.FromSlice(dev, in.Numbers, in.Shape...))
				}
			}
			v[0] = autograd.FromSlice(dev, x, in[0].Shape...)
			return v
		}
		for _, c := range cases {
			var each []float64
			var sum, counts float64
			for i := range c.n {
				l, n := c.want(i)
				each, sum, counts = append(each, l), sum+l, counts+n
			}
			for r, want := range map[nn.Reduction][]float64{nn.ReduceNone: each, nn.ReduceSum: {sum}, nn.ReduceMean: {sum / counts}} {
				name := fmt.Sprintf(c.torch, reductions[r])
				x := in[0].Numbers
				v := operands(x)
				v[0].RequireGrad()
				loss := c.loss(v, r)
				near(t, name, read(t, loss), want, 1e-12)
				if err := autograd.Sum(loss).Backward(nil); err != nil {
					t.Fatal(err)
				}
				along, grad, slope := input(rng, -1, 1, len(x)).Numbers, read(t, v[0].Grad()), 0.0
				for i := range grad {
					slope += grad[i] * along[i]
				}
				moved := func(h float64) float64 {
					at := slices.Clone(x)
					for i := range at {
						at[i] += h * along[i]
					}
					return autograd.Sum(c.loss(operands(at), r)).Item()
				}
				near(t, "the derivative of "+name, []float64{slope}, []float64{(moved(1e-6) - moved(-1e-6)) / 2e-6}, 1e-6)
			}
		}
	}
	x, target := autograd.FromSlice(dev, []float64{1, 2, 3, 4, 5, 6}, 2, 3), autograd.FromSlice(dev, []float64{.1, .2, .3, .4, .5, .6}, 2, 3)
	near(t, "KLDivLoss, BatchMean", read(t, nn.KLDivLoss(x, target, &nn.KLDivOptions{BatchMean: true})),
		[]float64{nn.KLDivLoss(x, target, &nn.KLDivOptions{Reduction: nn.ReduceSum}).Item() / 2}, 1e-12)
	scalar := autograd.Reshape(autograd.FromSlice(dev, []float64{2}))
	near(t, "KLDivLoss of scalars, BatchMean", read(t, nn.KLDivLoss(scalar, scalar, &nn.KLDivOptions{BatchMean: true})), []float64{2 * (math.Log(2) - 2)}, 1e-12)
	// The classes are the second axis, whatever axes follow.
	image := nn.CrossEntropyLoss(autograd.Reshape(autograd.Transpose(x, 0, 1), 1, 3, 2), autograd.FromSlice(dev, []int64{1, 2}, 1, 2), nil)
	near(t, "CrossEntropyLoss of an image", read(t, image), read(t, nn.CrossEntropyLoss(x, autograd.FromSlice(dev, []int64{1, 2}), nil)), 1e-12)
}

func TestLossesArePyTorchs(t *testing.T) {
	testkit.Long(t)
	rng := rand.New(rand.NewPCG(9, 10))
	var all []torchtest.Case
	for range randomCases() {
		in, cases := newLossCases(rng)
		for _, c := range cases {
			for r, name := range reductions {
				expr := fmt.Sprintf(c.torch, name)
				all = append(all, torchtest.Case{Name: fmt.Sprint(expr, in[0].Shape), Expr: expr, In: in, Go: func(v variables) *autograd.Variable { return c.loss(v, r) }})
			}
		}
	}
	torchtest.Check(t, all)
}

// The panic of a loss whose operands do not fit names both shapes.
func TestLossMisfits(t *testing.T) {
	dev := newDevice(t, cpu.Options{})
	x, y := autograd.Zeros(dev, device.Float32, 2, 3), autograd.Zeros(dev, device.Float32, 3)
	labels := autograd.FromSlice(dev, []int64{1, 2, 0})
	for name, f := range map[string]func(){
		"MSELoss":           func() { nn.MSELoss(x, y, &nn.LossOptions{Reduction: nn.ReduceSum}) },
		"L1Loss":            func() { nn.L1Loss(x, y, nil) },
		"HuberLoss":         func() { nn.HuberLoss(x, y, nil) },
		"SmoothL1Loss":      func() { nn.SmoothL1Loss(x, y, nil) },
		"KLDivLoss":         func() { nn.KLDivLoss(x, y, nil) },
		"BCEWithLogitsLoss": func() { nn.BCEWithLogitsLoss(x, y, nil) },
		"CrossEntropyLoss":  func() { nn.CrossEntropyLoss(x, labels, &nn.CrossEntropyOptions{Reduction: nn.ReduceSum}) },
		"NLLLoss":           func() { nn.NLLLoss(x, labels, nil) },
		"CrossEntropyLoss with a weight": func() {
			nn.CrossEntropyLoss(autograd.Zeros(dev, device.Float32, 3, 4), labels, &nn.CrossEntropyOptions{Weight: y})
		},
		"BCEWithLogitsLoss with a PosWeight": func() { nn.BCEWithLogitsLoss(x, x, &nn.BCEOptions{PosWeight: autograd.Zeros(dev, device.Float32, 2)}) },
	} {
		if e, ok := thrown(f).(*device.ShapeError); !ok || e.Op != name {
			t.Errorf("%s: panic with %v, want a ShapeError of its name", name, e)
		}
	}
	for _, eps := range []float64{-0.1, 10, math.NaN()} {
		got, want := fmt.Sprint(thrown(func() { nn.CrossEntropyLoss(x, labels, &nn.CrossEntropyOptions{LabelSmoothing: eps}) })), fmt.Sprintf("nn: LabelSmoothing is %v, want 0 to 1", eps)
		if got != want {
			t.Errorf("panic with %q, want %q", got, want)
		}
	}
	logits, bad := autograd.Zeros(dev, device.Float32, 2, 3), autograd.FromSlice(dev, []int64{1, -1})
	images, badRow := autograd.Zeros(dev, device.Float32, 1, 3, 2), autograd.Reshape(bad, 1, 2)
	for op, fs := range map[string][]func(){
		"CrossEntropyLoss": {func() { nn.CrossEntropyLoss(logits, bad, nil) }, func() { nn.CrossEntropyLoss(images, badRow, nil) }},
		"NLLLoss":          {func() { nn.NLLLoss(logits, bad, nil) }},
	} {
		for _, f := range fs {
			if got, want := fmt.Sprint(thrown(f)), op+": label -1 of row 1 is not one of the 3 classes, 0 to 2"; got != want {
				t.Errorf("panic with %q, want %q", got, want)
			}
		}
	}
	if err := thrown(func() { nn.HuberLoss(x, x, &nn.HuberOptions{Threshold: -1}) }); fmt.Sprint(err) != "nn: the Threshold of a Huber loss is -1, want more than 0" {
		t.Errorf("a negative Threshold: panic with %v", err)
	}
}
