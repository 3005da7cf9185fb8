package nn

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

// NormOptions configure the normalization layers.
type NormOptions struct {
	// Eps is added to variances. 0 means PyTorch's default: 1e-5, and for RMSNorm the machine epsilon of the
	// layer's type.
	Eps float64
	// NoAffine omits weight and bias.
	NoAffine bool
	// NoBias omits the bias.
	NoBias bool
	// DType is the type of the parameters, and the type that the layer computes in; Invalid means
	// Float32.
	DType device.DType

	// The following options apply only to BatchNorm. Other layers panic if one is set.

	// Momentum is the weight of a batch in the running moments; 0 means 0.1.
	Momentum float64
	// NoRunning omits the running moments. The layer then uses the moments of the batch in evaluation too.
	NoRunning bool
	// ChannelsLast makes the input [n h w channels] or [n l channels].
	ChannelsLast bool
	// ReLU fuses a ReLU into the layer, which is faster than a separate ReLU layer.
	ReLU bool
}

func normOptions(opts *NormOptions) NormOptions {
	o := *cmp.Or(opts, &NormOptions{})
	if o.DType == device.Invalid {
		o.DType = device.Float32
	}
	return o
}

// rowNormOptions returns the options of a layer other than BatchNorm.
func rowNormOptions(layer string, opts *NormOptions) NormOptions {
	o := normOptions(opts)
	if o.Momentum != 0 || o.NoRunning || o.ChannelsLast || o.ReLU {
		panic(fmt.Errorf("nn: %s with Momentum %v, NoRunning %v, ChannelsLast %v and ReLU %v, which only BatchNorm supports",
			layer, o.Momentum, o.NoRunning, o.ChannelsLast, o.ReLU))
	}
	return o
}

// eps returns o.Eps, or 1e-5 if that is 0.
func (o NormOptions) eps() float64 {
	if o.Eps == 0 {
		return 1e-5
	}
	return o.Eps
}

// scaling holds the parameters of a normalization layer.
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

// Parameters returns "weight" and "bias" if they exist.
func (s *scaling) Parameters() []*Parameter {
	var all []*Parameter
	for _, p := range []*Parameter{s.Weight, s.Bias} {
		if p != nil {
			all = append(all, p)
		}
	}
	return all
}

// of returns x, converted to the type of the parameters, and the parameters' variables.
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

// NormLayer is the layer of [LayerNorm], [RMSNorm] or [GroupNorm].
type NormLayer struct {
	scaling
	apply func(x, weight, bias *autograd.Variable) *autograd.Variable
	// add applies the layer to x + y, and also returns this sum. add is nil if there is no fused kernel.
	add func(x, y, weight, bias *autograd.Variable) (sum, normed *autograd.Variable)
}

// Forward applies the layer.
func (l *NormLayer) Forward(x *autograd.Variable) *autograd.Variable { return l.apply(l.of(x)) }

// ForwardAdd returns x + y, and Forward of this sum. For LayerNorm and RMSNorm one kernel computes both if x
// and y have the same shape and the type of the parameters, as in a transformer's residual connections.
func (l *NormLayer) ForwardAdd(x, y *autograd.Variable) (sum, normed *autograd.Variable) {
	if l.add == nil || l.Weight != nil && l.Weight.Var().DType() != x.DType() {
		sum = autograd.Add(x, y)
		return sum, l.Forward(sum)
	}
	_, weight, bias := l.of(x)
	return l.add(x, y, weight, bias)
}

// LayerNorm is a layer that normalizes x [... d] over its last axis.
func LayerNorm(d int, opts *NormOptions) *NormLayer { return LayerNormOver([]int{d}, opts) }

// LayerNormOver is [LayerNorm] over the last axes, which have the given shape.
func LayerNormOver(shape []int, opts *NormOptions) *NormLayer {
	o := rowNormOptions("LayerNorm", opts)
	shape = slices.Clone(shape)
	return &NormLayer{newScaling(o, shape...), func(x, weight, bias *autograd.Variable) *autograd.Variable {
		return autograd.LayerNorm(x, shape, weight, bias, o.eps())
	}, func(x, y, weight, bias *autograd.Variable) (sum, normed *autograd.Variable) {
		return autograd.AddLayerNorm(x, y, shape, weight, bias, o.eps())
	}}
}

