package autograd

import (
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

// LowRankLinear computes x·wᵀ + bias + scale·(x·aᵀ)·bᵀ as one operation: x [... k], w [n k], bias [n] or nil, a [r k],
// b [n r], the result [... n]. It is a Linear with an adapter of rank r (Hu et al., "LoRA", 2021). The products with a
// and b are added within the kernels of the matrix products, so that nothing of x's or the result's size is computed
// besides. For the backward pass it keeps x·aᵀ.
func LowRankLinear(x, w, bias, a, b *Variable, scale float64) *Variable {
	f := &lowRank{scale: scale, a: 2, b: 3}
	in := []*Variable{x, w}
	if bias != nil {
		f.bias, f.a, f.b, in = 2, 3, 4, append(in, bias)
	}
	return Apply(f, append(in, a, b)...)
}

// lowRank is the Function of LowRankLinear. Its inputs are x, w, bias, a and b.
type lowRank struct {
	scale      float64
	bias, a, b int // the numbers of inputs; 0 for a bias that is absent

	low, gradLow device.Tensor // x·aᵀ, and its gradient
}

func (*lowRank) Name() string { return "LowRankLinear" }

func (f *lowRank) Shape(in []device.Shape) device.Shape {
	out := linear(0).Shape(in[:f.a])
	w, a, b := in[1], in[f.a], in[f.b]
	if len(a) != 2 || a[1] != w[1] {
		panic(&device.ShapeError{Op: f.Name(), A: w, B: a})
	}
	if len(b) != 2 || b[0] != w[0] || b[1] != a[0] {
		panic(&device.ShapeError{Op: f.Name(), A: a, B: b})
	}
	return out
}

// Saves reports which operands the gradients read. Prepare reads b for the gradients of x and a.
func (f *lowRank) Saves(i, j int) bool {
	switch i {
	case 0:
		return j == 1 || j == f.a || j == f.b
	case 1:
		return j == 0
	case f.a:
		return j == 0 || j == f.b
	}
	return false
}

func (f *lowRank) Forward(c *Call) (err error) {
	k, s, y, x, a := c.kernels, c.Stream, rows(c.Out), rows(c.In[0]), c.In[f.a]
	if c.Recorded {
		f.low, err = c.New(y.DType, x.Shape[0], a.Shape[0])
	} else if f.low, err = c.s.alloc(y.DType, device.Shape{x.Shape[0], a.Shape[0]}); err == nil {
		defer c.s.dev.Free(f.low.Buf)
	}
	if err != nil {
		return err
	}
	if err := k.MatMul(s, f.low, device.Store, x, false, a, true); err != nil {
		return err
	}
	if f.bias > 0 {
		if err := k.Linear(s, y, x, c.In[1], c.In[f.bias], kernels.NoActivation); err != nil {
			return err
		}
		return k.MatMul(s, y, device.Accum{Alpha: f.scale, Beta: 1}, f.low, false, c.In[f.b], true)
	}
	// The product of low rank only moves memory. It comes first, because the large product then adds it for free.
	if err := k.MatMul(s, y, device.Accum{Alpha: f.scale}, f.low, false, c.In[f.b], true); err != nil {
		return err
	}
	return k.MatMul(s, y, device.Accum{Alpha: 1, Beta: 1}, x, false, c.In[1], true)
}

// Aside marks the operation: the gradients of w, bias, a and b may be computed on another stream.
func (*lowRank) Aside() {}

// keepsGradient returns true: Prepare only reads the gradient of the result.
func (*lowRank) keepsGradient() bool { return true }

// Prepare computes the gradient of x·aᵀ.
func (f *lowRank) Prepare(c *Call, g device.Tensor) (err error) {
	if !c.needs(0) && !c.needs(f.a) {
		return nil
	}
	if f.gradLow, err = c.New(g.DType, f.low.Shape...); err != nil {
		return err
	}
	return c.kernels.MatMul(c.Stream, f.gradLow, device.Accum{Alpha: f.scale}, rows(g), false, c.In[f.b], false)
}

func (f *lowRank) Backward(c *Call, i int, dst device.Tensor, acc device.Accum, g device.Tensor) error {
	k, s := c.kernels, c.Stream
	g = rows(g)
	switch i {
	case 0:
		if err := k.MatMul(s, rows(dst), acc, f.gradLow, false, c.In[f.a], false); err != nil {
			return err
		}
		return k.MatMul(s, rows(dst), device.Accum{Alpha: acc.Alpha, Beta: 1}, g, false, c.In[1], false)
	case 1:
		return k.MatMul(s, dst, acc, g, true, rows(c.In[0]), false)
	case f.a:
		return k.MatMul(s, dst, acc, f.gradLow, true, rows(c.In[0]), false)
	case f.b:
		return k.MatMul(s, dst, device.Accum{Alpha: acc.Alpha * f.scale, Beta: acc.Beta}, g, true, f.low, false)
	default:
		return k.Sum(s, dst, acc, g)
	}
}
