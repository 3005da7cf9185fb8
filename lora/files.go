package lora

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/goddp/goddp/checkpoint"
	"github.com/goddp/goddp/checkpoint/safetensors"
	"github.com/goddp/goddp/internal/files"
	"github.com/goddp/goddp/nn"
)

// The files of PEFT, and what its names start with: the base model is within two wrappers.
const (
	configFile  = "adapter_config.json"
	weightsFile = "adapter_model.safetensors"
	prefix      = "base_model.model."
)

// config is adapter_config.json.
type config struct {
	Type       string   `json:"peft_type"`
	Task       string   `json:"task_type,omitempty"`
	Base       string   `json:"base_model_name_or_path"`
	Rank       int      `json:"r"`
	Alpha      float64  `json:"lora_alpha"`
	Dropout    float64  `json:"lora_dropout"`
	Targets    any      `json:"target_modules"` // names, or a pattern that load does not need
	Bias       string   `json:"bias"`
	Transposed bool     `json:"fan_in_fan_out"`
	Inference  bool     `json:"inference_mode"`
	Whole      []string `json:"modules_to_save"`

	Init      any            `json:"init_lora_weights,omitempty"`
	RSLoRA    bool           `json:"use_rslora"` // Alpha is divided by the root of the rank
	DoRA      bool           `json:"use_dora"`
	Ranks     map[string]any `json:"rank_pattern"`
	AlphasFor map[string]any `json:"alpha_pattern"`
}

// Save writes PEFT's two files to the folder dir, which it makes if necessary. base is the name or the path of the base
// model, which PEFT loads. In a job one rank calls Save, within OnRank of the model of package ddp or ddp/zero. Each file is
// replaced when the new one is complete.
func (a *Adapters) Save(ctx context.Context, dir, base string) error {
	if err := a.save(ctx, dir, base); err != nil {
		return fmt.Errorf("lora: saving adapters: %w", err)
	}
	return nil
}

func (a *Adapters) save(ctx context.Context, dir, base string) error {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	targets := a.o.Targets
	if len(targets) == 0 {
		targets = a.Layers()
	}
	c := config{
		Type: "LORA", Task: "CAUSAL_LM", Base: base, Rank: a.o.Rank, Alpha: a.o.Alpha, Dropout: a.o.Dropout, Bias: "none", Inference: true,
		Targets: targets, Ranks: map[string]any{}, AlphasFor: map[string]any{},
	}
	text, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return err
	}
	if err := checkpoint.SaveWeights(ctx, filepath.Join(dir, weightsFile), a); err != nil {
		return err
	}
	return files.WriteBytes(filepath.Join(dir, configFile), 0o666, append(text, '\n'))
}

// Load adds adapters to m with the values of PEFT's files in the folder dir: see [Add]. It refuses variants of LoRA that
// compute something else. m must be on a device.
func Load(m nn.Model, dir string) (*Adapters, error) {
	a, err := load(m, dir)
	if err != nil {
		return nil, fmt.Errorf("lora: loading adapters: %w", err)
	}
	return a, nil
}

func load(m nn.Model, dir string) (*Adapters, error) {
	file := filepath.Join(dir, configFile)
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var c config
	if err := json.Unmarshal(text, &c); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if err := c.check(); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	names, err := layersOf(filepath.Join(dir, weightsFile))
	if err != nil {
		return nil, err
	}
	o := Options{Rank: c.Rank, Alpha: c.Alpha, Dropout: c.Dropout, Targets: names}
	if c.RSLoRA {
		o.Alpha *= math.Sqrt(float64(c.Rank))
	}
	layers, err := o.choose(m)
	if err != nil {
		return nil, err
	}
	a, err := add(m, layers, o)
	if err != nil {
		return nil, err
	}
	report, err := checkpoint.LoadWeights(filepath.Join(dir, weightsFile), a)
	if err == nil {
		err = report.Complete()
	}
	if err != nil {
		a.remove()
		return nil, err
	}
	return a, nil
}

// check returns an error if the adapters are more than a product of two matrices for each layer.
func (c *config) check() error {
	switch {
	case c.Type != "LORA":
		return fmt.Errorf("peft_type %q: want LORA", c.Type)
	case c.Rank < 1:
		return fmt.Errorf("r is %d: want at least 1", c.Rank)
	case c.changesBase():
		return fmt.Errorf("init_lora_weights is %q, which changes the base model: want adapters that PEFT has converted to plain LoRA", c.Init)
	case c.DoRA:
		return errors.New("use_dora is true: want plain LoRA")
	case c.Bias != "" && c.Bias != "none":
		return fmt.Errorf("bias is %q: want none", c.Bias)
	case len(c.Whole) > 0:
		return fmt.Errorf("modules_to_save is %q: want none", c.Whole)
	case len(c.Ranks)+len(c.AlphasFor) > 0:
		return errors.New("rank_pattern or alpha_pattern is not empty: want one rank and one alpha for all layers")
	}
	return nil
}

// changesBase reports whether PEFT has changed the base model's weights when it made the adapters.
func (c *config) changesBase() bool {
	kind, _ := c.Init.(string)
	return slices.ContainsFunc([]string{"pissa", "olora", "corda", "loftq"}, func(p string) bool { return strings.HasPrefix(strings.ToLower(kind), p) })
}

// layersOf returns the names of the layers whose adapters a file has.
func layersOf(file string) ([]string, error) {
	f, err := safetensors.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var names []string
	for name := range f.Tensors() {
		layer, isA := strings.CutSuffix(name, ".lora_A.weight")
		layer, isWrapped := strings.CutPrefix(layer, prefix)
		if isA && isWrapped {
			names = append(names, layer)
		}
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("%s: no tensor is called %s….lora_A.weight", file, prefix)
	}
	slices.Sort(names)
	return names, nil
}
