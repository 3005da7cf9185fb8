package kernels

import "github.com/goddp/goddp/device"

// Softmax contains the kernels of softmax along an axis. Axes are numbered from 0.
type Softmax interface {
	// Softmax computes dst = e^x/Σe^x, with the sum along the axis. If log is true, dst is the
	// logarithm of this quotient. dst may be x. No exponential overflows.
	Softmax(s device.Stream, dst, x device.Tensor, axis int, log bool) error
	// SoftmaxGrad accumulates into dst the gradient of x, given g, the gradient of the result y.
	// dst may be g if acc.Beta is 0.
	SoftmaxGrad(s device.Stream, dst device.Tensor, acc device.Accum, g, y device.Tensor, axis int, log bool) error
}
