package decoder

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/nn"
)

// Config describes a model of Llama's family: see [New]. Its JSON has the keys of Hugging Face's config.json.
type Config struct {
	Vocab       int     `json:"vocab_size"`
	Hidden      int     `json:"hidden_size"`
	Feedforward int     `json:"intermediate_size"` // the size of the gate and of the values that it multiplies
	Heads       int     `json:"num_attention_heads"`
	KeyHeads    int     `json:"num_key_value_heads"` // the number of heads of keys and values; 0 means Heads
	HeadSize    int     `json:"head_dim"`            // 0 means Hidden/Heads
	Layers      []Layer `json:"-"`

	Rope         Rope    `json:"-"`
	MaxPositions int     `json:"max_position_embeddings"` // the maximum with ForwardOptions.Positions; 0 means 2048
	NormEps      float64 `json:"rms_norm_eps"`            // of RMSNorm; 0 means 1e-6
	NormHeads    bool    `json:"-"`                       // RMSNorm of each query and key

	QKVBias         bool `json:"-"` // biases of queries, keys and values
	OutBias         bool `json:"-"` // a bias of the result of attention
	FeedforwardBias bool `json:"mlp_bias"`
	Tied            bool `json:"tie_word_embeddings"` // the logits are computed with the embeddings of the tokens

	InitStd   float64   `json:"initializer_range"` // the standard deviation of initial weights; 0 means 0.02
	Recompute Recompute `json:"-"`                 // what the backward pass computes again
}

// Layer is what layers of a model may differ in.
type Layer struct {
	Window int  // a token attends to the last Window tokens; 0 means to all
	NoRope bool // no rotary positions
}

// New returns a model of Llama's family (Touvron et al., "LLaMA", 2023), not placed on a device. It returns an error if
// the sizes do not fit together.
func New(c Config) (*Model, error) {
	c.KeyHeads = cmp.Or(c.KeyHeads, c.Heads)
	c.NormEps, c.InitStd = cmp.Or(c.NormEps, 1e-6), cmp.Or(c.InitStd, 0.02)
	c.MaxPositions = cmp.Or(c.MaxPositions, 2048)
	if min(c.Vocab, c.Hidden, c.Feedforward, len(c.Layers), c.Heads, c.KeyHeads, c.HeadSize+1) < 1 || c.Heads%c.KeyHeads != 0 || c.HeadSize == 0 && c.Hidden%c.Heads != 0 {
		return nil, fmt.Errorf("decoder: vocabulary %d, hidden size %d, feed-forward size %d, %d layers, %d heads of size %d and %d heads of keys: want at least 1 of each, heads that are a multiple of the heads of keys, and without a size of heads a hidden size that is a multiple of the heads",
			c.Vocab, c.Hidden, c.Feedforward, len(c.Layers), c.Heads, c.HeadSize, c.KeyHeads)
	}
	c.HeadSize = cmp.Or(c.HeadSize, c.Hidden/c.Heads)
	c.Rope.Theta, c.Rope.FirstTrained = cmp.Or(c.Rope.Theta, 10000), cmp.Or(c.Rope.FirstTrained, c.MaxPositions)
	frequencies, factor, err := c.Rope.Frequencies(c.HeadSize)
	if err = errors.Join(err, c.Recompute.check()); err != nil {
		return nil, err
	}
	m := &Model{recompute: c.Recompute, config: c, rope: &rope{frequencies: frequencies, factor: factor, most: c.MaxPositions}}
	m.tokens = nn.Add(&m.Container, "model.embed_tokens", embedding(c.Vocab, c.Hidden, c.InitStd))
	for i := range c.Layers {
		m.blocks = append(m.blocks, nn.Add(&m.Container, fmt.Sprint("model.layers.", i), newLlamaBlock(&c, i)))
	}
	m.norm = nn.Add(&m.Container, "model.norm", nn.RMSNorm(c.Hidden, &nn.NormOptions{Eps: c.NormEps}))
	m.head = linear(c.Hidden, c.Vocab, c.InitStd, false)
	if c.Tied {
		m.head.Weight = m.tokens.Weight
	}
	nn.Add(&m.Container, "lm_head", m.head)
	return m, nil
}

