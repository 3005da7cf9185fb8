package hf

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/goddp/goddp/decoder"
	"github.com/goddp/goddp/internal/files"
	"github.com/goddp/goddp/internal/magic"
)

// config holds the keys of config.json that a model of Llama's family depends on. Versions of transformers before 5 have
// rope_theta and rope_scaling in place of rope_parameters.
type config struct {
	decoder.Config
	LayerCount    int      `json:"num_hidden_layers"`
	Activation    string   `json:"hidden_act"`
	AttentionBias bool     `json:"attention_bias"`
	UseWindow     bool     `json:"use_sliding_window"`
	Window        int      `json:"sliding_window"`
	FullLayers    int      `json:"max_window_layers"`
	LayerTypes    []string `json:"layer_types"`
	RopeLayers    []int    `json:"no_rope_layers"` // 1: a layer with rotary positions
	RopeInterval  int      `json:"no_rope_layer_interval"`
	Theta         float64  `json:"rope_theta"`
	Fraction      float64  `json:"partial_rotary_factor"`
	Scaling       *rope    `json:"rope_scaling"`
	Parameters    *rope    `json:"rope_parameters"`
}

type rope struct {
	decoder.Rope
	Type         string  `json:"rope_type"`
	OldType      string  `json:"type"`
	MScale       float64 `json:"mscale"`
	MScaleAllDim float64 `json:"mscale_all_dim"`
	Truncate     *bool   `json:"truncate"`
}

// gpt2 holds the keys of config.json that a GPT-2 depends on.
type gpt2 struct {
	decoder.GPT2Config
	Activation     string `json:"activation_function"`
	Tied           bool   `json:"tie_word_embeddings"`
	ScaleWeights   bool   `json:"scale_attn_weights"`
	ScaleByLayer   bool   `json:"scale_attn_by_inverse_layer_idx"`
	CrossAttention bool   `json:"add_cross_attention"`
}

// architectures are the classes of transformers, with the functions that make their models from config.json.
var architectures = map[string]func(text []byte, recompute decoder.Recompute) (*decoder.Model, error){
	"GPT2LMHeadModel":  newGPT2,
	"LlamaForCausalLM": family(config{}, func(*config) {}),
	"MistralForCausalLM": family(config{}, func(c *config) {
		c.QKVBias, c.OutBias = false, false
		c.setWindows(true, func(int) bool { return true })
	}),
	"Qwen2ForCausalLM": family(config{}, func(c *config) {
		c.QKVBias, c.OutBias = true, false
		c.setWindows(c.UseWindow, func(i int) bool { return i >= c.FullLayers })
	}),
	"Qwen3ForCausalLM": family(config{Config: decoder.Config{HeadSize: 128}}, func(c *config) {
		c.NormHeads = true
		c.setWindows(c.UseWindow, func(i int) bool { return i >= c.FullLayers })
	}),
	"SmolLM3ForCausalLM": family(config{Config: decoder.Config{Tied: true}, RopeInterval: 4}, func(c *config) {
		for i := range c.Layers {
			if c.Layers[i].NoRope = (i+1)%max(c.RopeInterval, 1) == 0; i < len(c.RopeLayers) {
				c.Layers[i].NoRope = c.RopeLayers[i] == 0
			}
		}
		c.setWindows(c.UseWindow, func(i int) bool { return c.Layers[i].NoRope })
	}),
}

// setWindows sets the windows, if the model uses them: of the layers that layer_types says have one or, without that key, of
// those for which isWindowed returns true.
func (c *config) setWindows(uses bool, isWindowed func(layer int) bool) {
	for i := range c.Layers {
		if uses && (i < len(c.LayerTypes) && c.LayerTypes[i] == "sliding_attention" || c.LayerTypes == nil && isWindowed(i)) {
			c.Layers[i].Window = c.Window
		}
	}
}

// NewModel makes the model that config.json in dir describes, without weights and not placed.
func NewModel(dir string, recompute decoder.Recompute) (*decoder.Model, error) {
	_, m, err := newModel(dir, recompute)
	if err != nil {
		return nil, fmt.Errorf("hf: %w", err)
	}
	return m, nil
}

