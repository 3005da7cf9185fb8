package nn

import "github.com/goddp/goddp/autograd"

type dropoutLayer struct {
	mode
	p float64
}

// Dropout is a layer that, in training, sets elements to 0 with probability p and divides the others
// by 1-p. In evaluation (see [Eval]) it returns its input. The device's [autograd.Generator] draws
// the mask.
func Dropout(p float64) Module { return &dropoutLayer{p: p} }

func (l *dropoutLayer) Forward(x *autograd.Variable) *autograd.Variable {
	if !l.trainingOn(x.Device()) {
		return x
	}
	return autograd.Dropout(x, l.p)
}

func (*dropoutLayer) Parameters() []*Parameter { return nil }