// llamaBlock is attention, then a gated feed-forward network, each added to its input.
type llamaBlock struct {
	nn.Container
	c     *Config
	index int

	norm1, norm2   *nn.NormLayer
	q, k, v, o     *nn.LinearLayer
	qNorm, kNorm   *nn.NormLayer // nil unless NormHeads is set
	gate, up, down *nn.LinearLayer
}

func newLlamaBlock(c *Config, index int) *llamaBlock {
	b := &llamaBlock{c: c, index: index}
	norm := func(name string, d int) *nn.NormLayer {
		return nn.Add(&b.Container, name, nn.RMSNorm(d, &nn.NormOptions{Eps: c.NormEps}))
	}
	project := func(name string, in, out int, bias bool) *nn.LinearLayer {
		return nn.Add(&b.Container, name, linear(in, out, c.InitStd, bias))
	}
	b.norm1 = norm("input_layernorm", c.Hidden)
	b.q = project("self_attn.q_proj", c.Hidden, c.Heads*c.HeadSize, c.QKVBias)
	b.k = project("self_attn.k_proj", c.Hidden, c.KeyHeads*c.HeadSize, c.QKVBias)
	b.v = project("self_attn.v_proj", c.Hidden, c.KeyHeads*c.HeadSize, c.QKVBias)
	if c.NormHeads {
		b.qNorm, b.kNorm = norm("self_attn.q_norm", c.HeadSize), norm("self_attn.k_norm", c.HeadSize)
	}
	b.o = project("self_attn.o_proj", c.Heads*c.HeadSize, c.Hidden, c.OutBias)
	b.norm2 = norm("post_attention_layernorm", c.Hidden)
	b.gate = project("mlp.gate_proj", c.Hidden, c.Feedforward, c.FeedforwardBias)
	b.up = project("mlp.up_proj", c.Hidden, c.Feedforward, c.FeedforwardBias)
	b.down = project("mlp.down_proj", c.Feedforward, c.Hidden, c.FeedforwardBias)
	return b
}

func (b *llamaBlock) keys() (heads, size int) { return b.c.KeyHeads, b.c.HeadSize }

func (b *llamaBlock) firstNorm() *nn.NormLayer { return b.norm1 }

func (b *llamaBlock) apply(x, normed *autograd.Variable, p *pass) (sum, h *autograd.Variable) {
	qkv := nn.Linears(normed, b.q, b.k, b.v)
	p.spent(normed)
	q, k, v := b.heads(qkv[0], b.c.Heads), b.heads(qkv[1], b.c.KeyHeads), b.heads(qkv[2], b.c.KeyHeads)
	if b.qNorm != nil {
		q, k = b.qNorm.Forward(q), b.kNorm.Forward(k)
	}
	if !b.c.Layers[b.index].NoRope {
		q, k = p.rotate(q, k)
	}
	attended := b.o.Forward(p.attend(b.index, b.c.Layers[b.index].Window, q, k, v))
	sum, normed = b.norm2.ForwardAdd(x, attended)
	attended.Free()
	gated := nn.Linears(normed, b.gate, b.up)
	inner := autograd.SwiGLU(gated[0], gated[1])
	p.spent(normed)
	h = b.down.Forward(inner)
	p.spent(inner)
	return sum, h
}

// heads divides x [b t n·size] into n heads [b t n size].
func (b *llamaBlock) heads(x *autograd.Variable, n int) *autograd.Variable {
	return autograd.Reshape(x, x.Shape()[0], x.Shape()[1], n, b.c.HeadSize)
}

// rotate applies the rotary embedding to q and k [b t heads size], which it frees.
func (p *pass) rotate(q, k *autograd.Variable) (rotatedQ, rotatedK *autograd.Variable) {
	rows := func(x *autograd.Variable) *autograd.Variable {
		if p.Positions == nil {
			return x
		}
		s := x.Shape() // there are angles for each token
		return autograd.Reshape(x, 1, s[0]*s[1], s[2], s[3])
	}
	rotatedQ, rotatedK = autograd.RotaryBoth(rows(q), rows(k), p.cos, p.sin)
	q.Free()
	k.Free()
	return autograd.Reshape(rotatedQ, q.Shape()...), autograd.Reshape(rotatedK, k.Shape()...)
}
