package hf

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strings"

	"github.com/goddp/goddp/decoder"
	"github.com/goddp/goddp/internal/files"
	"github.com/goddp/goddp/internal/magic"
)

// config holds the keys of config.json that a model depends on. Versions of transformers before 5 have rope_theta and
// rope_scaling in place of rope_parameters.
type config struct {
	Architectures []string        `json:"architectures"`
	Quantization  json.RawMessage `json:"quantization_config"`
	Tied          *bool           `json:"tie_word_embeddings"`
	Vocab         int             `json:"vocab_size"`
	InitStd       float64         `json:"initializer_range"`

	Hidden        int      `json:"hidden_size"`
	Feedforward   int      `json:"intermediate_size"`
	Layers        int      `json:"num_hidden_layers"`
	Heads         int      `json:"num_attention_heads"`
	KeyHeads      int      `json:"num_key_value_heads"`
	HeadSize      int      `json:"head_dim"`
	Activation    string   `json:"hidden_act"`
	MaxPositions  int      `json:"max_position_embeddings"`
	NormEps       float64  `json:"rms_norm_eps"`
	AttentionBias bool     `json:"attention_bias"`
	MLPBias       bool     `json:"mlp_bias"`
	UseWindow     bool     `json:"use_sliding_window"`
	Window        int      `json:"sliding_window"`
	FullLayers    int      `json:"max_window_layers"`
	LayerTypes    []string `json:"layer_types"`
	RopeLayers    []int    `json:"no_rope_layers"` // 1: a layer with rotary positions
	RopeInterval  *int     `json:"no_rope_layer_interval"`
	Theta         float64  `json:"rope_theta"`
	Fraction      float64  `json:"partial_rotary_factor"`
	Scaling       *rope    `json:"rope_scaling"`
	Rope          *rope    `json:"rope_parameters"`

	// GPT-2
	Embed          int     `json:"n_embd"`
	Inner          int     `json:"n_inner"`
	Blocks         int     `json:"n_layer"`
	AttentionHeads int     `json:"n_head"`
	Positions      int     `json:"n_positions"`
	LayerNormEps   float64 `json:"layer_norm_epsilon"`
	GPT2Activation string  `json:"activation_function"`
	ScaleWeights   *bool   `json:"scale_attn_weights"`
	ScaleByLayer   bool    `json:"scale_attn_by_inverse_layer_idx"`
	CrossAttention bool    `json:"add_cross_attention"`
}

type rope struct {
	Type         string  `json:"rope_type"`
	OldType      string  `json:"type"`
	Theta        float64 `json:"rope_theta"`
	Fraction     float64 `json:"partial_rotary_factor"`
	Factor       float64 `json:"factor"`
	First        int     `json:"original_max_position_embeddings"`
	Low          float64 `json:"low_freq_factor"`
	High         float64 `json:"high_freq_factor"`
	BetaFast     float64 `json:"beta_fast"`
	BetaSlow     float64 `json:"beta_slow"`
	Attention    float64 `json:"attention_factor"`
	MScale       float64 `json:"mscale"`
	MScaleAllDim float64 `json:"mscale_all_dim"`
	Truncate     *bool   `json:"truncate"`
}

// architecture is what a class of transformers does without keys in its config.
type architecture struct {
	tied     bool
	headSize int
	change   func(c *config, d *decoder.Config) // nil for GPT-2
}

var architectures = map[string]architecture{
	"LlamaForCausalLM": {change: func(c *config, d *decoder.Config) { d.FeedforwardBias = c.MLPBias }},
	"MistralForCausalLM": {change: func(c *config, d *decoder.Config) {
		d.QKVBias, d.OutBias = false, false
		for i := range d.Layers {
			d.Layers[i].Window = c.Window
		}
	}},
	"Qwen2ForCausalLM": {change: func(c *config, d *decoder.Config) {
		d.QKVBias, d.OutBias = true, false
		setWindows(c, d)
	}},
	"Qwen3ForCausalLM": {headSize: 128, change: func(c *config, d *decoder.Config) {
		d.NormHeads = true
		setWindows(c, d)
	}},
	"SmolLM3ForCausalLM": {tied: true, change: func(c *config, d *decoder.Config) {
		d.FeedforwardBias = c.MLPBias
		every := 4
		if c.RopeInterval != nil {
			every = max(*c.RopeInterval, 1)
		}
		for i := range d.Layers {
			l := &d.Layers[i]
			if l.NoRope = (i+1)%every == 0; i < len(c.RopeLayers) {
				l.NoRope = c.RopeLayers[i] == 0
			}
			if c.UseWindow && l.NoRope && c.LayerTypes == nil || c.UseWindow && c.isWindowed(i) {
				l.Window = c.Window
			}
		}
	}},
	"GPT2LMHeadModel": {tied: true},
}

// isWindowed reports whether layer_types says that layer i attends to a window.
func (c *config) isWindowed(i int) bool {
	return i < len(c.LayerTypes) && c.LayerTypes[i] == "sliding_attention"
}

