package hf_test

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp"
	"github.com/goddp/goddp/ddp/zero"
	"github.com/goddp/goddp/decoder"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/hf"
	"github.com/goddp/goddp/internal/testkit/commtest"
	"github.com/goddp/goddp/internal/testkit/cputest"
	"github.com/goddp/goddp/internal/testkit/must"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

// In stage 3 of package ddp/zero a folder is loaded and saved and no rank ever holds the whole model in Float32,
// and the files are the same.
func TestFolderByParts(t *testing.T) {
	const config = `{"architectures": ["LlamaForCausalLM"], "vocab_size": 64, "hidden_size": 32, "intermediate_size": 96, "num_hidden_layers": 16,
		"num_attention_heads": 4, "num_key_value_heads": 2, "hidden_act": "silu", "torch_dtype": "bfloat16"}`
	m := must.New(decoder.New(decoder.Config{Vocab: 64, Hidden: 32, Feedforward: 96, Heads: 4, KeyHeads: 2, Layers: make([]decoder.Layer, 16)}))
	whole := 0
	for _, p := range m.Parameters() {
		whole += 4 * p.Shape().Len()
	}
	dir, saved := t.TempDir(), t.TempDir()
	write(t, dir, "config.json", config)
	writeModel(t, cputest.New(t), m, device.BFloat16, filepath.Join(dir, "model.safetensors"))
	commtest.OnRanks(t, 4, nil, func(pg *comm.ProcessGroup) error {
		f := must.New(hf.Open(dir, &hf.LoadOptions{DType: device.BFloat16, Masters: true}))
		defer f.Close()
		sgd := func(params []*nn.Parameter) (*optim.SGD, error) {
			return optim.NewSGD(params, &optim.SGDOptions{LR: 1, MasterWeights: true})
		}
		model, _, err := zero.New(f.Model, pg, sgd, &zero.Options{Options: ddp.Options{BucketCapMB: 0.02}, Stage: 3})
		if err != nil {
			return err
		}
		if err := model.OnRank(2, func() error { return f.Save(t.Context(), saved, nil) }); err != nil {
			return err
		}
		if peak := pg.Device().Memory().Peak; peak > int64(whole)*3/4 {
			return fmt.Errorf("%d bytes were in use, the whole model has %d", peak, whole)
		}
		return nil
	})
	if got, want := content(t, saved), content(t, dir); !equal(got, want) {
		t.Errorf("saved %q, want %q", got, want)
	}
}
