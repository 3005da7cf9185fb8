package nn

import "github.com/goddp/goddp/autograd"

// FeedForward computes second(act(first(x))), the two-layer network of a transformer block. If act is
// [GELU] or [GELUTanh], it is one fused operation: see [autograd.FeedForward]. If act is a [Checkpoint]
// of one of them, its result is recomputed in the backward pass.
func FeedForward(x *autograd.Variable, first *LinearLayer, act Module, second *LinearLayer) *autograd.Variable {
	opts, ok := feedForwardOptions(act)
	switch fits := first.LowRank == nil && second.LowRank == nil && first.computeType() == second.computeType(); {
	case ok && !fits && opts.Recompute:
		h := act.(checkpoint).Module.Forward(first.Forward(x))
		defer h.Recompute()
		return second.Forward(h)
	case !ok || !fits:
		return second.Forward(act.Forward(first.Forward(x)))
	}
	w1, b1 := first.parameters()
	w2, b2 := second.parameters()
	return autograd.FeedForward(autograd.Cast(x, first.computeType()), w1, b1, w2, b2, &opts)
}

// feedForwardOptions returns the options of [autograd.FeedForward] for act. ok reports whether act is
// supported.
func feedForwardOptions(act Module) (o autograd.FeedForwardOptions, ok bool) {
	if c, is := act.(checkpoint); is {
		o.Recompute = true
		act = c.Module
	}
	g, ok := act.(gelu)
	o.Tanh = g.tanh
	return o, ok
}

// feedForward is a FeedForward in a Sequence. Its method Parameters returns the parameters of the first layer.
type feedForward struct {
	*LinearLayer
	act    Module
	second *LinearLayer
}

func (f feedForward) Forward(x *autograd.Variable) *autograd.Variable {
	return FeedForward(x, f.LinearLayer, f.act, f.second)
}
