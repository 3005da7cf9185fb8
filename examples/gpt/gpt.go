package main

import (
	"fmt"
	"math"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/nn"
)

// config holds the sizes and options of a model.
type config struct {
	vocab, context, layers, heads, embed int
	checkpoint                           bool // the backward pass computes each block again
}

// sizes are the published sizes of GPT-2.
var sizes = map[string]config{
	"124M":  {vocab: 50257, context: 1024, layers: 12, heads: 12, embed: 768},
	"355M":  {vocab: 50257, context: 1024, layers: 24, heads: 16, embed: 1024},
	"774M":  {vocab: 50257, context: 1024, layers: 36, heads: 20, embed: 1280},
	"1558M": {vocab: 50257, context: 1024, layers: 48, heads: 25, embed: 1600},
}

func (c config) check() error {
	if min(c.vocab, c.context, c.layers, c.heads, c.embed) < 1 || c.embed%c.heads != 0 {
		return fmt.Errorf("vocabulary %d, context %d, %d layers and %d heads of a width of %d: want at least 1 of each, and a width that is a multiple of the heads",
			c.vocab, c.context, c.layers, c.heads, c.embed)
	}
	return nil
}

// gpt is GPT-2 (Radford et al., 2019). Its parameters have the names of Hugging Face's GPT-2. The matrices
// of Linear layers are [out in], as in PyTorch; Hugging Face's (c_attn, c_proj, c_fc) are the transposes.
// The last layer uses the matrix of wte.
type gpt struct {
	nn.Container
	tokens, positions *nn.EmbeddingLayer
	blocks            []*block
	norm              *nn.NormLayer
	checkpoint        bool
}

func newGPT(c config) *gpt {
	g := &gpt{checkpoint: c.checkpoint}
	g.tokens = nn.Add(&g.Container, "transformer.wte", embedding(c.vocab, c.embed))
	g.positions = nn.Add(&g.Container, "transformer.wpe", embedding(c.context, c.embed))
	for i := range c.layers {
		g.blocks = append(g.blocks, nn.Add(&g.Container, fmt.Sprint("transformer.h.", i), newBlock(c)))
	}
	g.norm = nn.Add(&g.Container, "transformer.ln_f", nn.LayerNorm(c.embed, nil))
	return g
}

// Forward returns the logits [b t vocab] of the token that follows each of ids, int64 [b t].
func (g *gpt) Forward(ids *autograd.Variable) *autograd.Variable {
	return autograd.Linear(g.hidden(ids), g.tokens.Weight.Var(), nil)
}

// hidden returns what the last layer makes logits of: [b t embed].
func (g *gpt) hidden(ids *autograd.Variable) *autograd.Variable {
	x, h := g.tokens.Forward(ids), autograd.Slice(g.positions.Weight.Var(), 0, 0, ids.Shape()[1], 1)
	if g.checkpoint {
		x = autograd.Add(x, h)
		for _, b := range g.blocks {
			x = autograd.Checkpoint(b.Forward, x)
		}
		x = g.norm.Forward(x)
	} else {
		for i, b := range g.blocks {
			sum, normed := b.norm1.ForwardAdd(x, h)
			if i == 0 {
				x.Free()
			} else {
				h.Free()
			}
			x, h = b.apply(sum, normed)
		}
		_, x = g.norm.ForwardAdd(x, h)
		h.Free()
	}
	return x
}

// loss returns the mean cross-entropy of next, the tokens that follow ids; both are int64 [b t].
func (g *gpt) loss(ids, next *autograd.Variable) *autograd.Variable {
	return autograd.LinearCrossEntropyLoss(g.hidden(ids), g.tokens.Weight.Var(), next, &autograd.LinearLossOptions{Overwrite: true})
}

// block is a transformer block: attention, then a network of two layers, each added to its input.
type block struct {
	nn.Container
	heads            int
	norm1, norm2     *nn.NormLayer
	attend, attended *nn.LinearLayer
	widen, narrow    *nn.LinearLayer
}

func newBlock(c config) *block {
	b := &block{heads: c.heads}
	last := 0.02 / math.Sqrt(2*float64(c.layers)) // std of the layers whose output is added to the input
	b.norm1 = nn.Add(&b.Container, "ln_1", nn.LayerNorm(c.embed, nil))
	b.attend = nn.Add(&b.Container, "attn.c_attn", linear(c.embed, 3*c.embed, 0.02))
	b.attended = nn.Add(&b.Container, "attn.c_proj", linear(c.embed, c.embed, last))
	b.norm2 = nn.Add(&b.Container, "ln_2", nn.LayerNorm(c.embed, nil))
	b.widen = nn.Add(&b.Container, "mlp.c_fc", linear(c.embed, 4*c.embed, 0.02))
	b.narrow = nn.Add(&b.Container, "mlp.c_proj", linear(4*c.embed, c.embed, last))
	return b
}

// Forward applies the block to x [b t embed].
func (b *block) Forward(x *autograd.Variable) *autograd.Variable {
	return autograd.Add(b.apply(x, b.norm1.Forward(x)))
}

// apply applies the block to x, given norm1 of x. It returns the two terms of the result: the normalisation
// that follows adds them in its own pass. Their gradients do not read them, so that one that no other layer reads is
// freed early.
func (b *block) apply(x, normed *autograd.Variable) (sum, h *autograd.Variable) {
	a := autograd.PackedAttention(b.attend.Forward(normed), b.heads, b.heads, &autograd.AttentionOptions{Causal: true})
	attended := b.attended.Forward(a)
	sum, normed = b.norm2.ForwardAdd(x, attended)
	attended.Free()
	return sum, nn.FeedForward(normed, b.widen, nn.GELUTanh(), b.narrow)
}

// embedding and linear make layers with GPT-2's initial values.
func embedding(n, d int) *nn.EmbeddingLayer {
	l := nn.Embedding(n, d, nil)
	l.Weight = nn.NewUnplacedParameter("weight", nn.Normal(0, 0.02), device.Float32, n, d)
	return l
}

func linear(in, out int, std float64) *nn.LinearLayer {
	l := nn.Linear(in, out, nil)
	l.Weight = nn.NewUnplacedParameter("weight", nn.Normal(0, std), device.Float32, out, in)
	l.Bias = nn.NewUnplacedParameter("bias", nn.Constant(0), device.Float32, out)
	return l
}
