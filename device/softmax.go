package device

// Softmax has the normalisations of exponentials along an axis, which is counted from 0.
type Softmax interface {
	// Softmax computes dst = e^x/Σe^x, where the sum is over the axis, or with log the
	// logarithm of that. dst may be x. No exponential overflows.
	Softmax(s Stream, dst, x Tensor, axis int, log bool) error
	// SoftmaxGrad accumulates into dst the gradient for x, given g, that for the result
	// y. dst may be g when acc.Beta is 0.
	SoftmaxGrad(s Stream, dst Tensor, acc Accum, g, y Tensor, axis int, log bool) error
}
