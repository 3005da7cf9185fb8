package nn

import "github.com/goddp/goddp/autograd"

// DropoutLayer sets elements to 0 in training: see [Dropout].
type DropoutLayer struct {
	mode
	P float64 // the probability
}

// Dropout is a layer that in training sets elements to 0 with probability p, and divides the other
// elements by 1-p. In evaluation (see [Eval]) it returns its input. The device's [autograd.Generator]
// draws the mask.
func Dropout(p float64) *DropoutLayer { return &DropoutLayer{P: p} }

// Forward applies the layer.
func (l *DropoutLayer) Forward(x *autograd.Variable) *autograd.Variable {
	if !l.Training() {
		return x
	}
	return autograd.Dropout(x, l.P)
}

// Parameters returns nil: the layer has none.
func (*DropoutLayer) Parameters() []*Parameter { return nil }
