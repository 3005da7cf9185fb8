package nn

import (
	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
)

// MSELoss is the mean of the squares of pred - target, of one shape: a scalar. 16-bit
// values are taken to Float32 first.
func MSELoss(pred, target *autograd.Variable) *autograd.Variable {
	return autograd.MSELoss(wide(pred), wide(target))
}

// CrossEntropyLoss is the mean over rows of -log(softmax(logits)[label]):
// logits [m n], labels int64 [m] (see [autograd.FromLabels]), the result a
// scalar. Of 16-bit logits it is computed in Float32: a probability near 1 has no
// rest in 16 bits, and with it no gradient.
func CrossEntropyLoss(logits, labels *autograd.Variable) *autograd.Variable {
	return autograd.CrossEntropyLoss(wide(logits), labels)
}

// wide is x, in Float32 where it has 16 bits.
func wide(x *autograd.Variable) *autograd.Variable {
	if x.DType().Size() == 2 {
		return autograd.Cast(x, device.Float32)
	}
	return x
}