// setWindows sets the windows of Qwen's layers: by layer_types or, without it, for the layers from max_window_layers on.
func setWindows(c *config, d *decoder.Config) {
	for i := range d.Layers {
		if c.UseWindow && (c.isWindowed(i) || c.LayerTypes == nil && i >= c.FullLayers) {
			d.Layers[i].Window = c.Window
		}
	}
}

// readConfig reads config.json in dir.
func readConfig(dir string) (text []byte, c *config, err error) {
	path := filepath.Join(dir, "config.json")
	if text, err = files.Read(path, 1<<20); err != nil {
		return nil, nil, err
	}
	c = &config{}
	if err := json.Unmarshal(text, c); err != nil {
		if format := magic.Describe(text); format != "" && format != "JSON" {
			err = fmt.Errorf("want JSON, but it is %s", format)
		}
		return nil, nil, fmt.Errorf("%s: %w", path, err)
	}
	return text, c, nil
}

// model makes the model that c describes.
func (c *config) model(recompute bool) (*decoder.Model, error) {
	if len(c.Architectures) != 1 {
		return nil, fmt.Errorf("architectures is %q, want one", c.Architectures)
	}
	a, ok := architectures[c.Architectures[0]]
	if !ok {
		return nil, fmt.Errorf("architecture %s, want one of %s", c.Architectures[0], strings.Join(slices.Sorted(maps.Keys(architectures)), ", "))
	}
	if len(c.Quantization) > 0 && string(c.Quantization) != "null" {
		return nil, fmt.Errorf("quantization_config is %.60s, want a model that is not quantized", c.Quantization)
	}
	if c.Tied != nil {
		a.tied = *c.Tied
	}
	if a.change == nil {
		return c.gpt2(recompute, a.tied)
	}
	if c.Activation != "silu" {
		return nil, fmt.Errorf("hidden_act is %q, want silu", c.Activation)
	}
	d := decoder.Config{
		Vocab: c.Vocab, Hidden: c.Hidden, Feedforward: c.Feedforward, Heads: c.Heads, KeyHeads: c.KeyHeads,
		HeadSize: cmp.Or(c.HeadSize, a.headSize), Layers: make([]decoder.Layer, max(c.Layers, 0)),
		MaxPositions: c.MaxPositions, NormEps: c.NormEps, QKVBias: c.AttentionBias, OutBias: c.AttentionBias,
		Tied: a.tied, InitStd: c.InitStd, Recompute: recompute,
	}
	a.change(c, &d)
	var err error
	if d.Rope, err = c.rope(); err != nil {
		return nil, err
	}
	return decoder.New(d)
}

func (c *config) gpt2(recompute, tied bool) (*decoder.Model, error) {
	switch {
	case !tied:
		return nil, errors.New("tie_word_embeddings is false, want true for GPT-2")
	case c.GPT2Activation != "gelu_new" && c.GPT2Activation != "gelu_pytorch_tanh":
		return nil, fmt.Errorf("activation_function is %q, want gelu_new", c.GPT2Activation)
	case c.ScaleWeights != nil && !*c.ScaleWeights || c.ScaleByLayer || c.CrossAttention:
		return nil, errors.New("scale_attn_weights, scale_attn_by_inverse_layer_idx and add_cross_attention: want true, false and false")
	}
	return decoder.NewGPT2(decoder.GPT2Config{
		Vocab: c.Vocab, Positions: c.Positions, Layers: c.Blocks, Heads: c.AttentionHeads, Hidden: c.Embed,
		Feedforward: c.Inner, NormEps: c.LayerNormEps, Recompute: recompute,
	})
}

// rope returns the rotary positions.
func (c *config) rope() (decoder.Rope, error) {
	r := cmp.Or(c.Rope, c.Scaling, &rope{})
	d := decoder.Rope{
		Theta: cmp.Or(r.Theta, c.Theta), Fraction: cmp.Or(r.Fraction, c.Fraction), Factor: r.Factor, FirstTrained: r.First,
		LowFrequency: r.Low, HighFrequency: r.High, BetaFast: r.BetaFast, BetaSlow: r.BetaSlow, Attention: r.Attention,
		NoTruncate: r.Truncate != nil && !*r.Truncate,
	}
	switch kind := cmp.Or(r.Type, r.OldType); kind {
	case "", "default":
	case "linear":
		d.Scaling = decoder.LinearScaling
	case "llama3":
		d.Scaling = decoder.Llama3Scaling
	case "yarn":
		d.Scaling = decoder.YarnScaling
		if d.Factor == 0 && r.First > 0 {
			d.Factor = float64(c.MaxPositions) / float64(r.First)
		}
		if d.Attention == 0 && r.MScale != 0 && r.MScaleAllDim != 0 {
			scale := func(weight float64) float64 { return max(0.1*weight*math.Log(d.Factor)+1, 1) }
			d.Attention = scale(r.MScale) / scale(r.MScaleAllDim)
		}
	default:
		return d, fmt.Errorf("rotary positions of type %q, want default, linear, llama3 or yarn", kind)
	}
	return d, nil
}
