package nn

import (
	"math"
	"slices"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

// NormOptions are the choices of the normalising layers; the zero value is the good default.
type NormOptions struct {
	// Eps is added to variances. 0 is PyTorch's default: 1e-5, and for RMSNorm the distance
	// from 1 to the next number of the type that it computes in.
	Eps float64
	// NoAffine leaves weight and bias out.
	NoAffine bool
	// NoBias leaves the bias out.
	NoBias bool
	// DType is the parameters' type, which the layer computes in; Invalid is Float32.
	DType device.DType
	// Momentum is how far a batch moves the running moments of a BatchNorm; 0 is 0.1.
	Momentum float64
	// NoRunning leaves a BatchNorm's running moments out: it normalises by the batch in
	// evaluation too.
	NoRunning bool
}

func normOptions(opts []NormOptions) (o NormOptions) {
	if len(opts) > 0 {
		o = opts[0]
	}
	if o.DType == device.Invalid {
		o.DType = device.Float32
	}
	return o
}

// eps is o.Eps, or 1e-5.
func (o NormOptions) eps() float64 {
	if o.Eps == 0 {
		return 1e-5
	}
	return o.Eps
}

// scaling are the parameters of a normalising layer.
type scaling struct {
	Weight *Parameter // or nil
	Bias   *Parameter // or nil
}

func newScaling(o NormOptions, shape ...int) (s scaling) {
	if !o.NoAffine {
		s.Weight = NewUnplacedParameter("weight", Constant(1), o.DType, shape...)
		if !o.NoBias {
			s.Bias = NewUnplacedParameter("bias", Constant(0), o.DType, shape...)
		}
	}
	return s
}

// Parameters are "weight" and "bias", as far as they are there.
func (s *scaling) Parameters() []*Parameter {
	var all []*Parameter
	for _, p := range []*Parameter{s.Weight, s.Bias} {
		if p != nil {
			all = append(all, p)
		}
	}
	return all
}

// of are x, in the type of the parameters, and these.
func (s *scaling) of(x *autograd.Variable) (in, weight, bias *autograd.Variable) {
	if s.Weight != nil {
		weight = s.Weight.Var()
		x = autograd.Cast(x, weight.DType())
	}
	if s.Bias != nil {
		bias = s.Bias.Var()
	}
	return x, weight, bias
}

// NormLayer is a [LayerNorm], an [RMSNorm] or a [GroupNorm].
type NormLayer struct {
	scaling
	apply func(x, weight, bias *autograd.Variable) *autograd.Variable
}

// Forward applies the layer.
func (l *NormLayer) Forward(x *autograd.Variable) *autograd.Variable { return l.apply(l.of(x)) }

// LayerNorm normalises x [... d] over its last axis. opts is nothing, or one.
func LayerNorm(d int, opts ...NormOptions) *NormLayer { return LayerNormOver([]int{d}, opts...) }

// LayerNormOver is LayerNorm over the last axes, which are of the given shape.
func LayerNormOver(shape []int, opts ...NormOptions) *NormLayer {
	o := normOptions(opts)
	shape = slices.Clone(shape)
	return &NormLayer{newScaling(o, shape...), func(x, weight, bias *autograd.Variable) *autograd.Variable {
		return autograd.LayerNorm(x, shape, weight, bias, o.eps())
	}}
}

// RMSNorm divides x [... d] by the root of the mean of its squares over its last axis. It
// has no bias. opts is nothing, or one.
func RMSNorm(d int, opts ...NormOptions) *NormLayer {
	o := normOptions(opts)
	o.NoBias = true
	return &NormLayer{newScaling(o, d), func(x, weight, _ *autograd.Variable) *autograd.Variable {
		eps := o.Eps
		if eps == 0 {
			eps = epsilon(x.DType())
		}
		return autograd.RMSNorm(x, []int{d}, weight, eps)
	}}
}

// epsilon is the distance from 1 to the next number of a floating-point type.
func epsilon(dt device.DType) float64 {
	return math.Ldexp(1, map[device.DType]int{device.Float32: -23, device.Float64: -52, device.Float16: -10, device.BFloat16: -7}[dt])
}

// GroupNorm normalises x [n channels ...] over each of so many groups of channels of each
// sample. opts is nothing, or one.
func GroupNorm(groups, channels int, opts ...NormOptions) *NormLayer {
	o := normOptions(opts)
	return &NormLayer{newScaling(o, channels), func(x, weight, bias *autograd.Variable) *autograd.Variable {
		return autograd.GroupNorm(x, groups, weight, bias, o.eps())
	}}
}

// BatchNormLayer normalises each channel over a batch: see [BatchNorm2d].
type BatchNormLayer struct {
	mode
	scaling
	RunningMean, RunningVar, NumBatchesTracked *Buffer // nil with NoRunning

	// Peers are the ranks whose samples are normalised as one batch; nil: this rank alone.
	// Package ddp sets it.
	Peers autograd.BatchPeers

	rank2    bool // takes [n c h w]; else [n c] or [n c l]
	channels int
	o        NormOptions
}

// BatchNorm1d is BatchNorm2d for x [n channels] or [n channels l].
func BatchNorm1d(channels int, opts ...NormOptions) *BatchNormLayer {
	return newBatchNorm(channels, false, opts)
}

// BatchNorm2d normalises each channel of x [n channels h w]: in training by the mean and the
// variance of the batch, towards which it moves the running ones, and in evaluation by
// these. As in PyTorch, the running variance is that of a sample, and "num_batches_tracked"
// counts batches. opts is nothing, or one.
func BatchNorm2d(channels int, opts ...NormOptions) *BatchNormLayer {
	return newBatchNorm(channels, true, opts)
}

func newBatchNorm(channels int, rank2 bool, opts []NormOptions) *BatchNormLayer {
	o := normOptions(opts)
	if o.Momentum == 0 {
		o.Momentum = 0.1
	}
	l := &BatchNormLayer{scaling: newScaling(o, channels), rank2: rank2, channels: channels, o: o}
	if !o.NoRunning {
		dt := kernels.StatType(o.DType)
		l.RunningMean = NewUnplacedBuffer("running_mean", Constant(0), dt, channels)
		l.RunningVar = NewUnplacedBuffer("running_var", Constant(1), dt, channels)
		l.NumBatchesTracked = NewUnplacedBuffer("num_batches_tracked", Constant(0), device.Int64)
	}
	return l
}

// Forward applies the layer.
func (l *BatchNormLayer) Forward(x *autograd.Variable) *autograd.Variable {
	n := len(x.Shape())
	if l.rank2 && n != 4 {
		panic(&device.ShapeError{Op: "BatchNorm2d", A: x.Shape(), B: device.Shape{0, l.channels, 0, 0}})
	}
	if !l.rank2 && n != 2 && n != 3 {
		panic(&device.ShapeError{Op: "BatchNorm1d", A: x.Shape(), B: device.Shape{0, l.channels}})
	}
	o := autograd.BatchNormOptions{Eps: l.o.eps(), Momentum: l.o.Momentum, Evaluate: !l.Training(), Peers: l.Peers}
	if l.RunningMean != nil {
		o.Mean, o.Variance, o.Batches = l.RunningMean.Var(), l.RunningVar.Var(), l.NumBatchesTracked.Var()
	}
	x, weight, bias := l.of(x)
	return autograd.BatchNorm(x, weight, bias, o)
}

// Buffers are "running_mean", "running_var" and "num_batches_tracked", if they are there.
func (l *BatchNormLayer) Buffers() []*Buffer {
	if l.RunningMean == nil {
		return nil
	}
	return []*Buffer{l.RunningMean, l.RunningVar, l.NumBatchesTracked}
}
