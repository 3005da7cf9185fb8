package autograd

import (
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

// Operations returns the number of floating-point operations of type dt that forward and backward passes have enqueued on
// dev. The first call for any type returns 0 and begins the counting.
//
// Matrix products, convolutions and attention count, a multiplication and an addition as two operations. What [Checkpoint]
// computes again does not count, as usual for the utilization of a model (https://arxiv.org/abs/2204.02311, appendix B), nor
// does what attention masks. Attention with Starts counts as if each row were one document, because the host may not know the
// documents. Each replay of a captured step counts, unless the step was captured before the first call.
func Operations(dev device.Device, dt device.DType) float64 {
	s := stateOf(dev)
	if s.counter == nil {
		s.counter = &counter{Kernels: kernels.Of(dev), operations: map[device.DType]float64{}}
	}
	return s.counter.operations[dt]
}

// counter counts the operations of a device's kernels. It leaves out those whose time is that of reading and writing memory.
type counter struct {
	kernels.Kernels
	operations map[device.DType]float64
}

// product counts a product with as many elements as result, each the sum of `terms` products.
func (c *counter) product(result device.Tensor, terms int) {
	c.operations[result.DType] += 2 * float64(result.Len()) * float64(terms)
}

func (c *counter) MatMul(s device.Stream, dst device.Tensor, acc device.Accum, x device.Tensor, tx bool, y device.Tensor, ty bool) error {
	_, terms := transposed(x.Shape, tx)
	c.product(dst, terms)
	return c.Kernels.MatMul(s, dst, acc, x, tx, y, ty)
}

func (c *counter) Linear(s device.Stream, dst, x, w, bias device.Tensor, act kernels.Activation) error {
	c.product(dst, w.Shape[1])
	return c.Kernels.Linear(s, dst, x, w, bias, act)
}

func (c *counter) Linears(s device.Stream, x device.Tensor, of []kernels.Projection) error {
	for _, p := range of {
		c.product(p.Dst, p.W.Shape[1])
	}
	return c.Kernels.Linears(s, x, of)
}

func (c *counter) LinearGrad(s device.Stream, dw device.Tensor, accW device.Accum, db device.Tensor, accB device.Accum, g, x device.Tensor) error {
	if !dw.IsZero() {
		c.product(dw, x.Shape[0])
	}
	return c.Kernels.LinearGrad(s, dw, accW, db, accB, g, x)
}

func (c *counter) LinearUnary(s device.Stream, op kernels.UnaryOp, hidden, pre, x, w1, bias device.Tensor) error {
	c.product(hidden, w1.Shape[1])
	return c.Kernels.LinearUnary(s, op, hidden, pre, x, w1, bias)
}

func (c *counter) LinearUnaryGrad(s device.Stream, op kernels.UnaryOp, dpre, db, g, w2, pre device.Tensor) error {
	c.product(dpre, w2.Shape[0])
	return c.Kernels.LinearUnaryGrad(s, op, dpre, db, g, w2, pre)
}

func (c *counter) Conv2d(s device.Stream, dst, x, w, bias device.Tensor, p kernels.Conv) error {
	c.product(dst, w.Shape[1:].Len())
	return c.Kernels.Conv2d(s, dst, x, w, bias, p)
}

func (c *counter) Conv2dGradInput(s device.Stream, dst device.Tensor, acc device.Accum, g, w device.Tensor, p kernels.Conv) error {
	c.product(g, w.Shape[1:].Len())
	return c.Kernels.Conv2dGradInput(s, dst, acc, g, w, p)
}

func (c *counter) Conv2dGradWeight(s device.Stream, dst device.Tensor, acc device.Accum, g, x device.Tensor, p kernels.Conv) error {
	c.product(g, dst.Shape[1:].Len())
	return c.Kernels.Conv2dGradWeight(s, dst, acc, g, x, p)
}

// Attention makes two products, of queries and keys, and of the probabilities and values.
func (c *counter) Attention(s device.Stream, o kernels.Heads, lse device.Tensor, a kernels.Attend) error {
	c.attention(2, a)
	return c.Kernels.Attention(s, o, lse, a)
}

// AttentionGrad makes four products, without the one that it computes again: for the gradients of the probabilities and values,
// and of the queries and keys.
func (c *counter) AttentionGrad(s device.Stream, to kernels.AttentionGrads, g, o kernels.Heads, lse device.Tensor, a kernels.Attend) error {
	c.attention(4, a)
	return c.Kernels.AttentionGrad(s, to, g, o, lse, a)
}

func (c *counter) attention(products int, a kernels.Attend) {
	t, n := a.Q.T, a.K.T
	pairs := float64(t) * float64(n)
	if a.Causal {
		pairs = sumUpTo(t, n)
	}
	if a.Window > 0 {
		pairs -= sumUpTo(t-a.Window, n)
	}
	c.operations[a.Q.Data.DType] += 2 * float64(products*a.Q.B*a.Q.H*a.Q.D) * pairs
}

// sumUpTo returns the sum of min(i, most) for i from 1 to n.
func sumUpTo(n, most int) float64 {
	m := float64(max(min(n, most), 0))
	return m*(m+1)/2 + float64(max(n-most, 0))*m
}
