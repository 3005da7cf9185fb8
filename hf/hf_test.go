package hf_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/checkpoint/safetensors"
	"github.com/goddp/goddp/decoder"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/hf"
	"github.com/goddp/goddp/internal/testkit/cputest"
	"github.com/goddp/goddp/internal/testkit/must"
	"github.com/goddp/goddp/lora"
	"github.com/goddp/goddp/nn"
)

// small is the config.json of a small model, with a key that no program knows.
const small = `{
  "architectures": ["LlamaForCausalLM"], "vocab_size": 11, "hidden_size": 8, "intermediate_size": 12,
  "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "hidden_act": "silu", "torch_dtype": "float32",
  "mystery": [1, {"of": "config.json"}]
}
`

// newFolder returns a folder of a small model with random weights of type dt, and its tensors.
func newFolder(t *testing.T, dev device.Device, dt device.DType) (dir string, tensors map[string]safetensors.Source) {
	m := must.New(decoder.New(decoder.Config{Vocab: 11, Hidden: 8, Feedforward: 12, Heads: 2, KeyHeads: 1, Layers: make([]decoder.Layer, 2)}))
	dir = t.TempDir()
	write(t, dir, "config.json", strings.Replace(small, "float32", dt.String(), 1))
	return dir, writeModel(t, dev, m, dt, filepath.Join(dir, "model.safetensors"))
}

// writeModel writes a model with random weights of type dt, and returns its tensors.
func writeModel(t *testing.T, dev device.Device, m nn.Model, dt device.DType, path string) (tensors map[string]safetensors.Source) {
	if err := errors.Join(nn.Cast(m, dt, nil), nn.Place(m, dev, 1)); err != nil {
		t.Fatal(err)
	}
	tensors = map[string]safetensors.Source{}
	for name, v := range nn.State(m) {
		tensors[name] = safetensors.Bytes(dt, v.Shape(), must.New(v.Bytes(t.Context())))
	}
	writeTensors(t, path, tensors)
	return tensors
}

func write(t *testing.T, dir, name, content string) {
	if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o666); err != nil {
		t.Fatal(err)
	}
}

func writeTensors(t *testing.T, path string, tensors map[string]safetensors.Source) {
	var out bytes.Buffer
	if err := safetensors.Write(&out, tensors, map[string]string{"format": "pt"}); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Dir(path), filepath.Base(path), out.String())
}

// content returns all files of a folder by name.
func content(t *testing.T, dir string) map[string]string {
	all := map[string]string{}
	for _, e := range must.New(os.ReadDir(dir)) {
		all[e.Name()] = string(must.New(os.ReadFile(filepath.Join(dir, e.Name()))))
	}
	return all
}

func save(t *testing.T, f *hf.Folder, dir string, opts *hf.SaveOptions) map[string]string {
	if err := f.Save(t.Context(), dir, opts); err != nil {
		t.Fatal(err)
	}
	return content(t, dir)
}

// A folder in any type and any number of files is the same after it was loaded and saved, in the type of its files.
func TestRoundTrip(t *testing.T) {
	dev := cputest.New(t)
	for _, dt := range []device.DType{device.Float32, device.Float16, device.BFloat16} {
		dir, _ := newFolder(t, dev, dt)
		for _, name := range []string{"generation_config.json", "tokenizer.json", "tokenizer_config.json", "merges.txt"} {
			write(t, dir, name, "the content of "+name)
		}
		want := content(t, dir)
		write(t, dir, "notes.txt", "not a part of the model")
		f := must.New(hf.Load(dir, dev, &hf.LoadOptions{DType: dt}))
		saved := filepath.Join(t.TempDir(), "a", "folder")
		if got := save(t, f, saved, nil); !equal(got, want) {
			t.Errorf("%v: saved %q, want %q", dt, got, want)
		}
		shards := save(t, f, saved, &hf.SaveOptions{ShardSize: 1000})
		names := slices.DeleteFunc(must.New(filepath.Glob(filepath.Join(saved, "model*"))), func(path string) bool { return strings.HasSuffix(path, "index.json") })
		if len(names) < 3 || !strings.HasSuffix(names[0], fmt.Sprintf("model-00001-of-%05d.safetensors", len(names))) {
			t.Errorf("%v: the shards are %q", dt, names)
		}
		index := shards["model.safetensors.index.json"]
		if total := fmt.Sprintf(`"total_size": %d`, 1176*dt.Size()); !strings.Contains(index, total) {
			t.Errorf("the index is %s, want %s", index, total)
		}
		again := must.New(hf.Load(saved, dev, &hf.LoadOptions{DType: dt}))
		if got := save(t, again, t.TempDir(), nil); !equal(got, shards) {
			t.Errorf("%v: shards were saved as %q, want %q", dt, got, shards)
		}
		if got := save(t, again, saved, &hf.SaveOptions{ShardSize: 1 << 30}); !equal(got, want) {
			t.Errorf("%v: shards were joined to %q, want %q", dt, got, want)
		}
	}
}

