package kernels

import "github.com/goddp/goddp/device"

// Softmax has the normalisations of exponentials along an axis, which is counted from 0.
type Softmax interface {
	// Softmax computes dst = e^x/Σe^x, where the sum is over the axis, or with log the
	// logarithm of that. dst may be x. No exponential overflows.
	Softmax(s device.Stream, dst, x device.Tensor, axis int, log bool) error
	// SoftmaxGrad accumulates into dst the gradient for x, given g, that for the result
	// y. dst may be g when acc.Beta is 0.
	SoftmaxGrad(s device.Stream, dst device.Tensor, acc device.Accum, g, y device.Tensor, axis int, log bool) error
}
