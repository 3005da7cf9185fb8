package autograd

import (
	"fmt"
	"math"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

// AttentionOptions are the choices of [ScaledDotProductAttention]; the zero value is
// attention of every query to every key.
type AttentionOptions struct {
	// Causal keeps query i from the keys behind i.
	Causal bool
	// Mask, if not nil, broadcasts to [B H T S]. Of Uint8, 0 keeps a query from a key; of
	// the type of q it is added to the scaled products. It gets no gradient.
	Mask *Variable
	// Scale is what the products of queries and keys are multiplied by; 0 is 1/√D.
	Scale float64
	// RowsFirst says that q, k, v and the result are [B T H D]: the heads of a row lie
	// side by side, as a projection gives them.
	RowsFirst bool
}

// ScaledDotProductAttention is softmax(Scale·q·kᵀ + Mask)·v: q [B H T D], k and v
// [B Hkv S D], the result as q. Hkv divides H: a head of k and v serves H/Hkv neighbouring
// heads of q. D is at most [kernels.MaxHeadSize]. For the backward pass, the result is kept
// and a number for each query, and nothing of size T·S. The result of a query that is kept
// from all keys is 0, as is the gradient that it gives. opts is nothing, or one.
func ScaledDotProductAttention(q, k, v *Variable, opts ...AttentionOptions) *Variable {
	return attend(&attention{}, opts, q, k, v)
}

// PackedAttention is the attention of rows to each other, where one projection gives
// queries, keys and values: qkv [B T (heads+2·keyHeads)·D] holds, for each row, the heads
// of its query, then those of its key and those of its value; the result is
// [B T heads·D]. Nothing is copied. RowsFirst has no meaning. Otherwise it is
// [ScaledDotProductAttention].
func PackedAttention(qkv *Variable, heads, keyHeads int, opts ...AttentionOptions) *Variable {
	return attend(&attention{heads: heads, keyHeads: keyHeads}, opts, qkv)
}

func attend(f *attention, opts []AttentionOptions, in ...*Variable) *Variable {
	if len(opts) > 0 {
		f.AttentionOptions = opts[0]
	}
	if f.Mask != nil {
		in = append(in, f.Mask.Detach())
		f.Mask, f.masked = nil, true
	}
	return Apply(f, in...)
}

type attention struct {
	AttentionOptions
	masked          bool // the last input is a mask
	heads, keyHeads int  // of a packed input; else 0
	lse, delta      device.Tensor
}

func (*attention) Name() string { return "ScaledDotProductAttention" }

func (f *attention) isPacked() bool { return f.heads > 0 }

func (f *attention) Shape(in []device.Shape) device.Shape {
	if f.isPacked() {
		qkv, all := in[0], f.heads+2*f.keyHeads
		if len(qkv) != 3 || f.keyHeads <= 0 || f.heads%f.keyHeads != 0 || qkv[2]%all != 0 {
			panic(&device.ShapeError{Op: fmt.Sprintf("PackedAttention of %d heads and %d of keys", f.heads, f.keyHeads), A: qkv, B: device.Shape{0, 0, all}})
		}
		return device.Shape{qkv[0], qkv[1], qkv[2] / all * f.heads}
	}
	q, k := in[0], in[1]
	heads := 1
	if f.RowsFirst {
		heads = 2
	}
	if len(q) != 4 || len(k) != 4 || q[0] != k[0] || q[3] != k[3] || k[heads] == 0 || q[heads]%k[heads] != 0 {
		panic(&device.ShapeError{Op: f.Name(), A: q, B: k})
	}
	if !in[2].Equal(k) {
		panic(&device.ShapeError{Op: f.Name(), A: in[2], B: k})
	}
	return q
}

// Saves knows that the gradient for v depends on neither v nor the result.
func (*attention) Saves(i, j int) bool { return i != 2 || j != 2 && j != Output }

// of is t, one of q, k and v or an array like them, as its heads.
func (f *attention) of(t device.Tensor) kernels.Heads {
	if f.RowsFirst {
		return kernels.RowsFirst(t, 0, t.Shape[2])
	}
	return kernels.HeadsFirst(t)
}

// result is t, the result or an array like it, as its heads.
func (f *attention) result(t device.Tensor) kernels.Heads {
	if f.isPacked() {
		return kernels.RowsFirst(t.Reshape(t.Shape[0], t.Shape[1], f.heads, t.Shape[2]/f.heads), 0, f.heads)
	}
	return f.of(t)
}

// parts are the heads of a packed t.
func (f *attention) parts(t device.Tensor) (q, k, v kernels.Heads) {
	all := f.heads + 2*f.keyHeads
	t = t.Reshape(t.Shape[0], t.Shape[1], all, t.Shape[2]/all)
	return kernels.RowsFirst(t, 0, f.heads), kernels.RowsFirst(t, f.heads, f.keyHeads), kernels.RowsFirst(t, f.heads+f.keyHeads, f.keyHeads)
}

func (f *attention) attend(c *Call) kernels.Attend {
	a := kernels.Attend{Causal: f.Causal, Scale: f.Scale}
	if f.isPacked() {
		a.Q, a.K, a.V = f.parts(c.In[0])
	} else {
		a.Q, a.K, a.V = f.of(c.In[0]), f.of(c.In[1]), f.of(c.In[2])
	}
	if f.masked {
		a.Mask = c.In[len(c.In)-1]
	}
	if a.Scale == 0 {
		a.Scale = 1 / math.Sqrt(float64(max(a.Q.D, 1)))
	}
	return a
}

// perRow allocates a number for each query.
func (f *attention) perRow(c *Call) (device.Tensor, error) {
	o, dt := f.result(c.Out), device.Float32
	if c.Out.DType == device.Float64 {
		dt = device.Float64
	}
	return c.New(dt, o.B, o.H, o.T)
}

func (f *attention) Forward(c *Call) (err error) {
	if f.lse, err = f.perRow(c); err != nil {
		return err
	}
	return c.kernels.Attention(c.Stream, f.result(c.Out), f.lse, f.attend(c))
}

func (f *attention) Prepare(c *Call, g device.Tensor) (err error) {
	if f.delta, err = f.perRow(c); err != nil {
		return err
	}
	return c.kernels.AttentionDelta(c.Stream, f.delta, f.result(g), f.result(c.Out))
}

func (f *attention) Backward(c *Call, i int, dst device.Tensor, acc device.Accum, g device.Tensor) error {
	switch {
	case f.isPacked():
		dq, dk, dv := f.parts(dst)
		if err := c.kernels.AttentionQueryGrad(c.Stream, dq, acc, f.result(g), f.lse, f.delta, f.attend(c)); err != nil {
			return err
		}
		return f.keyValueGrad(c, dk, acc, dv, acc, g)
	case i == 0:
		return c.kernels.AttentionQueryGrad(c.Stream, f.of(dst), acc, f.result(g), f.lse, f.delta, f.attend(c))
	}
	unused, err := c.New(dst.DType, dst.Shape...)
	if err != nil {
		return err
	}
	if i == 1 {
		return f.keyValueGrad(c, f.of(dst), acc, f.of(unused), device.Store, g)
	}
	return f.keyValueGrad(c, f.of(unused), device.Store, f.of(dst), acc, g)
}

func (f *attention) backwardJoint(c *Call, dst [2]device.Tensor, acc [2]device.Accum, g device.Tensor) error {
	return f.keyValueGrad(c, f.of(dst[0]), acc[0], f.of(dst[1]), acc[1], g)
}

func (f *attention) keyValueGrad(c *Call, dk kernels.Heads, accK device.Accum, dv kernels.Heads, accV device.Accum, g device.Tensor) error {
	return c.kernels.AttentionKeyValueGrad(c.Stream, dk, accK, dv, accV, f.result(g), f.lse, f.delta, f.attend(c))
}
