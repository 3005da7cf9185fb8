package gguf

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/goddp/goddp/decoder"
	"github.com/goddp/goddp/device"
)

// describe sets the keys of a model.
func (f *file) describe(m *decoder.Model) error {
	c, ok := m.Config().(decoder.Config)
	if !ok {
		c := m.Config().(decoder.GPT2Config)
		f.sizes("gpt2", c.Vocab, c.Positions, c.Hidden, c.Layers, c.Feedforward, c.Heads)
		f.set("gpt2.attention.layer_norm_epsilon", c.NormEps)
		return nil
	}
	name, err := architecture(c)
	if err != nil {
		return err
	}
	if name == "llama" || name == "smollm3" {
		f.heads = [2]int{c.Heads, c.KeyHeads}
	}
	f.sizes(name, c.Vocab, c.MaxPositions, c.Hidden, len(c.Layers), c.Feedforward, c.Heads)
	f.set(name+".attention.head_count_kv", c.KeyHeads)
	f.set(name+".attention.key_length", c.HeadSize)
	f.set(name+".attention.value_length", c.HeadSize)
	f.set(name+".attention.layer_norm_rms_epsilon", c.NormEps)
	otherWindow := func(l decoder.Layer) bool { return l.Window != c.Layers[0].Window }
	if len(c.Layers) > 0 && c.Layers[0].Window > 0 && !slices.ContainsFunc(c.Layers, otherWindow) {
		f.set(name+".attention.sliding_window", c.Layers[0].Window)
	}
	return f.describeRope(name, c.Rope, c.HeadSize)
}

// architecture returns the name of llama.cpp's architecture that computes the same as a model.
func architecture(c decoder.Config) (string, error) {
	hasBias, rotatesAll, rotatesThree := c.QKVBias || c.OutBias || c.FeedforwardBias, true, true // of four layers
	for i, l := range c.Layers {
		rotatesAll = rotatesAll && !l.NoRope
		rotatesThree = rotatesThree && l.NoRope == (i%4 == 3)
	}
	switch {
	case rotatesAll && c.NormHeads && !hasBias:
		return "qwen3", nil
	case rotatesThree && !rotatesAll && !c.NormHeads && !hasBias:
		return "smollm3", nil
	case !rotatesAll || c.NormHeads:
		return "", errors.New("llama.cpp has no such architecture: heads may be normalized, or every fourth layer be without rotary positions, in a model without biases")
	case c.QKVBias && !c.OutBias && !c.FeedforwardBias:
		return "qwen2", nil
	}
	return "llama", nil
}

// sizes sets the keys that all architectures have.
func (f *file) sizes(name string, vocab, positions, hidden, layers, feedforward, heads int) {
	f.vocab = vocab
	f.set("general.architecture", name)
	f.set(name+".vocab_size", vocab)
	f.set(name+".context_length", positions)
	f.set(name+".embedding_length", hidden)
	f.set(name+".block_count", layers)
	f.set(name+".feed_forward_length", feedforward)
	f.set(name+".attention.head_count", heads)
}

// describeRope sets the keys of rotary positions. The factors of Llama 3's scaling are a tensor.
func (f *file) describeRope(name string, r decoder.Rope, size int) error {
	if r.Fraction != 0 && r.Fraction != 1 {
		return fmt.Errorf("%v of each head has rotary positions, want 1 for llama.cpp's architecture %s", r.Fraction, name)
	}
	frequencies, scale, err := r.Frequencies(size)
	if err != nil {
		return err
	}
	f.set(name+".rope.dimension_count", size)
	f.set(name+".rope.freq_base", r.Theta)
	switch r.Scaling {
	case decoder.LinearScaling:
		f.set(name+".rope.scaling.type", "linear")
		f.set(name+".rope.scaling.factor", r.Factor)
	case decoder.YarnScaling:
		if r.NoTruncate {
			return errors.New("yarn scaling without truncation of its ramp, which llama.cpp always truncates")
		}
		f.set(name+".rope.scaling.type", "yarn")
		f.set(name+".rope.scaling.factor", r.Factor)
		f.set(name+".rope.scaling.original_context_length", r.FirstTrained)
		f.set(name+".rope.scaling.attn_factor", float64(scale)/(0.1*math.Log(r.Factor)+1)) // relative to the usual one
		f.set(name+".rope.scaling.yarn_beta_fast", cmp.Or(r.BetaFast, 32))
		f.set(name+".rope.scaling.yarn_beta_slow", cmp.Or(r.BetaSlow, 1))
	case decoder.Llama3Scaling:
		if name != "llama" {
			return fmt.Errorf("llama3 scaling of rotary positions, want linear or yarn for llama.cpp's architecture %s", name)
		}
		plain, _, err := decoder.Rope{Theta: r.Theta}.Frequencies(size)
		if err != nil {
			return err
		}
		for i := range plain {
			plain[i] /= frequencies[i]
		}
		f.tensors = append(f.tensors, tensor{name: "rope_freqs.weight", kind: F32, shape: device.Shape{len(plain)}, values: plain})
	}
	return nil
}

// names replaces the names of parameters by llama.cpp's.
var names = strings.NewReplacer(
	"transformer.wte", "token_embd", "transformer.wpe", "position_embd", "transformer.h.", "blk.", "transformer.ln_f", "output_norm",
	"ln_1", "attn_norm", "ln_2", "ffn_norm", "attn.c_attn", "attn_qkv", "attn.c_proj", "attn_output",
	"mlp.c_fc", "ffn_up", "mlp.c_proj", "ffn_down",

	"model.embed_tokens", "token_embd", "model.layers", "blk", "model.norm", "output_norm", "lm_head", "output",
	"input_layernorm", "attn_norm", "post_attention_layernorm", "ffn_norm",
	"self_attn.o_proj", "attn_output", "self_attn.", "attn_", "mlp.", "ffn_", "_proj", "",
)

// addTensors adds the parameters, whose matrices become kind. As in the files of llama.cpp's converter, vectors and the
// embeddings of positions are F32, and matrices whose rows are not whole blocks are F16.
func (f *file) addTensors(m *decoder.Model, kind Type) error {
	for _, p := range m.Parameters() {
		if strings.Contains(p.Name(), ".lora_") {
			return fmt.Errorf("parameter %s is an adapter: merge the adapters first", p.Name())
		}
		t := tensor{name: names.Replace(p.Name()), kind: kind, shape: p.Shape(), p: p}
		switch {
		case len(t.shape) == 1 || t.name == "position_embd.weight":
			t.kind = F32
		case t.shape[1]%formats[kind].elements != 0:
			t.kind = F16
		}
		switch {
		case strings.Contains(t.name, ".attn_q."):
			t.heads = f.heads[0]
		case strings.Contains(t.name, ".attn_k."):
			t.heads = f.heads[1]
		}
		f.tensors = append(f.tensors, t)
	}
	return nil
}
