package nn

import "github.com/goddp/goddp/autograd"

// LowRank is an adapter of a [LinearLayer]: Scale·B·A is added to the layer's weight, without computing that product
// (Hu et al., "LoRA", 2021). Package lora adds adapters to the layers of a model.
type LowRank struct {
	mode
	A     *Parameter // [rank in]
	B     *Parameter // [out rank]
	Scale float64
	// Dropout is the probability with which, in training, an element of A's input is set to 0.
	Dropout float64
}

// SetTraining sets the mode of the layer's adapter, if it has one.
func (l *LinearLayer) SetTraining(on bool) {
	if l.LowRank != nil {
		l.LowRank.SetTraining(on)
	}
}

// Training reports whether the layer has no adapter in evaluation mode.
func (l *LinearLayer) Training() bool { return l.LowRank == nil || l.LowRank.Training() }

// forward is Forward of the adapter's layer, whose weight is w.
func (r *LowRank) forward(x, w, bias *autograd.Variable) *autograd.Variable {
	a, b := autograd.Cast(r.A.Var(), w.DType()), autograd.Cast(r.B.Var(), w.DType())
	if r.Dropout == 0 || !r.trainingOn(x.Device()) {
		return autograd.LowRankLinear(x, w, bias, a, b, r.Scale)
	}
	low := autograd.Linear(autograd.Dropout(x, r.Dropout), a, nil)
	return autograd.Add(autograd.Linear(x, w, bias), autograd.Linear(autograd.MulScalar(low, r.Scale), b, nil))
}
