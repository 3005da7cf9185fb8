package decoder

import (
	"cmp"
	"fmt"
	"math"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/nn"
)

// GPT2Config describes a model of GPT-2's architecture: see [NewGPT2]. Its JSON has the keys of Hugging Face's config.json.
type GPT2Config struct {
	Vocab       int       `json:"vocab_size"`
	Positions   int       `json:"n_positions"`
	Layers      int       `json:"n_layer"`
	Heads       int       `json:"n_head"`
	Hidden      int       `json:"n_embd"`
	Feedforward int       `json:"n_inner"`            // 0 means 4·Hidden
	NormEps     float64   `json:"layer_norm_epsilon"` // of LayerNorm; 0 means 1e-5
	Recompute   Recompute `json:"-"`                  // what the backward pass computes again
}

// NewGPT2 returns a model of GPT-2's architecture (Radford et al., 2019), not placed on a device, with GPT-2's initial
// distributions. It returns an error if the sizes do not fit together.
func NewGPT2(c GPT2Config) (*Model, error) {
	if min(c.Vocab, c.Positions, c.Layers, c.Heads, c.Hidden, c.Feedforward+1) < 1 || c.Hidden%c.Heads != 0 {
		return nil, fmt.Errorf("decoder: vocabulary %d, %d positions, %d layers and %d heads of a hidden size of %d: want at least 1 of each, and a hidden size that is a multiple of the heads",
			c.Vocab, c.Positions, c.Layers, c.Heads, c.Hidden)
	}
	if err := c.Recompute.check(); err != nil {
		return nil, err
	}
	c.Feedforward, c.NormEps = cmp.Or(c.Feedforward, 4*c.Hidden), cmp.Or(c.NormEps, 1e-5)
	m := &Model{recompute: c.Recompute, config: c}
	m.tokens = nn.Add(&m.Container, "transformer.wte", embedding(c.Vocab, c.Hidden, 0.02))
	m.positions = nn.Add(&m.Container, "transformer.wpe", embedding(c.Positions, c.Hidden, 0.02))
	for i := range c.Layers {
		m.blocks = append(m.blocks, nn.Add(&m.Container, fmt.Sprint("transformer.h.", i), newGPT2Block(c, i)))
	}
	m.norm = nn.Add(&m.Container, "transformer.ln_f", nn.LayerNorm(c.Hidden, &nn.NormOptions{Eps: c.NormEps}))
	m.head = nn.Add(&m.Container, "lm_head", &nn.LinearLayer{Weight: m.tokens.Weight})
	return m, nil
}

// gpt2Block is attention, then a network of two layers, each added to its input.
type gpt2Block struct {
	nn.Container
	index, headCount, headSize int

	norm1, norm2     *nn.NormLayer
	attend, attended *nn.LinearLayer
	widen, narrow    *nn.LinearLayer
}

func newGPT2Block(c GPT2Config, index int) *gpt2Block {
	b := &gpt2Block{index: index, headCount: c.Heads, headSize: c.Hidden / c.Heads}
	last := 0.02 / math.Sqrt(2*float64(c.Layers)) // the std of the layers whose output is added to the input
	b.norm1 = nn.Add(&b.Container, "ln_1", nn.LayerNorm(c.Hidden, &nn.NormOptions{Eps: c.NormEps}))
	b.attend = nn.Add(&b.Container, "attn.c_attn", linear(c.Hidden, 3*c.Hidden, 0.02, true))
	b.attended = nn.Add(&b.Container, "attn.c_proj", linear(c.Hidden, c.Hidden, last, true))
	b.norm2 = nn.Add(&b.Container, "ln_2", nn.LayerNorm(c.Hidden, &nn.NormOptions{Eps: c.NormEps}))
	b.widen = nn.Add(&b.Container, "mlp.c_fc", linear(c.Hidden, c.Feedforward, 0.02, true))
	b.narrow = nn.Add(&b.Container, "mlp.c_proj", linear(c.Feedforward, c.Hidden, last, true))
	return b
}

func (b *gpt2Block) keys() (heads, size int) { return b.headCount, b.headSize }

func (b *gpt2Block) firstNorm() *nn.NormLayer { return b.norm1 }

func (b *gpt2Block) apply(x, normed *autograd.Variable, p *pass) (sum, h *autograd.Variable) {
	qkv := b.attend.Forward(normed)
	p.spent(normed)
	a := b.attention(qkv, p)
	attended := b.attended.Forward(a)
	sum, normed = b.norm2.ForwardAdd(x, attended)
	attended.Free()
	gelu := nn.GELUTanh()
	if p.recompute == RecomputeCheap {
		gelu = nn.Checkpoint(gelu)
	}
	h = nn.FeedForward(normed, b.widen, gelu, b.narrow)
	p.spent(normed)
	return sum, h
}

// attention attends with qkv [b t 3·hidden].
func (b *gpt2Block) attention(qkv *autograd.Variable, p *pass) *autograd.Variable {
	if p.Attend == nil {
		return autograd.PackedAttention(qkv, b.headCount, b.headCount, &autograd.AttentionOptions{Causal: true, Starts: p.Starts})
	}
	s := qkv.Shape()
	qkv = autograd.Reshape(qkv, s[0], s[1], 3*b.headCount, s[2]/3/b.headCount)
	part := func(i int) *autograd.Variable {
		return autograd.Slice(qkv, 2, i*b.headCount, (i+1)*b.headCount, 1)
	}
	return p.attend(b.index, 0, part(0), part(1), part(2))
}
