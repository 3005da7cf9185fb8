package nn

import (
	"fmt"
	"math"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
)

// Reduction is what a loss makes of the losses of its elements.
type Reduction uint8

// The reductions.
const (
	ReduceMean Reduction = iota // their mean, a scalar
	ReduceSum                   // their sum, a scalar
	ReduceNone                  // nothing: the loss of every element
)

// reduce reduces x.
func (r Reduction) reduce(x *autograd.Variable) *autograd.Variable {
	switch r {
	case ReduceMean:
		return autograd.Mean(x)
	case ReduceSum:
		return autograd.Sum(x)
	case ReduceNone:
		return x
	}
	panic(fmt.Errorf("nn: there is no reduction %d", r))
}

// LossOptions are the choices of a loss; the zero value is PyTorch's default. The losses
// take 16-bit values to Float32 first.
type LossOptions struct {
	Reduction Reduction
}

// MSELoss is the mean of the squares of pred - target, of one shape: a scalar, unless opts,
// which are nothing or one, choose another reduction.
func MSELoss(pred, target *autograd.Variable, opts ...LossOptions) *autograd.Variable {
	o := option(opts)
	if o.Reduction == ReduceMean {
		return autograd.MSELoss(wide(pred), wide(target)) // one kernel
	}
	return o.Reduction.reduce(autograd.Pow(difference("MSELoss", pred, target), 2))
}

// L1Loss is the mean of |pred - target|, of one shape.
func L1Loss(pred, target *autograd.Variable, opts ...LossOptions) *autograd.Variable {
	return option(opts).Reduction.reduce(autograd.Abs(difference("L1Loss", pred, target)))
}

// HuberOptions are the choices of [HuberLoss] and [SmoothL1Loss].
type HuberOptions struct {
	Reduction Reduction
	// Threshold is where the square ends: PyTorch's delta, or beta. 0 is 1.
	Threshold float64
}

// HuberLoss is the mean of d²/2 where d = |pred - target| is below the threshold t, and of
// t·(d - t/2) above.
func HuberLoss(pred, target *autograd.Variable, opts ...HuberOptions) *autograd.Variable {
	o := option(opts)
	return o.Reduction.reduce(huber(difference("HuberLoss", pred, target), o.threshold()))
}

// SmoothL1Loss is [HuberLoss] divided by the threshold.
func SmoothL1Loss(pred, target *autograd.Variable, opts ...HuberOptions) *autograd.Variable {
	o := option(opts)
	t := o.threshold()
	return o.Reduction.reduce(autograd.MulScalar(huber(difference("SmoothL1Loss", pred, target), t), 1/t))
}

func (o HuberOptions) threshold() float64 {
	if o.Threshold == 0 {
		return 1
	}
	return o.Threshold
}

// huber is c·(d - c/2) for d = |x| and c, which is d up to t.
func huber(x *autograd.Variable, t float64) *autograd.Variable {
	d := autograd.Abs(x)
	c := autograd.Clamp(d, math.Inf(-1), t)
	return autograd.Mul(c, autograd.Sub(d, autograd.MulScalar(c, 0.5)))
}

// KLDivOptions are the choices of [KLDivLoss].
type KLDivOptions struct {
	Reduction Reduction
	// BatchMean divides the sum by the size of the first axis, which is the divergence of
	// distributions that are rows; Reduction is then not looked at.
	BatchMean bool
	// LogTarget says that target is logarithms of probabilities.
	LogTarget bool
}

// KLDivLoss is the mean of target·(log(target) - logPred), of one shape: the
// Kullback-Leibler divergence of a distribution whose logarithm is logPred from target.
// Where target is 0 the loss is 0.
func KLDivLoss(logPred, target *autograd.Variable, opts ...KLDivOptions) *autograd.Variable {
	o := option(opts)
	sameShape("KLDivLoss", logPred, target)
	p, t := wide(logPred), wide(target)
	var loss *autograd.Variable
	if o.LogTarget {
		loss = autograd.Mul(autograd.Exp(t), autograd.Sub(t, p))
	} else {
		const least = 0x1p-126 // its logarithm is finite in Float32
		loss = autograd.Mul(t, autograd.Sub(autograd.Log(autograd.Clamp(t, least, math.Inf(1))), p))
	}
	if o.BatchMean {
		return autograd.MulScalar(autograd.Sum(loss), 1/float64(p.Shape()[0]))
	}
	return o.Reduction.reduce(loss)
}

// BCEOptions are the choices of [BCEWithLogitsLoss].
type BCEOptions struct {
	Reduction Reduction
	// Weight multiplies the losses of the elements, and PosWeight those of targets that
	// are 1; both are broadcast. nil is 1.
	Weight, PosWeight *autograd.Variable
}

