package decoder

import (
	"cmp"
	"fmt"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/nn"
)

// Model is a decoder-only transformer: see [New] and [NewGPT2].
type Model struct {
	nn.Container
	tokens    *nn.EmbeddingLayer
	positions *nn.EmbeddingLayer // nil for rotary positions
	blocks    []block
	norm      *nn.NormLayer
	head      *nn.LinearLayer

	rope      *rope // nil for learned positions
	recompute Recompute
	config    any // Config or GPT2Config
}

// Config returns the description of the model with the defaults filled in: a [Config] or a [GPT2Config].
func (m *Model) Config() any { return m.config }

// Recompute says which results a model does not keep for the backward pass, which then computes them again: less memory
// for more time. Gradients are the same bits. docs/results/decoder.md has measurements.
type Recompute string

const (
	// RecomputeNothing keeps all results that gradients read.
	RecomputeNothing Recompute = ""
	// RecomputeCheap does not keep the results of a block's normalizations, and of SwiGLU or GELU: see
	// [autograd.Variable.Recompute]. Computing them again takes one pass over memory each.
	RecomputeCheap Recompute = "cheap"
	// RecomputeBlocks keeps the input of each block alone: see [autograd.Checkpoint]. Computing the blocks again takes
	// another forward pass.
	RecomputeBlocks Recompute = "blocks"
)

func (r Recompute) check() error {
	switch r {
	case RecomputeNothing, RecomputeCheap, RecomputeBlocks:
		return nil
	}
	return fmt.Errorf("decoder: Recompute is %q, want %q, %q or %q", r, RecomputeNothing, RecomputeCheap, RecomputeBlocks)
}

// block is a transformer block. Its result is the sum of two terms, which the normalization that follows adds in its
// own pass.
type block interface {
	nn.Model
	// keys returns the number of heads of keys and values, and their size.
	keys() (heads, size int)
	// firstNorm returns the normalization of the block's input.
	firstNorm() *nn.NormLayer
	// apply returns the two terms of the block's result, given its input x [b t hidden] and the first normalization
	// of x. It frees what no gradient reads.
	apply(x, normed *autograd.Variable, p *pass) (sum, h *autograd.Variable)
	memory() blockMemory
}

// ForwardOptions are the choices of a forward pass. The zero value computes causal attention over rows that each start
// at position 0.
type ForwardOptions struct {
	// Positions are the positions of the tokens, int64 [b t], below the model's maximum. nil means 0, 1, 2 and so on
	// in each row.
	Positions *autograd.Variable
	most      int // all Positions are below; 0 means the model's maximum
	// Starts are the starts of the documents of each row, int64 [b t]: see [autograd.AttentionOptions]. Positions then
	// usually begin with each document. nil means one document in each row.
	Starts *autograd.Variable
	// Loss are the choices of [Model.Loss]. Overwrite has no effect.
	Loss autograd.LinearLossOptions
	// Attend computes the attention of a layer for q [b t heads size] and k and v [b t keyHeads size], to which the
	// rotary embedding was applied. The result has q's shape. opts has RowsFirst, Causal, Starts and the layer's window.
	// nil means [autograd.ScaledDotProductAttention].
	Attend func(layer int, q, k, v *autograd.Variable, opts *autograd.AttentionOptions) *autograd.Variable
}

// pass is a forward pass through the blocks.
type pass struct {
	ForwardOptions
	cos, sin  *autograd.Variable // the angles of all tokens, or of the positions of any row
	recompute Recompute
}

// spent is called when the forward pass no longer needs v, the result of a cheap operation. With RecomputeCheap it frees
// v's memory, and the backward pass computes v again.
func (p *pass) spent(v *autograd.Variable) {
	if p.recompute == RecomputeCheap {
		v.Recompute()
	}
}

// Forward returns the logits [b t vocab] of the token that follows each of ids, int64 [b t]. opts may be nil.
func (m *Model) Forward(ids *autograd.Variable, opts *ForwardOptions) *autograd.Variable {
	return m.Logits(m.Hidden(ids, opts))
}

// Logits returns the logits [... vocab] of rows of the result of Hidden.
func (m *Model) Logits(hidden *autograd.Variable) *autograd.Variable { return m.head.Forward(hidden) }

