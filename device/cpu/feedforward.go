package cpu

import (
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

func (k *kernelSet) LinearUnary(s device.Stream, op kernels.UnaryOp, hidden, pre, x, w1, bias device.Tensor) error {
	operands.LinearUnary(op, hidden, pre, x, w1, bias)
	if pre.IsZero() {
		pre = hidden
	}
	if err := k.Linear(s, pre, x, w1, bias, kernels.NoActivation); err != nil {
		return err
	}
	return k.Unary(s, op, hidden, pre)
}

func (k *kernelSet) LinearUnaryGrad(s device.Stream, op kernels.UnaryOp, dpre, db, g, w2, pre device.Tensor) error {
	operands.LinearUnaryGrad(op, dpre, db, g, w2, pre)
	if err := k.MatMul(s, dpre, device.Store, g, false, w2, false); err != nil {
		return err
	}
	if err := k.UnaryGrad(s, op, dpre, device.Store, dpre, pre, device.Tensor{}); err != nil || db.IsZero() {
		return err
	}
	return k.Sum(s, db, device.Store, dpre)
}

// PrepareFeedForwardGrad only checks its operands, because the CPU loads no kernels.
func (k *kernelSet) PrepareFeedForwardGrad(_ device.Stream, op kernels.UnaryOp, y, pre, x, w1, bias, w2 device.Tensor) error {
	operands.LinearUnary(op, pre, device.Tensor{}, x, w1, bias)
	operands.Linear(y, pre, w2, device.Tensor{})
	return nil
}
