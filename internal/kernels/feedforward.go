package kernels

import "github.com/goddp/goddp/device"

// FeedForward contains the kernels of two Linears with an elementwise function op between them:
//
//	pre = x·w1ᵀ + b1,  hidden = op(pre),  y = hidden·w2ᵀ + b2
//
// x is [m k], w1 is [h k], pre and hidden are [m h], w2 is [n h] and y is [m n]. The derivative of op is
// computed from its operand: op.Given() is GivenX.
type FeedForward interface {
	// LinearUnary computes pre and hidden. bias, which is b1, may be absent, and so may pre.
	LinearUnary(s device.Stream, op UnaryOp, hidden, pre, x, w1, bias device.Tensor) error
	// LinearUnaryGrad computes dpre = (g·w2)·op'(pre), the gradient of pre, given g [m n], the gradient
	// of y, and db [h], the sum of dpre's rows. db may be absent. The error of db is at most that of a
	// product with a column of ones.
	LinearUnaryGrad(s device.Stream, op UnaryOp, dpre, db, g, w2, pre device.Tensor) error
	// PrepareFeedForwardGrad loads and chooses the kernels of the backward pass: a LinearUnaryGrad, with
	// db if bias is present, and MatMuls for the gradients of w2, w1 and x. It writes nothing. See
	// PrepareLinearGrad.
	PrepareFeedForwardGrad(s device.Stream, op UnaryOp, y, pre, x, w1, bias, w2 device.Tensor) error
}
