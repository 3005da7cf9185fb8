package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/checkpoint/safetensors"
	"github.com/goddp/goddp/decoder"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/gguf"
	"github.com/goddp/goddp/hf"
	"github.com/goddp/goddp/internal/testkit/cputest"
	"github.com/goddp/goddp/internal/testkit/must"
	"github.com/goddp/goddp/nn"
)

// modelFolder makes a folder of a small model.
func modelFolder(t *testing.T, dev device.Device) string {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"config.json": `{
			"architectures": ["GPT2LMHeadModel"], "activation_function": "gelu_new", "vocab_size": 260, "n_positions": 16,
			"n_layer": 1, "n_head": 2, "n_embd": 32}`,
		"tokenizer.json": `{"pre_tokenizer": {"type": "ByteLevel"}, "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}}`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	m := must.New(decoder.NewGPT2(decoder.GPT2Config{Vocab: 260, Positions: 16, Layers: 1, Heads: 2, Hidden: 32}))
	if err := nn.Place(m, dev, 1); err != nil {
		t.Fatal(err)
	}
	tensors := map[string]safetensors.Source{}
	for _, p := range m.Parameters() {
		v := p.Var()
		if strings.Contains(p.Name(), ".c_") && strings.HasSuffix(p.Name(), ".weight") { // matrices of GPT-2's files are transposes
			v = autograd.Transpose(v, 0, 1)
		}
		tensors[p.Name()] = safetensors.Bytes(device.Float32, v.Shape(), must.New(v.Bytes(t.Context())))
	}
	var weights bytes.Buffer
	if err := safetensors.Write(&weights, tensors, nil); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "model.safetensors"), weights.Bytes(), 0o666); err != nil {
		t.Fatal(err)
	}
	return dir
}

// gguf writes a folder whose weights are only in its files, with the same bytes as of a loaded model.
func TestGGUF(t *testing.T) {
	dev := cputest.New(t)
	dir := modelFolder(t, dev)
	f := must.New(hf.Load(dir, dev, nil))
	want := filepath.Join(t.TempDir(), "want.gguf")
	if err := gguf.Write(t.Context(), want, f.Model, dir, gguf.Q8_0); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "model.gguf")
	if code, out, stderr := goddp(t, "gguf", dir, path, "--type", "q8_0"); code != 0 {
		t.Fatalf("exit code %d: %s%s", code, out, stderr)
	}
	if !bytes.Equal(must.New(os.ReadFile(path)), must.New(os.ReadFile(want))) {
		t.Error("the file differs from that of a loaded model")
	}
	half := t.TempDir()
	f = must.New(hf.Load(dir, dev, &hf.LoadOptions{DType: device.Float16}))
	if err := errors.Join(f.Save(t.Context(), half, nil), gguf.Write(t.Context(), want, f.Model, half, gguf.F16)); err != nil {
		t.Fatal(err)
	}
	if code, _, stderr := goddp(t, "gguf", half, path); code != 0 || !bytes.Equal(must.New(os.ReadFile(path)), must.New(os.ReadFile(want))) {
		t.Errorf("exit code %d, %s: want the type of a model in float16", code, stderr)
	}
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"gguf", dir}, 2, "goddp gguf: want a folder and a file, got 1 arguments"},
		{[]string{"gguf", dir, path, "--type", "q4_k"}, 1, `goddp gguf: type "q4_k", want f32, f16, bf16 or q8_0`},
		{[]string{"gguf", t.TempDir(), path}, 1, "config.json: no such file"},
	} {
		if code, _, stderr := goddp(t, c.args...); code != c.code || !strings.Contains(stderr, c.want) {
			t.Errorf("%q: exit code %d, %s, want %d, %q", c.args, code, stderr, c.code, c.want)
		}
	}
}
