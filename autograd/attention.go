package autograd

import (
	"fmt"
	"math"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

// AttentionOptions are the choices of [ScaledDotProductAttention]. With the zero value every query
// attends to every key.
type AttentionOptions struct {
	// Causal masks the keys after position i for query i.
	Causal bool
	// Window, if positive, masks the keys up to position i - Window for query i. With Causal, query i then
	// attends to the last Window keys: sliding-window attention. The kernels skip what is masked.
	Window int
	// Starts, if not nil, keeps attention within the documents of a row. Int64 [B T], it has for each token the index, in its
	// row, of the first token of its document: data.Documents with Pack has this field. Query i attends to keys Starts[i]
	// to i, and the kernels skip the others. Causal must be set. The shape does not depend on the documents, so a captured
	// step may have any. On a GPU the values are not checked.
	Starts *Variable
	// Mask, if not nil, broadcasts to [B H T S]. In a mask of Uint8, 0 masks a key for a query. A
	// mask of the type of q is added to the scaled products; -Inf masks a key. With a large finite number instead,
	// such as -1e30, the gradients are wrong for a query all of whose keys have it: the logarithm of the sum of
	// exponentials, which the backward pass reads, rounds. The mask gets no gradient.
	Mask *Variable
	// Scale multiplies the products of queries and keys; 0 means 1/√D.
	Scale float64
	// RowsFirst declares q, k, v and the result as [B T H D], the layout of a projection's
	// result.
	RowsFirst bool
}

// ScaledDotProductAttention computes softmax(Scale·q·kᵀ + Mask)·v for q [B H T D] and k and v
// [B Hkv S D]. The result has the shape of q. Hkv divides H: each head of k and v serves H/Hkv
// neighbouring heads of q. D is at most 256. For the backward pass it keeps the result and one number
// for each query, but nothing of size T·S. If all keys are masked for a query, its result and its
// gradients are 0.
func ScaledDotProductAttention(q, k, v *Variable, opts *AttentionOptions) *Variable {
	return attend(&attention{}, opts, q, k, v)
}

// PackedAttention is self-attention ([ScaledDotProductAttention]) on the result of one projection. Each row of
// qkv [B T (heads+2·keyHeads)·D] holds the heads of a query, then of its key, then of its value. The
// result is [B T heads·D]. PackedAttention copies nothing. RowsFirst has no effect.
func PackedAttention(qkv *Variable, heads, keyHeads int, opts *AttentionOptions) *Variable {
	if heads < 1 {
		panic(&device.ShapeError{Op: "PackedAttention", A: qkv.t.Shape, Want: fmt.Sprintf("at least 1 head, not %d", heads)})
	}
	return attend(&attention{heads: heads, keyHeads: keyHeads}, opts, qkv)
}

func attend(f *attention, opts *AttentionOptions, in ...*Variable) *Variable {
	if opts != nil {
		f.AttentionOptions = *opts
	}
	if f.Mask != nil {
		in = append(in, f.Mask.Detach())
		f.Mask, f.masked = nil, true
	}
	if f.Starts != nil {
		in = append(in, f.Starts.Detach())
		f.Starts, f.hasStarts = nil, true
	}
	return Apply(f, in...)
}

type attention struct {
	AttentionOptions
	masked          bool // the input after q, k and v is a mask
	hasStarts       bool // the last input is Starts
	heads, keyHeads int  // the numbers of heads of a packed input; 0 if q, k and v are separate
	lse             device.Tensor
}

func (f *attention) Name() string {
	if f.isPacked() {
		return "PackedAttention"
	}
	return "ScaledDotProductAttention"
}

func (f *attention) isPacked() bool { return f.heads > 0 }

func (f *attention) Shape(in []device.Shape) device.Shape {
	if f.isPacked() {
		qkv, all := in[0], f.heads+2*f.keyHeads
		if len(qkv) != 3 || f.keyHeads <= 0 || f.heads%f.keyHeads != 0 || qkv[2]%all != 0 {
			panic(&device.ShapeError{Op: fmt.Sprintf("PackedAttention of %d heads and %d of keys", f.heads, f.keyHeads), A: qkv, B: device.Shape{0, 0, all}})
		}
		checkHeadSize(f.Name(), qkv, qkv[2]/all)
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
	checkHeadSize(f.Name(), q, q[3])
	return q
}

// checkHeadSize panics if the kernels do not support heads of d elements.
func checkHeadSize(op string, shape device.Shape, d int) {
	if d > kernels.MaxHeadSize {
		panic(&device.ShapeError{Op: op, A: shape, Want: fmt.Sprintf("heads of at most %d elements, not %d", kernels.MaxHeadSize, d)})
	}
}

// Saves reports that the gradient of v reads neither v nor the result.
func (*attention) Saves(i, j int) bool { return i != 2 || j != 2 && j != Output }

// of returns the heads of t, which is q, k or v, or has the shape of one of them.
func (f *attention) of(t device.Tensor) kernels.Heads {
	if f.RowsFirst {
		return kernels.RowsFirst(t, 0, t.Shape[2])
	}
	return kernels.HeadsFirst(t)
}

// result returns the heads of t, which is the result or has its shape.
func (f *attention) result(t device.Tensor) kernels.Heads {
	if f.isPacked() {
		return kernels.RowsFirst(t.Reshape(t.Shape[0], t.Shape[1], f.heads, t.Shape[2]/f.heads), 0, f.heads)
	}
	return f.of(t)
}

// parts returns the heads of q, k and v in a packed t.
func (f *attention) parts(t device.Tensor) (q, k, v kernels.Heads) {
	all := f.heads + 2*f.keyHeads
	t = t.Reshape(t.Shape[0], t.Shape[1], all, t.Shape[2]/all)
	return kernels.RowsFirst(t, 0, f.heads), kernels.RowsFirst(t, f.heads, f.keyHeads), kernels.RowsFirst(t, f.heads+f.keyHeads, f.keyHeads)
}

func (f *attention) attend(c *Call) kernels.Attend {
	a := kernels.Attend{Causal: f.Causal, Window: f.Window, Scale: f.Scale}
	if f.isPacked() {
		a.Q, a.K, a.V = f.parts(c.In[0])
	} else {
		a.Q, a.K, a.V = f.of(c.In[0]), f.of(c.In[1]), f.of(c.In[2])
	}
	if a.Window >= a.Q.T { // it masks nothing
		a.Window = 0
	}
	others := c.In[1:]
	if !f.isPacked() {
		others = c.In[3:]
	}
	if f.masked {
		a.Mask = others[0]
	}
	if f.hasStarts {
		a.Starts = others[len(others)-1]
	}
	if a.Scale == 0 {
		a.Scale = 1 / math.Sqrt(float64(max(a.Q.D, 1)))
	}
	return a
}

func (f *attention) Forward(c *Call) (err error) {
	o, dt := f.result(c.Out), device.Float32
	if c.Out.DType == device.Float64 {
		dt = device.Float64
	}
	if f.lse, err = c.New(dt, o.B, o.H, o.T); err != nil {
		return err
	}
	a := f.attend(c)
	if c.Recorded {
		if err := c.kernels.PrepareAttention(c.Stream, o, a); err != nil {
			return err
		}
	}
	return c.kernels.Attention(c.Stream, o, f.lse, a)
}

func (f *attention) Backward(c *Call, i int, dst device.Tensor, acc device.Accum, g device.Tensor) error {
	if f.isPacked() {
		to := kernels.AttentionGrads{AccQ: acc, AccK: acc, AccV: acc}
		to.Q, to.K, to.V = f.parts(dst)
		return f.gradients(c, to, g)
	}
	var dsts [3]device.Tensor
	var accs [3]device.Accum
	dsts[i], accs[i] = dst, acc
	return f.backwardJoint(c, dsts, accs, g)
}

// firstJoint returns 0, the index of q: the gradients of q, k and v are computed together.
func (f *attention) firstJoint() int { return 0 }

func (f *attention) backwardJoint(c *Call, dst [3]device.Tensor, acc [3]device.Accum, g device.Tensor) error {
	to := kernels.AttentionGrads{AccQ: acc[0], AccK: acc[1], AccV: acc[2]}
	for i, h := range []*kernels.Heads{&to.Q, &to.K, &to.V} {
		if !dst[i].IsZero() {
			*h = f.of(dst[i])
		}
	}
	return f.gradients(c, to, g)
}

func (f *attention) gradients(c *Call, to kernels.AttentionGrads, g device.Tensor) error {
	return c.kernels.AttentionGrad(c.Stream, to, f.result(g), f.result(c.Out), f.lse, f.attend(c))
}