func equal(a, b map[string]string) bool {
	for name := range b {
		if a[name] != b[name] {
			return false
		}
	}
	return len(a) == len(b)
}

// A folder of 16-bit weights is exact in Float32. Saved in that type, config.json says so.
func TestConversion(t *testing.T) {
	dev := cputest.New(t)
	for _, dt := range []device.DType{device.Float16, device.BFloat16} {
		dir, _ := newFolder(t, dev, dt)
		wide := must.New(hf.Load(dir, dev, nil))
		narrow := must.New(hf.Load(dir, dev, &hf.LoadOptions{DType: dt}))
		for name, v := range nn.State(wide.Model) {
			got, want := must.New(v.Read(t.Context())), must.New(nn.State(narrow.Model)[name].Read(t.Context()))
			if v.DType() != device.Float32 || !slices.Equal(got, want) {
				t.Errorf("%s is %v %v, want %v", name, v.DType(), got, want)
			}
		}
		if got := save(t, wide, t.TempDir(), nil)["config.json"]; got != small {
			t.Errorf("config.json is %s, want %s", got, small)
		}
	}
}

// The files of a model without its head have other names, and some old files have tensors that are no parameters. Weights
// of the logits that are tied may be in a file.
func TestOldNames(t *testing.T) {
	dev := cputest.New(t)
	dir, tensors := newFolder(t, dev, device.Float32)
	want := nn.State(must.New(hf.Load(dir, dev, nil)).Model)
	write(t, dir, "config.json", strings.Replace(small, `"mystery"`, `"tie_word_embeddings": true, "mystery"`, 1))
	names := map[string]safetensors.Source{"layers.0.self_attn.rotary_emb.inv_freq": tensors["model.norm.weight"]}
	for name, s := range tensors {
		names[strings.TrimPrefix(name, "model.")] = s
	}
	names["lm_head.weight"] = names["embed_tokens.weight"]
	writeTensors(t, filepath.Join(dir, "model.safetensors"), names)
	f := must.New(hf.Load(dir, dev, nil))
	for name, v := range nn.State(f.Model) {
		if !slices.Equal(must.New(v.Read(t.Context())), must.New(want[name].Read(t.Context()))) {
			t.Errorf("%s has other values", name)
		}
	}
	file := save(t, f, t.TempDir(), nil)["model.safetensors"]
	saved := must.New(safetensors.NewFile(strings.NewReader(file), int64(len(file)))).Tensors()
	if _, ok := saved["embed_tokens.weight"]; !ok || len(saved) != len(want)-1 {
		t.Errorf("saved %v, want the names that the parameters had in the file", saved)
	}
}