// newModel reads config.json in dir, and makes the model that it describes.
func newModel(dir string, recompute decoder.Recompute) (text []byte, m *decoder.Model, err error) {
	path := filepath.Join(dir, "config.json")
	if _, absent := os.Stat(filepath.Join(dir, "adapter_config.json")); absent == nil { // transformers reads the adapters, whatever else there is
		return nil, nil, fmt.Errorf("%s: the folder has adapters, want a whole model alone: their base, or what goddp merge makes of both", dir)
	}
	if text, err = files.Read(path, 1<<20); err != nil {
		return nil, nil, err
	}
	var c struct {
		Architectures []string         `json:"architectures"`
		Quantization  *json.RawMessage `json:"quantization_config"`
	}
	if err = json.Unmarshal(text, &c); err == nil {
		switch create := architectures[strings.Join(c.Architectures, ", ")]; {
		case create == nil:
			err = fmt.Errorf("architectures is %q, want one of %s", c.Architectures, strings.Join(slices.Sorted(maps.Keys(architectures)), ", "))
		case c.Quantization != nil:
			err = fmt.Errorf("quantization_config is %.60s, want a model that is not quantized", *c.Quantization)
		default:
			m, err = create(text, recompute)
		}
	} else if format := magic.Describe(text); format != "" && format != "JSON" {
		err = fmt.Errorf("want JSON, but it is %s", format)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", path, err)
	}
	return text, m, nil
}

// family returns the function that makes a model of Llama's family. c has the values of keys that are absent.
func family(c config, change func(*config)) func([]byte, decoder.Recompute) (*decoder.Model, error) {
	return func(text []byte, recompute decoder.Recompute) (*decoder.Model, error) {
		c := c
		if err := json.Unmarshal(text, &c); err != nil {
			return nil, err
		}
		if c.Activation != "silu" {
			return nil, fmt.Errorf("hidden_act is %q, want silu", c.Activation)
		}
		c.Layers = make([]decoder.Layer, max(c.LayerCount, 0))
		c.QKVBias, c.OutBias, c.Recompute = c.AttentionBias, c.AttentionBias, recompute
		change(&c)
		if err := c.setRope(); err != nil {
			return nil, err
		}
		return decoder.New(c.Config)
	}
}

func newGPT2(text []byte, recompute decoder.Recompute) (*decoder.Model, error) {
	c := gpt2{Tied: true, ScaleWeights: true}
	if err := json.Unmarshal(text, &c); err != nil {
		return nil, err
	}
	if c.Activation != "gelu_new" || !c.Tied || !c.ScaleWeights || c.ScaleByLayer || c.CrossAttention {
		return nil, fmt.Errorf("activation_function is %q, tie_word_embeddings %t, scale_attn_weights %t, scale_attn_by_inverse_layer_idx %t and add_cross_attention %t: want gelu_new, true, true, false and false",
			c.Activation, c.Tied, c.ScaleWeights, c.ScaleByLayer, c.CrossAttention)
	}
	c.Recompute = recompute
	return decoder.NewGPT2(c.GPT2Config)
}

// setRope sets the rotary positions.
func (c *config) setRope() error {
	r := cmp.Or(c.Parameters, c.Scaling, &rope{})
	r.Theta, r.Fraction = cmp.Or(r.Theta, c.Theta), cmp.Or(r.Fraction, c.Fraction)
	switch kind := cmp.Or(r.Type, r.OldType); kind {
	case "", "default":
	case "linear":
		r.Scaling = decoder.LinearScaling
	case "llama3":
		r.Scaling = decoder.Llama3Scaling
	case "yarn":
		r.Scaling, r.NoTruncate = decoder.YarnScaling, r.Truncate != nil && !*r.Truncate
		if r.Factor == 0 && r.FirstTrained > 0 {
			r.Factor = float64(c.MaxPositions) / float64(r.FirstTrained)
		}
		if r.Attention == 0 && r.MScale != 0 && r.MScaleAllDim != 0 {
			scale := func(weight float64) float64 { return max(0.1*weight*math.Log(r.Factor)+1, 1) }
			r.Attention = scale(r.MScale) / scale(r.MScaleAllDim)
		}
	default:
		return fmt.Errorf("rotary positions of type %q, want default, linear, llama3 or yarn", kind)
	}
	c.Rope = r.Rope
	return nil
}
