package autograd

import (
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

// FeedForwardOptions are the choices of [FeedForward].
type FeedForwardOptions struct {
	// Tanh replaces GELU by its approximation [GELUTanh]. For 16-bit types on GPUs the kernels of the matrix
	// products then compute it.
	Tanh bool
	// Recompute makes the backward pass compute the result of GELU again from its operand. The operation then
	// keeps half as much memory for the backward pass.
	Recompute bool
}

// FeedForward computes Linear(GELU(Linear(x, w1, b1)), w2, b2) as one operation: x [... k], w1 [h k],
// b1 [h] or nil, w2 [n h], b2 [n] or nil, the result [... n]. For the backward pass it keeps the operand
// and the result of GELU.
func FeedForward(x, w1, b1, w2, b2 *Variable, opts *FeedForwardOptions) *Variable {
	layerShape(layerShape(x.t.Shape, w1, b1), w2, b2)
	f := &feedForward{op: kernels.GELU}
	if opts != nil {
		f.FeedForwardOptions = *opts
	}
	if f.Tanh {
		f.op = kernels.GELUTanh
	}
	in := []*Variable{x, w1}
	if b1 != nil {
		f.b1, in = len(in), append(in, b1)
	}
	f.w2, in = len(in), append(in, w2)
	if b2 != nil {
		f.b2, in = len(in), append(in, b2)
	}
	return Apply(f, in...)
}

// layerShape returns the shape of the result of a Linear. Its panics name the Linear.
func layerShape(x device.Shape, w, bias *Variable) device.Shape {
	defer nameLayer(linear(0), []*Variable{w})
	in := []device.Shape{x, w.t.Shape}
	if bias != nil {
		in = append(in, bias.t.Shape)
	}
	return linear(0).Shape(in)
}

// feedForward is two Linears with op between them. Its inputs are x, w1, b1, w2 and b2.
type feedForward struct {
	FeedForwardOptions
	op         kernels.UnaryOp
	b1, w2, b2 int // the numbers of inputs; 0 for a bias that is absent

	pre, hidden device.Tensor // the operand and the result of op; hidden is not kept if Recompute is set
	gradPre, db device.Tensor // the gradients of pre and of b1 in a pass
}

func (*feedForward) Name() string { return "FeedForward" }

func (f *feedForward) Shape(in []device.Shape) device.Shape {
	hidden := linear(0).Shape(in[:f.w2])
	return linear(0).Shape(append([]device.Shape{hidden}, in[f.w2:]...))
}

// Saves reports which operands the gradients read. The gradients of x, w1 and b1 are computed from the gradient of
// pre, which Prepare computes with w2.
func (f *feedForward) Saves(i, j int) bool {
	return i < f.w2 && j == f.w2 || i == 1 && j == 0 || i == 0 && j == 1
}

// bias returns input i, or the zero Tensor if i is 0.
func (*feedForward) bias(c *Call, i int) (b device.Tensor) {
	if i > 0 {
		b = c.In[i]
	}
	return b
}

func (f *feedForward) Forward(c *Call) (err error) {
	k, s, x, w1, w2, y := c.kernels, c.Stream, rows(c.In[0]), c.In[1], c.In[f.w2], rows(c.Out)
	b1 := f.bias(c, f.b1)
	m, h, dt := x.Shape[0], w1.Shape[0], c.Out.DType
	if c.Recorded {
		if f.pre, err = c.New(dt, m, h); err != nil {
			return err
		}
	}
	if c.Recorded && !f.Recompute {
		f.hidden, err = c.New(dt, m, h)
	} else if f.hidden, err = c.s.alloc(dt, device.Shape{m, h}); err == nil {
		defer c.s.dev.Free(f.hidden.Buf)
	}
	if err != nil {
		return err
	}
	if err := k.LinearUnary(s, f.op, f.hidden, f.pre, x, w1, b1); err != nil {
		return err
	}
	if err := k.Linear(s, y, f.hidden, w2, f.bias(c, f.b2), kernels.NoActivation); err != nil || !c.Recorded {
		return err
	}
	return k.PrepareFeedForwardGrad(s, f.op, y, f.pre, x, w1, b1, w2)
}

// Aside marks the operation: the gradients of the weights and the biases may be computed on another stream.
func (*feedForward) Aside() {}

// keepsGradient returns true: Prepare only reads the gradient of the result.
func (*feedForward) keepsGradient() bool { return true }

// Prepare computes the gradients of pre and of b1 together, if a gradient needs them.
func (f *feedForward) Prepare(c *Call, g device.Tensor) (err error) {
	needsBias := f.b1 > 0 && c.needs(f.b1)
	if !c.needs(0) && !c.needs(1) && !needsBias {
		return nil
	}
	if f.gradPre, err = c.New(g.DType, f.pre.Shape...); err != nil {
		return err
	}
	f.db = device.Tensor{}
	if needsBias {
		if f.db, err = c.New(g.DType, c.In[f.b1].Shape...); err != nil {
			return err
		}
	}
	return c.kernels.LinearUnaryGrad(c.Stream, f.op, f.gradPre, f.db, rows(g), c.In[f.w2], f.pre)
}

func (f *feedForward) Backward(c *Call, i int, dst device.Tensor, acc device.Accum, g device.Tensor) error {
	k, s := c.kernels, c.Stream
	switch i {
	case 0:
		return k.MatMul(s, rows(dst), acc, f.gradPre, false, c.In[1], false)
	case 1:
		return k.MatMul(s, dst, acc, f.gradPre, true, rows(c.In[0]), false)
	case f.w2:
		if f.Recompute {
			var err error
			if f.hidden, err = c.New(g.DType, f.pre.Shape...); err != nil {
				return err
			}
			if err = k.Unary(s, f.op, f.hidden, f.pre); err != nil {
				return err
			}
		}
		return k.MatMul(s, dst, acc, rows(g), true, f.hidden, false)
	case f.b2:
		return k.Sum(s, dst, acc, rows(g))
	default:
		return k.Axpby(s, dst, acc, f.db)
	}
}
