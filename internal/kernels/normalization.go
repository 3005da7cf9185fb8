package kernels

import "github.com/goddp/goddp/device"

// Norm are the parameters of a normalization of groups of elements, by their mean and variance, or by the
// mean of squares if Uncentered.
type Norm struct {
	// Groups is the number of groups of channels in each sample.
	Groups     int
	Uncentered bool
	Eps        float64 // added to the variance
}

// NormGrads are the gradients that a GroupNormGrad computes: of x, weight and bias. Each may be absent.
type NormGrads struct {
	X, Weight, Bias          device.Tensor
	AccX, AccWeight, AccBias device.Accum
	// Addend, if present, is added to the gradient of x: X = AccX.Alpha·(gradient + Addend) + AccX.Beta·X.
	// It may not overlap X.
	Addend device.Tensor
}

// Normalization contains the kernels that normalize groups of elements to mean 0 and variance 1. x, dst and
// g are [n c l]: samples, channels, and positions of a channel. weight and bias are [c], or absent. Means
// and variances are of [StatType]. A variance is the sum of squares divided by the number of elements.
type Normalization interface {
	// GroupNorm normalizes each group of channels of each sample. mean and variance are [n·Groups]; mean is
	// absent if p is Uncentered. dst = (x - mean)/√(variance + Eps)·weight + bias.
	GroupNorm(s device.Stream, dst, mean, variance, x, weight, bias device.Tensor, p Norm) error
	// AddGroupNorm computes sum = x + y and, in the same pass, the GroupNorm of sum. sum may be x or y.
	AddGroupNorm(s device.Stream, dst, sum, mean, variance, x, y, weight, bias device.Tensor, p Norm) error
	// GroupNormGrad accumulates the gradients of a GroupNorm into the tensors in the parameter to, given g,
	// the gradient of the result. It is deterministic.
	GroupNormGrad(s device.Stream, to NormGrads, g, x, mean, variance, weight device.Tensor, p Norm) error

	// Moments computes mean and variance [c] of each channel over samples and positions.
	Moments(s device.Stream, mean, variance, x device.Tensor) error
	// MergeMoments computes mean and variance [c] over all r ranks. Row i of parts [r 2c+1] holds rank i's
	// means, variances, and number of elements per channel. count, a scalar, becomes the sum of the ranks'
	// numbers of elements. A rank without elements is ignored.
	MergeMoments(s device.Stream, mean, variance, count, parts device.Tensor) error
	// TrackMoments moves the running mean and variance [c] towards mean and variance: running =
	// (1-momentum)·running + momentum·new. The new variance is unbiased: multiplied by count/(count-1),
	// unless count is 1. With count 0 the running values do not change. batches, a scalar of Int64, is
	// increased by 1.
	TrackMoments(s device.Stream, runningMean, runningVariance, batches, mean, variance, count device.Tensor, momentum float64) error
}

// StatType returns the type of means and variances of numbers of type dt: Float64 for Float64, else
// Float32.
func StatType(dt device.DType) device.DType {
	if dt == device.Float64 {
		return device.Float64
	}
	return device.Float32
}
