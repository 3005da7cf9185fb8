package kernels

import "github.com/goddp/goddp/device"

// BatchNorm describes y = (x - mean)/√(variance + Eps)·weight + bias, with a mean and a variance per channel,
// plus an optional residual. With ReLU, a negative y becomes 0.
type BatchNorm struct {
	X              device.Tensor // [n c l]: samples, channels, positions of a channel
	Mean, Variance device.Tensor // [c], of [StatType]
	Weight, Bias   device.Tensor // [c], or absent
	Eps            float64
	ReLU           bool
	// Mask, of Uint8, has a bit for each element of y: bit i%8 of byte i/8 is clear if element i is 0 or
	// negative, else set. With ReLU, BatchNorm writes Mask if it is present, and the gradients read it.
	Mask device.Tensor
}

// BatchNormGrads are the gradients that a BatchNormGrad computes. Each may be absent.
type BatchNormGrads struct {
	X, Residual       device.Tensor
	AccX, AccResidual device.Accum
}

// MaskBytes returns the size of the mask for n elements.
func MaskBytes(n int) int { return (n + 7) / 8 }

// BatchNormalization contains the kernels that normalize each channel by given moments. g is the gradient of
// the result; where the mask is 0, it counts as 0.
type BatchNormalization interface {
	// BatchNorm computes y into dst. residual has x's shape or is absent.
	BatchNorm(s device.Stream, dst, residual device.Tensor, p BatchNorm) error
	// BatchNormGradSums computes the gradients of bias and weight into sums [2 c]: the sums of g, and of g
	// times the normalized x.
	BatchNormGradSums(s device.Stream, sums, g device.Tensor, p BatchNorm) error
	// BatchNormGrad accumulates the gradients of x and of the residual. sums [2 c] is the result of
	// BatchNormGradSums, and count, a scalar, the number of elements per channel, both over all ranks that
	// mean and variance cover. If they are absent, mean and variance are constants.
	BatchNormGrad(s device.Stream, to BatchNormGrads, g, sums, count device.Tensor, p BatchNorm) error
}
