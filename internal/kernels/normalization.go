package kernels

import "github.com/goddp/goddp/device"

// Norm says how elements are normalised: by the mean and the variance of each group, or,
// where Uncentered, by the mean of its squares alone.
type Norm struct {
	// Groups is the number of groups that the channels of each sample are cut into.
	Groups     int
	Uncentered bool
	Eps        float64 // added to the variance
}

// Normalization are the kernels that bring groups of elements to a mean of 0 and a variance
// of 1. x, dst and g are [n c l]: samples, channels, and positions of a channel. weight and
// bias are [c], or not there. Means and variances are of [StatType]; variances are sums of
// squares divided by the number of elements.
type Normalization interface {
	// GroupNorm normalises each group of channels of each sample: mean and variance are
	// [n·Groups], mean is not there where p is Uncentered, and
	// dst = (x - mean)/√(variance + Eps)·weight + bias.
	GroupNorm(s device.Stream, dst, mean, variance, x, weight, bias device.Tensor, p Norm) error
	// GroupNormGrad accumulates into dst the gradient for x of a GroupNorm, given g, that
	// for its result.
	GroupNormGrad(s device.Stream, dst device.Tensor, acc device.Accum, g, x, mean, variance, weight device.Tensor, p Norm) error

	// Moments computes mean and variance [c] of each channel, over samples and positions.
	Moments(s device.Stream, mean, variance, x device.Tensor) error
	// MergeMoments computes mean and variance [c] of what r ranks have: row i of parts
	// [r 2c+1] holds rank i's means, variances, and number of elements a channel. count, a
	// scalar, becomes the sum of these numbers. A rank without elements counts for nothing.
	MergeMoments(s device.Stream, mean, variance, count, parts device.Tensor) error
	// TrackMoments moves the running mean and variance [c] towards mean and variance:
	// running = (1-momentum)·running + momentum·new, where the variance is that of a
	// sample of count elements: times count/(count-1). batches, a scalar of Int64,
	// becomes one more.
	TrackMoments(s device.Stream, runningMean, runningVariance, batches, mean, variance, count device.Tensor, momentum float64) error
	// BatchNorm computes dst = (x - mean)/√(variance + eps)·weight + bias, with mean and
	// variance [c] of each channel.
	BatchNorm(s device.Stream, dst, x, mean, variance, weight, bias device.Tensor, eps float64) error
	// BatchNormGrad accumulates into dst the gradient for x of a BatchNorm, given g, that
	// for its result. sums [2 c] and count, a scalar, are what NormGradSums gave and the
	// number of elements a channel, of all ranks that mean and variance are of. Without
	// them mean and variance are constants.
	BatchNormGrad(s device.Stream, dst device.Tensor, acc device.Accum, g, x, mean, variance, weight, sums, count device.Tensor, eps float64) error
	// NormGradSums computes the gradients for bias and weight: sums [2 c] become the sums
	// of g, and of g times the normalised x. With p.Groups 0, mean and variance are [c],
	// else those of a GroupNorm.
	NormGradSums(s device.Stream, sums, g, x, mean, variance device.Tensor, p Norm) error
}

// StatType is the type of means and variances of numbers of type dt: Float64 for Float64,
// else Float32.
func StatType(dt device.DType) device.DType {
	if dt == device.Float64 {
		return device.Float64
	}
	return device.Float32
}