// BCEWithLogitsLoss is the mean of -(target·log σ(logits) + (1-target)·log(1 - σ(logits))),
// of one shape, where σ is Sigmoid: the binary cross-entropy.
func BCEWithLogitsLoss(logits, target *autograd.Variable, opts ...BCEOptions) *autograd.Variable {
	o := option(opts)
	sameShape("BCEWithLogitsLoss", logits, target)
	x, t := wide(logits), wide(target)
	// log(1 - σ(x)) is log σ(x) - x.
	loss := autograd.Neg(autograd.LogSigmoid(x))
	if o.PosWeight != nil {
		more := autograd.Mul(autograd.AddScalar(wide(o.PosWeight), -1), t)
		loss = autograd.Mul(loss, autograd.AddScalar(more, 1))
	}
	loss = autograd.Add(loss, autograd.Mul(autograd.AddScalar(autograd.Neg(t), 1), x))
	if o.Weight != nil {
		loss = autograd.Mul(loss, wide(o.Weight))
	}
	return o.Reduction.reduce(loss)
}

// CrossEntropyOptions are the choices of [CrossEntropyLoss].
type CrossEntropyOptions struct {
	Reduction Reduction
	// IgnoreIndex is a label whose rows count nothing; nil is none.
	IgnoreIndex *int64
	// Weight, [C], multiplies the losses of a class; nil is 1. The mean is then divided by
	// the weights of the labels.
	Weight *autograd.Variable
	// LabelSmoothing is how much of a label goes to all classes alike.
	LabelSmoothing float64
}

// CrossEntropyLoss is the mean over rows of -log(softmax(logits)[label]): logits [N C], or
// [N C d1 ...] with softmax along axis 1, and labels int64 [N], or [N d1 ...] (see
// [autograd.FromLabels]); the result is a scalar, unless opts, which are nothing or one,
// choose another reduction. The mean of nothing, and of rows that are all ignored, is NaN.
// Of 16-bit logits it is computed in Float32: a probability near 1 has no rest in 16 bits,
// and with it no gradient.
func CrossEntropyLoss(logits, labels *autograd.Variable, opts ...CrossEntropyOptions) *autograd.Variable {
	o, x := option(opts), wide(logits)
	if o == (CrossEntropyOptions{}) && len(x.Shape()) == 2 {
		return autograd.CrossEntropyLoss(x, labels) // one kernel
	}
	checkLabels("CrossEntropyLoss", x, labels)
	return likelihood(autograd.LogSoftmax(x, 1), labels, o)
}

// NLLOptions are the choices of [NLLLoss], which are alike in [CrossEntropyOptions].
type NLLOptions struct {
	Reduction   Reduction
	IgnoreIndex *int64
	Weight      *autograd.Variable
}

// NLLLoss is [CrossEntropyLoss] of logarithms of probabilities, such as LogSoftmax along
// axis 1 gives.
func NLLLoss(logProbs, labels *autograd.Variable, opts ...NLLOptions) *autograd.Variable {
	o := option(opts)
	checkLabels("NLLLoss", logProbs, labels)
	return likelihood(wide(logProbs), labels, CrossEntropyOptions{Reduction: o.Reduction, IgnoreIndex: o.IgnoreIndex, Weight: o.Weight})
}

// checkLabels panics unless the labels are of x's shape without axis 1.
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

// likelihood is the loss of x, logarithms of probabilities.
func likelihood(x, labels *autograd.Variable, o CrossEntropyOptions) *autograd.Variable {
	shape := labels.Shape()
	var ignored *autograd.Variable
	if o.IgnoreIndex != nil {
		ignored = autograd.Equal(labels, autograd.FromLabels(labels.Device(), []int64{*o.IgnoreIndex}))
		labels = autograd.MaskedFill(labels, ignored, 0)
	}
	// counted is v, but 0 where the label is ignored.
	counted := func(v *autograd.Variable) *autograd.Variable {
		if ignored == nil {
			return v
		}
		return autograd.MaskedFill(v, ignored, 0)
	}
	column := append(device.Shape{shape[0], 1}, shape[1:]...) // a label as a class axis of one
	loss := autograd.Neg(autograd.Reshape(autograd.Gather(x, 1, autograd.Reshape(labels, column...)), shape...))
	weights := autograd.MaskedFill(loss.Detach(), autograd.Equal(labels, labels), 1) // ones
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

// option is the one of opts, or the zero value.
func option[T any](opts []T) (o T) {
	if len(opts) > 0 {
		o = opts[0]
	}
	return o
}

// difference is x - y, of one shape.
func difference(op string, x, y *autograd.Variable) *autograd.Variable {
	sameShape(op, x, y)
	return autograd.Sub(wide(x), wide(y))
}

// sameShape panics unless x and y are of one shape.
func sameShape(op string, x, y *autograd.Variable) {
	if !x.Shape().Equal(y.Shape()) {
		panic(&device.ShapeError{Op: op, A: x.Shape(), B: y.Shape()})
	}
}

// wide is x, in Float32 where it has 16 bits.
func wide(x *autograd.Variable) *autograd.Variable {
	if x.DType().Size() == 2 {
		return autograd.Cast(x, device.Float32)
	}
	return x
}
