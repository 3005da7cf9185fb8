package nn

import (
	"cmp"
	"fmt"
	"math"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
)

// MultiheadAttentionOptions configure [MultiheadAttention]. The zero value is PyTorch's default with
// batch_first=True.
type MultiheadAttentionOptions struct {
	// NoBias omits the biases.
	NoBias bool
	// Causal masks, for each row, the later rows.
	Causal bool
	// KeyHeads is the number of key and value heads (grouped-query attention). It must divide the number of
	// heads. 0 means the number of heads.
	KeyHeads int
	// Rotary applies a rotary position embedding to queries and keys: see [autograd.Rotary].
	Rotary bool
	// RotaryBase is the base of the angles; 0 means 10000.
	RotaryBase float64
	// RotaryInterleaved is as in [autograd.RotaryOptions].
	RotaryInterleaved bool
	// DType is the type of the parameters, and the type that the layer computes in; Invalid means
	// Float32.
	DType device.DType
}

// MultiheadAttentionLayer projects queries, keys and values, attends, and projects the result: see
// [MultiheadAttention].
type MultiheadAttentionLayer struct {
	InWeight *Parameter // [embed+2·KeyHeads·D embed]: the projections of queries, keys and values
	InBias   *Parameter // or nil
	Out      *LinearLayer

	opts         MultiheadAttentionOptions
	embed, heads int
	cos, sin     *autograd.Variable // the cosines and sines of the rotary embedding for the first angleRows positions
	angleRows    int
}

// MultiheadAttention is a layer of attention with heads of D = embed/heads elements each. Its input is [B T
// embed], as for PyTorch's layer with batch_first=True. Its parameters have PyTorch's names and initial
// distributions. It has no dropout. It panics unless heads divides embed and KeyHeads divides heads.
func MultiheadAttention(embed, heads int, opts *MultiheadAttentionOptions) *MultiheadAttentionLayer {
	o := *cmp.Or(opts, &MultiheadAttentionOptions{})
	if o.KeyHeads == 0 {
		o.KeyHeads = heads
	}
	if o.RotaryBase == 0 {
		o.RotaryBase = 10000
	}
	if o.DType == device.Invalid {
		o.DType = device.Float32
	}
	if heads < 1 || o.KeyHeads < 1 || embed%heads != 0 || heads%o.KeyHeads != 0 {
		panic(fmt.Errorf("nn: MultiheadAttention with embed %d, heads %d and KeyHeads %d: want embed to be a multiple of heads, and heads a multiple of KeyHeads", embed, heads, o.KeyHeads))
	}
	rows := embed + 2*o.KeyHeads*(embed/heads)
	bound := math.Sqrt(6 / float64(embed+rows))
	l := &MultiheadAttentionLayer{
		InWeight: NewUnplacedParameter("in_proj_weight", Uniform(-bound, bound), o.DType, rows, embed),
		Out:      Linear(embed, embed, &LinearOptions{NoBias: o.NoBias, DType: o.DType}),
		opts:     o, embed: embed, heads: heads,
	}
	if !o.NoBias {
		l.InBias = NewUnplacedParameter("in_proj_bias", Constant(0), o.DType, rows)
		l.Out.Bias = NewUnplacedParameter("bias", Constant(0), o.DType, embed)
	}
	return l
}

// Forward computes self-attention of x [B T embed].
func (l *MultiheadAttentionLayer) Forward(x *autograd.Variable) *autograd.Variable {
	return l.Attend(x, x, x, nil)
}

// Attend computes attention of query [B T embed] to key and value [B S embed]. mask may be nil; it has the meaning
// of [autograd.AttentionOptions].Mask. Boolean masks of PyTorch's layer have the opposite meaning.
func (l *MultiheadAttentionLayer) Attend(query, key, value, mask *autograd.Variable) *autograd.Variable {
	opts := autograd.AttentionOptions{Causal: l.opts.Causal, Mask: mask}
	heads, keyHeads, d := l.heads, l.opts.KeyHeads, l.embed/l.heads
	var y *autograd.Variable
	if query == key && key == value {
		qkv := l.project(query, 0, l.embed+2*keyHeads*d)
		if l.opts.Rotary {
			s := qkv.Shape()
			turned := l.rotate(autograd.Reshape(qkv, s[0], s[1], heads+2*keyHeads, d), heads+keyHeads)
			qkv = autograd.Reshape(turned, s...)
		}
		y = autograd.PackedAttention(qkv, heads, keyHeads, &opts)
	} else {
		split := func(x *autograd.Variable, from, heads int, turns bool) *autograd.Variable {
			p := l.project(x, from, from+heads*d)
			p = autograd.Reshape(p, p.Shape()[0], p.Shape()[1], heads, d)
			if turns && l.opts.Rotary {
				p = l.rotate(p, heads)
			}
			return p
		}
		opts.RowsFirst = true
		q := split(query, 0, heads, true)
		k, v := split(key, l.embed, keyHeads, true), split(value, l.embed+keyHeads*d, keyHeads, false)
		y = autograd.ScaledDotProductAttention(q, k, v, &opts)
		y = autograd.Reshape(y, y.Shape()[0], y.Shape()[1], l.embed)
	}
	return l.Out.Forward(y)
}

// project applies the rows `from` to to-1 of the input projection to x [B T embed].
func (l *MultiheadAttentionLayer) project(x *autograd.Variable, from, to int) *autograd.Variable {
	if len(x.Shape()) != 3 {
		panic(&device.ShapeError{Op: "MultiheadAttention", A: x.Shape(), B: device.Shape{0, 0, l.embed}})
	}
	part := func(p *Parameter) *autograd.Variable {
		if v := p.Var(); from > 0 || to < p.Shape()[0] {
			return autograd.Slice(v, 0, from, to, 1)
		}
		return p.Var()
	}
	var bias *autograd.Variable
	if l.InBias != nil {
		bias = part(l.InBias)
	}
	return autograd.Linear(autograd.Cast(x, l.InWeight.DType()), part(l.InWeight), bias)
}

// rotate applies the rotary embedding to the first n of x's heads; x is [B T N D]. It caches the angles.
func (l *MultiheadAttentionLayer) rotate(x *autograd.Variable, n int) *autograd.Variable {
	isDouble := x.DType() == device.Float64 // otherwise the angles are in Float32
	if rows := x.Shape()[1]; l.cos == nil || l.angleRows < rows || l.cos.Device() != x.Device() || isDouble != (l.cos.DType() == device.Float64) {
		l.angleRows = rows
		l.cos, l.sin = autograd.RotaryAngles(x.Device(), x.DType(), rows, x.Shape()[3], l.opts.RotaryBase)
	}
	return autograd.Rotary(x, l.cos, l.sin, &autograd.RotaryOptions{Heads: n, Interleaved: l.opts.RotaryInterleaved})
}

// Parameters returns "in_proj_weight", "in_proj_bias", "out_proj.weight" and "out_proj.bias". With NoBias it
// omits the biases.
func (l *MultiheadAttentionLayer) Parameters() []*Parameter {
	params := []*Parameter{l.InWeight}
	if l.InBias != nil {
		params = append(params, l.InBias)
	}
	for _, p := range l.Out.Parameters() {
		params = append(params, &Parameter{"out_proj." + p.name, p.value})
	}
	return params
}
