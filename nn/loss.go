package nn

import "github.com/goddp/goddp/autograd"

// MSELoss is the mean of the squares of pred - target, of one shape: a scalar.
func MSELoss(pred, target *autograd.Variable) *autograd.Variable {
	return autograd.MSELoss(pred, target)
}

// CrossEntropyLoss is the mean over rows of -log(softmax(logits)[label]):
// logits [m n], labels int64 [m] (see [autograd.FromLabels]), the result a
// scalar.
func CrossEntropyLoss(logits, labels *autograd.Variable) *autograd.Variable {
	return autograd.CrossEntropyLoss(logits, labels)
}