// Loss returns the cross-entropy of next, the tokens that follow ids; both are int64 [b t]. It is the mean over all tokens,
// unless opts.Loss chooses otherwise. opts may be nil.
func (m *Model) Loss(ids, next *autograd.Variable, opts *ForwardOptions) *autograd.Variable {
	hidden, o := m.Hidden(ids, opts), cmp.Or(opts, &ForwardOptions{}).Loss
	if m.head.LowRank != nil { // the weight alone does not give the logits
		of := nn.CrossEntropyOptions{IgnoreIndex: o.IgnoreIndex}
		if o.Sum {
			of.Reduction = nn.ReduceSum
		}
		return nn.CrossEntropyLoss(autograd.Reshape(m.Logits(hidden), next.Shape().Len(), -1), autograd.Flatten(next, 0), &of)
	}
	o.Overwrite = true
	return autograd.LinearCrossEntropyLoss(hidden, m.head.Weight.Var(), next, &o)
}

// MaxPositions returns the number of positions that the model knows.
func (m *Model) MaxPositions() int {
	if m.rope != nil {
		return m.rope.most
	}
	return m.positions.Weight.Shape()[0]
}

// Vocab returns the number of tokens that the model knows: those from 0 to Vocab() - 1.
func (m *Model) Vocab() int { return m.head.Weight.Shape()[0] }

// Hidden returns what the logits are computed from, [b t hidden]. opts may be nil.
func (m *Model) Hidden(ids *autograd.Variable, opts *ForwardOptions) *autograd.Variable {
	if s := ids.Shape(); len(s) != 2 {
		panic(&device.ShapeError{Op: "decoder", A: s, Want: "ids of shape [b t]"})
	}
	p := &pass{ForwardOptions: *cmp.Or(opts, &ForwardOptions{}), recompute: m.recompute}
	x := m.tokens.Forward(ids)
	var h *autograd.Variable // the second term of a block's input, nil for none
	switch rows := ids.Shape()[1]; {
	case m.rope != nil:
		p.cos, p.sin = m.rope.angles(x.Device(), x.DType(), rows, &p.ForwardOptions)
	case p.Positions != nil:
		h = m.positions.Forward(p.Positions)
	default:
		h = autograd.Slice(m.positions.Weight.Var(), 0, 0, rows, 1)
	}
	if m.recompute == RecomputeBlocks {
		if h != nil {
			x = autograd.Add(x, h)
		}
		for _, b := range m.blocks {
			x = autograd.Checkpoint(func(x *autograd.Variable) *autograd.Variable {
				return autograd.Add(b.apply(x, b.firstNorm().Forward(x), p))
			}, x)
		}
		return m.norm.Forward(x)
	}
	for i, b := range m.blocks {
		sum, normed := add(b.firstNorm(), x, h)
		switch {
		case i > 0:
			h.Free()
		case h != nil: // h, the embeddings of the positions, may share the memory of their parameter
			x.Free()
		}
		x, h = b.apply(sum, normed, p)
	}
	_, y := add(m.norm, x, h)
	h.Free()
	return y
}

// add returns x + h and its normalization. h may be nil.
func add(norm *nn.NormLayer, x, h *autograd.Variable) (sum, normed *autograd.Variable) {
	if h == nil {
		return x, norm.Forward(x)
	}
	return norm.ForwardAdd(x, h)
}

// attend computes causal attention for q [b t heads size] and k and v [b t keyHeads size]. The result is [b t heads·size].
func (p *pass) attend(layer, window int, q, k, v *autograd.Variable) *autograd.Variable {
	attend, opts := p.Attend, &autograd.AttentionOptions{RowsFirst: true, Causal: true, Window: window, Starts: p.Starts}
	if attend == nil {
		attend = func(_ int, q, k, v *autograd.Variable, opts *autograd.AttentionOptions) *autograd.Variable {
			return autograd.ScaledDotProductAttention(q, k, v, opts)
		}
	}
	y := attend(layer, q, k, v, opts)
	return autograd.Flatten(y, 2)
}

// embedding and linear return layers with normally distributed weights and biases of 0.
func embedding(n, d int, std float64) *nn.EmbeddingLayer {
	l := nn.Embedding(n, d, nil)
	l.Weight = nn.NewUnplacedParameter("weight", nn.Normal(0, std), device.Float32, n, d)
	return l
}

func linear(in, out int, std float64, bias bool) *nn.LinearLayer {
	l := &nn.LinearLayer{Weight: nn.NewUnplacedParameter("weight", nn.Normal(0, std), device.Float32, out, in)}
	if bias {
		l.Bias = nn.NewUnplacedParameter("bias", nn.Constant(0), device.Float32, out)
	}
	return l
}
