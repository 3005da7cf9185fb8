package nn

import "github.com/goddp/goddp/autograd"

// DropoutLayer drops elements in training: see [Dropout].
type DropoutLayer struct {
	mode
	P float64 // the probability
}

// Dropout is a layer that in training makes elements 0 with the probability p, and
// divides the others by 1-p; in evaluation (see [Eval]) it changes nothing. What is
// dropped is drawn from the device's [autograd.Generator].
func Dropout(p float64) *DropoutLayer { return &DropoutLayer{P: p} }

// Forward applies the layer.
func (l *DropoutLayer) Forward(x *autograd.Variable) *autograd.Variable {
	if !l.Training() {
		return x
	}
	return autograd.Dropout(x, l.P)
}

// Parameters are none.
func (*DropoutLayer) Parameters() []*Parameter { return nil }