// Load says in one line what is wrong with a folder.
func TestErrors(t *testing.T) {
	dev := cputest.New(t)
	rows := safetensors.Bytes(device.Float32, device.Shape{3}, make([]byte, 12))
	config := func(old, new string) func(string, map[string]safetensors.Source) {
		return func(dir string, _ map[string]safetensors.Source) {
			if !strings.Contains(small, old) {
				t.Fatalf("no %s in the config", old)
			}
			write(t, dir, "config.json", strings.Replace(small, old, new, 1))
		}
	}
	rewritten := func(change func(map[string]safetensors.Source)) func(string, map[string]safetensors.Source) {
		return func(dir string, all map[string]safetensors.Source) {
			change(all)
			writeTensors(t, filepath.Join(dir, "model.safetensors"), all)
		}
	}
	file := func(name, text string) func(string, map[string]safetensors.Source) {
		return func(dir string, _ map[string]safetensors.Source) {
			os.Remove(filepath.Join(dir, "model.safetensors"))
			write(t, dir, name, text)
		}
	}
	lfs := "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
	for name, c := range map[string]struct {
		change func(dir string, tensors map[string]safetensors.Source)
		want   string
	}{
		"no config": {func(dir string, _ map[string]safetensors.Source) { os.Remove(filepath.Join(dir, "config.json")) }, "config.json: no such file"},
		"adapters": {func(dir string, _ map[string]safetensors.Source) {
			write(t, dir, "adapter_config.json", "{}")
		}, "the folder has adapters, want a whole model alone"},
		"LFS config":     {file("config.json", lfs), "config.json: want JSON, but it is a git-lfs pointer"},
		"HTML config":    {file("config.json", "<!DOCTYPE html><html>"), "config.json: want JSON, but it is an HTML page"},
		"bad config":     {config(`11`, `"many"`), "config.json: json: cannot unmarshal string into Go struct field config.Config.vocab_size"},
		"architecture":   {config("LlamaForCausalLM", "BertModel"), `architectures is ["BertModel"], want one of GPT2LMHeadModel, LlamaForCausalLM, MistralForCausalLM`},
		"no heads":       {config(`"num_attention_heads": 2,`, ""), "0 heads of size 0"},
		"activation":     {config("silu", "relu"), `hidden_act is "relu", want silu`},
		"quantized":      {config(`"mystery"`, `"quantization_config": {"bits": 4}, "mystery"`), `quantization_config is {"bits": 4}`},
		"rope":           {config(`"mystery"`, `"rope_scaling": {"type": "dynamic", "factor": 2}, "mystery"`), `rotary positions of type "dynamic", want default, linear, llama3 or yarn`},
		"no factor":      {config(`"mystery"`, `"rope_scaling": {"type": "linear"}, "mystery"`), "scaled by 0, want a positive Factor"},
		"missing":        {rewritten(func(all map[string]safetensors.Source) { delete(all, "model.norm.weight") }), `it lacks ["model.norm.weight"]`},
		"unexpected":     {rewritten(func(all map[string]safetensors.Source) { all["model.layers.2.more"] = rows }), `the module has no ["model.layers.2.more"]`},
		"shape":          {rewritten(func(all map[string]safetensors.Source) { all["model.norm.weight"] = rows }), `"model.norm.weight" is F32[3] in the state and float32[8] in the module`},
		"type":           {rewritten(func(all map[string]safetensors.Source) { all["model.norm.weight"] = float8(8) }), `"model.norm.weight" is F8_E4M3[8] in the state`},
		"no weights":     {func(dir string, _ map[string]safetensors.Source) { os.Remove(filepath.Join(dir, "model.safetensors")) }, "has neither model.safetensors nor model.safetensors.index.json"},
		"pickle":         {file("pytorch_model.bin", "PK"), "but pytorch_model.bin: save the model with transformers again"},
		"LFS weights":    {file("model.safetensors", lfs), "model.safetensors: want a safetensors file, but it is a git-lfs pointer"},
		"HTML weights":   {file("model.safetensors", "<html>"+strings.Repeat(" ", 99)), "model.safetensors: want a safetensors file, but it is an HTML page"},
		"LFS index":      {file("model.safetensors.index.json", lfs), "want an index of safetensors files, but it is a git-lfs pointer"},
		"missing shards": {file("model.safetensors.index.json", `{"weight_map": {"a": "model-00001-of-00002.safetensors"}}`), "model.safetensors.index.json: a file that the index names is missing: safetensors: open"},
		"tied differ": {func(dir string, all map[string]safetensors.Source) {
			config(`"mystery"`, `"tie_word_embeddings": true, "mystery"`)(dir, all)
		}, "tie_word_embeddings is true, but model.embed_tokens.weight and lm_head.weight differ"},
	} {
		dir, tensors := newFolder(t, dev, device.Float32)
		c.change(dir, tensors)
		_, err := hf.Load(dir, dev, nil)
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Count(err.Error(), "\n") > 0 || !strings.Contains(err.Error(), dir) {
			t.Errorf("%s: the error is %v, want %q, and the folder", name, err, c.want)
		}
	}
}

// float8 returns a tensor of a type that no device has.
func float8(n int) safetensors.Source {
	return safetensors.Source{Format: "F8_E4M3", Shape: device.Shape{n}, Write: func(w io.Writer) error {
		_, err := w.Write(make([]byte, n))
		return err
	}}
}

// A model with adapters is saved after they are merged.
func TestAdapters(t *testing.T) {
	dev := cputest.New(t)
	dir, _ := newFolder(t, dev, device.Float32)
	f := must.New(hf.Load(dir, dev, nil))
	adapters := must.New(lora.Add(f.Model, &lora.Options{Targets: []string{"q_proj", "lm_head"}}))
	ids := autograd.FromSlice(dev, []int64{1, 2, 3, 4}, 2, 2)
	if err := f.Model.Loss(ids, ids, nil).Backward(nil); err != nil {
		t.Fatal(err)
	}
	for _, p := range adapters.Parameters() {
		if p.Grad() == nil {
			t.Errorf("%s has no gradient", p.Name())
		}
	}
	if err := f.Save(t.Context(), t.TempDir(), nil); err == nil || !strings.Contains(err.Error(), "q_proj.lora_A.weight was added") {
		t.Errorf("Save returned %v", err)
	}
	if err := adapters.Merge(); err != nil {
		t.Fatal(err)
	}
	want := content(t, dir)
	write(t, dir, "adapter_config.json", "of a run before")
	write(t, dir, "adapter_model.safetensors", "of a run before")
	if got := save(t, f, dir, nil); !equal(got, want) {
		t.Errorf("saved %q, want the same as before, because the adapters are not trained, and no other adapters", got)
	}
}

// A loaded model trains: its parameters require gradients.
func TestLoadedModelTrains(t *testing.T) {
	dev := cputest.New(t)
	dir, _ := newFolder(t, dev, device.Float32)
	f := must.New(hf.Load(dir, dev, nil))
	ids := autograd.FromSlice(dev, []int64{1, 2, 3, 4}, 2, 2)
	if err := f.Model.Loss(ids, ids, nil).Backward(nil); err != nil {
		t.Fatal(err)
	}
	for _, p := range f.Model.Parameters() {
		if p.Grad() == nil {
			t.Errorf("%s has no gradient", p.Name())
		}
	}
}
