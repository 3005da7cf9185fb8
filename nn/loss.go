package nn

import (
	"cmp"
	"fmt"
	"math"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

// Reduction says how a loss combines the losses of its elements.
type Reduction uint8

// The reductions.
const (
	ReduceMean Reduction = iota // the mean, a scalar
	ReduceSum                   // the sum, a scalar
	ReduceNone                  // no reduction: the loss of every element
)

func (r Reduction) reduce(x *autograd.Variable) *autograd.Variable {
	switch r {
	case ReduceMean:
		return autograd.Mean(x)
	case ReduceSum:
		return autograd.Sum(x)
	case ReduceNone:
		return x
	}
	panic(fmt.Errorf("nn: reduction %d, want ReduceMean, ReduceSum or ReduceNone", r))
}

// LossOptions are the choices of a loss. The zero value is PyTorch's default. Losses of 16-bit values are
// computed in Float32 and have that type.
type LossOptions struct {
	Reduction Reduction
}

// MSELoss returns the mean of the squares of pred - target, which have the same shape. The result is a
// scalar unless opts chooses another reduction.
func MSELoss(pred, target *autograd.Variable, opts *LossOptions) *autograd.Variable {
	o := *cmp.Or(opts, &LossOptions{})
	if o.Reduction == ReduceMean {
		return autograd.MSELoss(wide(pred), wide(target)) // one kernel
	}
	return o.Reduction.reduce(autograd.Pow(difference("MSELoss", pred, target), 2))
}

// L1Loss returns the mean of |pred - target|, which have the same shape.
func L1Loss(pred, target *autograd.Variable, opts *LossOptions) *autograd.Variable {
	return cmp.Or(opts, &LossOptions{}).Reduction.reduce(autograd.Abs(difference("L1Loss", pred, target)))
}

// HuberOptions are the choices of [HuberLoss] and [SmoothL1Loss].
type HuberOptions struct {
	Reduction Reduction
	// Threshold is the difference from which the loss is linear: PyTorch's delta or beta. 0 means 1. A negative
	// one panics.
	Threshold float64
}

// HuberLoss returns the mean of d²/2 where d = |pred - target| is below the threshold t, and of
// t·(d - t/2) elsewhere.
func HuberLoss(pred, target *autograd.Variable, opts *HuberOptions) *autograd.Variable {
	o := *cmp.Or(opts, &HuberOptions{})
	return o.Reduction.reduce(huber(difference("HuberLoss", pred, target), o.threshold()))
}

// SmoothL1Loss returns [HuberLoss] divided by the threshold.
func SmoothL1Loss(pred, target *autograd.Variable, opts *HuberOptions) *autograd.Variable {
	o := *cmp.Or(opts, &HuberOptions{})
	t := o.threshold()
	return o.Reduction.reduce(autograd.MulScalar(huber(difference("SmoothL1Loss", pred, target), t), 1/t))
}

func (o HuberOptions) threshold() float64 {
	if o.Threshold == 0 {
		return 1
	}
	if !(o.Threshold > 0) {
		panic(fmt.Errorf("nn: the Threshold of a Huber loss is %v, want more than 0", o.Threshold))
	}
	return o.Threshold
}

// huber returns c·(d - c/2) with d = |x| and c = min(d, t).
func huber(x *autograd.Variable, t float64) *autograd.Variable {
	d := autograd.Abs(x)
	c := autograd.Clamp(d, math.Inf(-1), t)
	return autograd.Mul(c, autograd.Sub(d, autograd.MulScalar(c, 0.5)))
}

// KLDivOptions are the choices of [KLDivLoss].
type KLDivOptions struct {
	Reduction Reduction
	// BatchMean divides the sum by the size of the first axis. If the rows are distributions, the result
	// is the mean divergence. With BatchMean, Reduction has no effect.
	BatchMean bool
	// LogTarget declares that target holds logarithms of probabilities.
	LogTarget bool
}

// KLDivLoss returns the mean over all elements of target·(log(target) - logPred), the terms of the
// Kullback-Leibler divergence. target is a distribution, logPred the logarithm of another one, and both have
// the same shape. Where target is 0 the term is 0.
func KLDivLoss(logPred, target *autograd.Variable, opts *KLDivOptions) *autograd.Variable {
	o := *cmp.Or(opts, &KLDivOptions{})
	sameShape("KLDivLoss", logPred, target)
	p, t := wide(logPred), wide(target)
	var loss *autograd.Variable
	if o.LogTarget {
		loss = autograd.Mul(autograd.Exp(t), autograd.Sub(t, p))
	} else {
		isZero := autograd.Equal(t, autograd.Neg(t))
		loss = autograd.Mul(t, autograd.Sub(autograd.Log(autograd.MaskedFill(t, isZero, 1)), p))
	}
	if o.BatchMean && len(p.Shape()) > 0 { // a scalar is its own sum, as in PyTorch
		return autograd.MulScalar(autograd.Sum(loss), 1/float64(p.Shape()[0]))
	}
	return o.Reduction.reduce(loss)
}

// BCEOptions are the choices of [BCEWithLogitsLoss].
type BCEOptions struct {
	Reduction Reduction
	// Weight multiplies the losses of the elements, and PosWeight the losses of targets that are
	// 1. Both are broadcast. nil means 1.
	Weight, PosWeight *autograd.Variable
}

// BCEWithLogitsLoss returns the binary cross-entropy: the mean of
// -(target·log σ(logits) + (1-target)·log(1 - σ(logits))), where σ is Sigmoid. logits and target have
// the same shape.
func BCEWithLogitsLoss(logits, target *autograd.Variable, opts *BCEOptions) *autograd.Variable {
	o := *cmp.Or(opts, &BCEOptions{})
	sameShape("BCEWithLogitsLoss", logits, target)
	for op, w := range map[string]*autograd.Variable{"BCEWithLogitsLoss with a weight": o.Weight, "BCEWithLogitsLoss with a PosWeight": o.PosWeight} {
		if w != nil {
			kernels.Broadcast(op, logits.Shape(), w.Shape()) // panics if the shapes do not match
		}
	}
	x, t := wide(logits), wide(target)
	// -log σ(x) is softplus(-x), and -log(1 - σ(x)) is softplus(x). Both are accurate near 0.
	softplus := func(x *autograd.Variable) *autograd.Variable { return autograd.Softplus(x, 1, math.Inf(1)) }
	loss := autograd.Mul(t, softplus(autograd.Neg(x)))
	if o.PosWeight != nil {
		loss = autograd.Mul(loss, wide(o.PosWeight))
	}
	loss = autograd.Add(loss, autograd.Mul(autograd.AddScalar(autograd.Neg(t), 1), softplus(x)))
	if o.Weight != nil {
		loss = autograd.Mul(loss, wide(o.Weight))
	}
	return o.Reduction.reduce(loss)
}

// CrossEntropyOptions are the choices of [CrossEntropyLoss].
type CrossEntropyOptions struct {
	Reduction Reduction
	// IgnoreIndex is a label: rows with this label are ignored. nil means none.
	IgnoreIndex *int64
	// Weight, [C], multiplies the losses of each class; nil means 1. The mean is then divided by
	// the sum of the labels' weights.
	Weight *autograd.Variable
	// LabelSmoothing is the fraction of each label that is spread equally over all classes.
	LabelSmoothing float64
}

// CrossEntropyLoss returns the mean over rows of -log(softmax(logits)[label]). logits are [N C] with labels
// int64 [N], or [N C d1 ...] with labels [N d1 ...] and softmax along axis 1 (see [autograd.FromSlice]).
// The result is a scalar unless opts chooses another reduction. The mean is NaN if there are no rows or all
// are ignored. For 16-bit logits the loss is computed in Float32 and has type Float32. In 16 bits, 1 minus a
// probability near 1 would be rounded to 0, and the gradient would be 0 too. For the logits of a vocabulary,
// [autograd.LinearCrossEntropyLoss] takes less memory and time.
func CrossEntropyLoss(logits, labels *autograd.Variable, opts *CrossEntropyOptions) *autograd.Variable {
	o := *cmp.Or(opts, &CrossEntropyOptions{})
	if o == (CrossEntropyOptions{}) && len(logits.Shape()) == 2 {
		return autograd.CrossEntropyLoss(logits, labels) // one kernel
	}
	if eps := o.LabelSmoothing; !(eps >= 0 && eps <= 1) {
		panic(fmt.Errorf("nn: LabelSmoothing is %v, want 0 to 1", eps))
	}
	x := wide(logits)
	checkLabels("CrossEntropyLoss", x, labels)
	return likelihood("CrossEntropyLoss", autograd.LogSoftmax(x, 1), labels, o)
}

// NLLOptions are the choices of [NLLLoss]. The fields are as in [CrossEntropyOptions].
type NLLOptions struct {
	Reduction   Reduction
	IgnoreIndex *int64
	Weight      *autograd.Variable
}

// NLLLoss is [CrossEntropyLoss] for logarithms of probabilities, such as the result of LogSoftmax along
// axis 1.
func NLLLoss(logProbs, labels *autograd.Variable, opts *NLLOptions) *autograd.Variable {
	o := *cmp.Or(opts, &NLLOptions{})
	checkLabels("NLLLoss", logProbs, labels)
	return likelihood("NLLLoss", wide(logProbs), labels, CrossEntropyOptions{Reduction: o.Reduction, IgnoreIndex: o.IgnoreIndex, Weight: o.Weight})
}

// checkLabels panics unless the labels are int64 and have x's shape without axis 1.
func checkLabels(op string, x, labels *autograd.Variable) {
	shape := x.Shape()
	if len(shape) < 2 || !withoutClasses(shape).Equal(labels.Shape()) {
		panic(&device.ShapeError{Op: op, A: shape, B: labels.Shape()})
	}
	if dt := labels.DType(); dt != device.Int64 {
		panic(&device.DTypeError{Op: op, Got: dt, Want: device.Int64})
	}
}

func withoutClasses(s device.Shape) device.Shape {
	return append(append(device.Shape{}, s[0]), s[2:]...)
}

// likelihood returns the loss of x, which contains log-probabilities. op is the name of the loss in messages.
func likelihood(op string, x, labels *autograd.Variable, o CrossEntropyOptions) *autograd.Variable {
	defer func() {
		r := recover()
		if e, ok := r.(*device.IndexError); ok {
			e.Op, e.Label = op, true
		}
		if r != nil {
			panic(r)
		}
	}()
	if want := (device.Shape{x.Shape()[1]}); o.Weight != nil && !o.Weight.Shape().Equal(want) {
		panic(&device.ShapeError{Op: op + " with a weight", A: o.Weight.Shape(), B: want})
	}
	shape := labels.Shape()
	var ignored *autograd.Variable
	everywhere := autograd.Equal(labels, labels)
	if o.IgnoreIndex != nil {
		ignored = autograd.Equal(labels, autograd.MaskedFill(labels, everywhere, float64(*o.IgnoreIndex))) // FromSlice cannot be captured
		labels = autograd.MaskedFill(labels, ignored, 0)
	}
	// counted returns v with 0 where the label is ignored.
	counted := func(v *autograd.Variable) *autograd.Variable {
		if ignored == nil {
			return v
		}
		return autograd.MaskedFill(v, ignored, 0)
	}
	column := append(device.Shape{shape[0], 1}, shape[1:]...) // the labels' shape with a class axis of size 1
	loss := autograd.Neg(autograd.Reshape(autograd.Gather(x, 1, autograd.Reshape(labels, column...)), shape...))
	weights := autograd.MaskedFill(loss.Detach(), everywhere, 1) // ones
	if o.Weight != nil {
		weights = autograd.Reshape(autograd.IndexSelect(wide(o.Weight).Detach(), 0, autograd.Reshape(labels, -1)), shape...)
		loss = autograd.Mul(loss, weights)
	}
	if eps := o.LabelSmoothing; eps != 0 {
		all := x
		classes := x.Shape()[1]
		if o.Weight != nil {
			ones := make([]int, len(x.Shape())-1)
			for i := range ones {
				ones[i] = 1
			}
			ones[0] = classes
			all = autograd.Mul(all, autograd.Reshape(wide(o.Weight).Detach(), ones...))
		}
		all = autograd.Reshape(autograd.Sum(all, column...), shape...)
		loss = autograd.Sub(autograd.MulScalar(loss, 1-eps), autograd.MulScalar(all, eps/float64(classes)))
	}
	loss = counted(loss)
	if o.Reduction == ReduceMean {
		return autograd.Div(autograd.Sum(loss), autograd.Sum(counted(weights)))
	}
	return o.Reduction.reduce(loss)
}

// difference returns x - y. It panics unless they have the same shape.
func difference(op string, x, y *autograd.Variable) *autograd.Variable {
	sameShape(op, x, y)
	return autograd.Sub(wide(x), wide(y))
}

// sameShape panics unless x and y have the same shape.
func sameShape(op string, x, y *autograd.Variable) {
	if !x.Shape().Equal(y.Shape()) {
		panic(&device.ShapeError{Op: op, A: x.Shape(), B: y.Shape()})
	}
}

// wide converts a 16-bit x to Float32, and otherwise returns x.
func wide(x *autograd.Variable) *autograd.Variable {
	if x.DType().Size() == 2 {
		return autograd.Cast(x, device.Float32)
	}
	return x
}