// RMSNorm is a layer that divides x [... d] by the root of the mean of its squares over the last axis.
// It has no bias.
func RMSNorm(d int, opts *NormOptions) *NormLayer {
	o := rowNormOptions("RMSNorm", opts)
	o.NoBias = true
	eps := func(x *autograd.Variable) float64 {
		if o.Eps == 0 {
			return epsilon(x.DType())
		}
		return o.Eps
	}
	return &NormLayer{newScaling(o, d), func(x, weight, _ *autograd.Variable) *autograd.Variable {
		return autograd.RMSNorm(x, []int{d}, weight, eps(x))
	}, func(x, y, weight, _ *autograd.Variable) (sum, normed *autograd.Variable) {
		return autograd.AddRMSNorm(x, y, []int{d}, weight, eps(x))
	}}
}

// epsilon returns the distance from 1 to the next number of a floating-point type.
func epsilon(dt device.DType) float64 {
	return math.Ldexp(1, map[device.DType]int{device.Float32: -23, device.Float64: -52, device.Float16: -10, device.BFloat16: -7}[dt])
}

// GroupNorm is a layer that divides the channels of x [n channels ...] into groups, and normalizes each group
// of each sample.
func GroupNorm(groups, channels int, opts *NormOptions) *NormLayer {
	o := rowNormOptions("GroupNorm", opts)
	return &NormLayer{newScaling(o, channels), func(x, weight, bias *autograd.Variable) *autograd.Variable {
		return autograd.GroupNorm(x, groups, weight, bias, o.eps())
	}, nil}
}

// BatchNormLayer normalizes each channel over a batch: see [BatchNorm2d].
type BatchNormLayer struct {
	mode
	scaling
	RunningMean, RunningVar, NumBatchesTracked *Buffer // nil with NoRunning

	// Peers are the ranks whose samples are normalized as one batch; nil means only this rank. Package ddp sets
	// it.
	Peers autograd.BatchPeers

	rank2    bool // whether the input is [n c h w]; otherwise [n c] or [n c l]
	channels int
	o        NormOptions
}

// BatchNorm1d is [BatchNorm2d] for x [n channels] or [n channels l].
func BatchNorm1d(channels int, opts *NormOptions) *BatchNormLayer {
	return newBatchNorm(channels, false, opts)
}

// BatchNorm2d is a layer that normalizes each channel of x [n channels h w]. In training it uses the mean and
// the variance of the batch, and moves the running mean and variance towards them. In evaluation it uses the
// running mean and variance. As in PyTorch, the running variance is the unbiased one, and "num_batches_tracked"
// counts batches.
func BatchNorm2d(channels int, opts *NormOptions) *BatchNormLayer {
	return newBatchNorm(channels, true, opts)
}

func newBatchNorm(channels int, rank2 bool, opts *NormOptions) *BatchNormLayer {
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
	return l.forward(x, nil, l.o.ReLU)
}

// ForwardResidual applies the layer and adds residual, which has x's shape, before the ReLU if there is one. It
// is faster than a separate addition.
func (l *BatchNormLayer) ForwardResidual(x, residual *autograd.Variable) *autograd.Variable {
	return l.forward(x, residual, l.o.ReLU)
}

func (l *BatchNormLayer) forward(x, residual *autograd.Variable, relu bool) *autograd.Variable {
	n := len(x.Shape())
	if l.rank2 && n != 4 {
		panic(&device.ShapeError{Op: "BatchNorm2d", A: x.Shape(), B: device.Shape{0, l.channels, 0, 0}})
	}
	if !l.rank2 && n != 2 && n != 3 {
		panic(&device.ShapeError{Op: "BatchNorm1d", A: x.Shape(), B: device.Shape{0, l.channels}})
	}
	o := autograd.BatchNormOptions{Eps: l.o.eps(), Momentum: l.o.Momentum, Evaluate: !l.trainingOn(x.Device()), Peers: l.Peers,
		ChannelsLast: l.o.ChannelsLast, ReLU: relu}
	if l.RunningMean != nil {
		o.Mean, o.Variance, o.Batches = l.RunningMean.Var(), l.RunningVar.Var(), l.NumBatchesTracked.Var()
	}
	x, weight, bias := l.of(x)
	if residual != nil {
		o.Residual = autograd.Cast(residual, x.DType())
	}
	return autograd.BatchNorm(x, weight, bias, &o)
}

// Buffers returns "running_mean", "running_var" and "num_batches_tracked", or nil with NoRunning.
func (l *BatchNormLayer) Buffers() []*Buffer {
	if l.RunningMean == nil {
		return nil
	}
	return []*Buffer{l.RunningMean, l.RunningVar, l.NumBatchesTracked}
}
