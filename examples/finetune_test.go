package examples

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/goddp/goddp/checkpoint"
	"github.com/goddp/goddp/checkpoint/safetensors"
	"github.com/goddp/goddp/decoder"
	"github.com/goddp/goddp/device/cpu"
	"github.com/goddp/goddp/internal/testkit"
	"github.com/goddp/goddp/internal/testkit/must"
	"github.com/goddp/goddp/nn"
)

// template writes chats as Llama 3's does, with the special tokens of the tokenizer of this test.
const template = `{{ bos_token }}{% for m in messages %}{{ m.role }}:
{{ m.content }}{{ eos_token }}{% endfor %}{% if add_generation_prompt %}assistant:
{% endif %}`

// smallModel writes a folder of the hub: a small Qwen 3 with random weights. As in some folders, the tokenizer has a token
// for padding that the model does not know.
func smallModel(t *testing.T) string {
	dir, from := t.TempDir(), "../hf/tokenizer/testdata/bytelevel"
	for _, name := range []string{"tokenizer.json", "tokenizer_config.json"} {
		text := string(must.New(os.ReadFile(filepath.Join(from, name))))
		text = strings.Replace(text, `"added_tokens":[`, `"added_tokens":[{"id": 680, "content": "<pad>", "special": true},`, 1)
		write(t, filepath.Join(dir, name), strings.Replace(text, `{"bos_token"`, `{"pad_token": "<pad>", "bos_token"`, 1))
	}
	write(t, filepath.Join(dir, "chat_template.jinja"), template)
	write(t, filepath.Join(dir, "config.json"), `{"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 680, "hidden_size": 64,
		"intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "hidden_act": "silu",
		"tie_word_embeddings": true, "max_position_embeddings": 128, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "torch_dtype": "float32"}`)
	m := must.New(decoder.New(decoder.Config{Vocab: 680, Hidden: 64, Feedforward: 128, Heads: 4, KeyHeads: 2, HeadSize: 16, Layers: make([]decoder.Layer, 2),
		NormHeads: true, Tied: true, MaxPositions: 128, NormEps: 1e-6}))
	dev := cpu.New(nil)
	defer dev.Close()
	if err := nn.Place(m, dev, 1); err != nil {
		t.Fatal(err)
	}
	if err := checkpoint.SaveWeights(t.Context(), filepath.Join(dir, "model.safetensors"), m); err != nil {
		t.Fatal(err)
	}
	return dir
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o666); err != nil {
		t.Fatal(err)
	}
}

// chats writes a file of chats about the codes of towns, which start at first, n times.
func chats(t *testing.T, path string, first, n int) {
	var b strings.Builder
	for range n {
		for i, town := range []string{"Alba", "Bonn", "Cork", "Delft", "Essen", "Faro", "Gent", "Hull"} {
			code := first + 7*i
			chat := map[string]any{"messages": []map[string]string{
				{"role": "user", "content": fmt.Sprintf("What is the code of %s?", town)},
				{"role": "assistant", "content": fmt.Sprintf("The code of %s is %d.", town, code)},
			}}
			b.Write(append(must.New(json.Marshal(chat)), '\n'))
		}
	}
	write(t, path, b.String())
}

// TestFinetune teaches a small model the answers of chats on two ranks, as a whole and by adapters, with packed rows, and
// with parameters that are divided among the ranks.
// An interrupted run ends as an unbroken one.
func TestFinetune(t *testing.T) {
	testkit.Long(t)
	model, files := smallModel(t), t.TempDir()
	for name, first := range map[string]int{"": 10, "other_": 12} {
		chats(t, filepath.Join(files, name+"train.jsonl"), first, 12)
		chats(t, filepath.Join(files, name+"eval.jsonl"), first, 1)
	}
	bin := build(t)
	args := func(more ...string) []string {
		return append([]string{filepath.Join(bin, "finetune"), "--model", model, "--data", filepath.Join(files, "train.jsonl"), "--eval", filepath.Join(files, "eval.jsonl"),
			"--length", "64", "--global-batch", "12", "--lr", "0.01", "--log", "run.jsonl", "--out", "tuned", "--checkpoints", "run",
			"--prompt", "What is the code of Delft?"}, more...)
	}
	whole := args("--epochs", "14")
	dir := t.TempDir()
	r := succeed(t, job(t, dir, 2, whole...))
	if !strings.Contains(r.Stdout, "The code of Delft is 31.") {
		t.Errorf("the answer is\n%s", r.Stdout)
	}
	first, last := evaluations(t, dir)
	if !(first > 0.3 && last < 0.08) {
		t.Errorf("the evaluation's loss is %v first and %v last, want it to fall below 0.08", first, last)
	}
	checkTensor(t, filepath.Join(dir, "tuned", "model.safetensors"), "model.layers.1.mlp.gate_proj.weight")
	t.Run("SIGKILL", func(t *testing.T) { restart(t, whole, outcome(t, dir)) })
	t.Run("stage 3", func(t *testing.T) {
		own := t.TempDir()
		r := succeed(t, job(t, own, 2, append(whole, "--stage", "3")...))
		if first, last := evaluations(t, own); !(first > 0.3 && last < 0.08) || !strings.Contains(r.Stdout, "The code of Delft is 31.") {
			t.Errorf("the evaluation's loss is %v first and %v last, want it to fall below 0.08\n%s", first, last, r.Stdout)
		}
		checkTensor(t, filepath.Join(own, "tuned", "model.safetensors"), "model.layers.1.mlp.gate_proj.weight")
	})
	t.Run("packed", func(t *testing.T) {
		dir := t.TempDir()
		succeed(t, job(t, dir, 2, args("--epochs", "30", "--pack", "--global-batch", "4")...))
		if first, last := evaluations(t, dir); !(first > 0.3 && last < 0.08) {
			t.Errorf("the evaluation's loss is %v first and %v last, want it to fall below 0.08", first, last)
		}
	})
	t.Run("LoRA, stage 3", func(t *testing.T) { // the tuned model learns other codes
		own := t.TempDir()
		r := succeed(t, job(t, own, 2, args("--epochs", "20", "--lora", "8", "--stage", "3", "--lr", "0.005", "--model", filepath.Join(dir, "tuned"),
			"--data", filepath.Join(files, "other_train.jsonl"), "--eval", filepath.Join(files, "other_eval.jsonl"))...))
		if first, last := evaluations(t, own); !(first > 0.3 && last < 0.2) || !strings.Contains(r.Stdout, "The code of Delft is 33.") {
			t.Errorf("the evaluation's loss is %v first and %v last, want it to fall below 0.2\n%s", first, last, r.Stdout)
		}
		checkTensor(t, filepath.Join(own, "tuned", "adapter_model.safetensors"), "base_model.model.model.layers.1.mlp.gate_proj.lora_A.weight")
	})
}

// evaluations returns the first and the last loss of the evaluation in a run's log.
func evaluations(t *testing.T, dir string) (first, last float64) {
	t.Helper()
	for i, line := range strings.Split(strings.TrimSpace(string(must.New(os.ReadFile(filepath.Join(dir, "run.jsonl"))))), "\n") {
		var entry struct {
			Loss *float64 `json:"eval_loss"`
		}
		if err := json.Unmarshal([]byte(line), &entry); err != nil {
			t.Fatalf("line %d: %v", i, err)
		}
		if entry.Loss != nil {
			if last = *entry.Loss; first == 0 {
				first = last
			}
		}
	}
	return first, last
}

func checkTensor(t *testing.T, path, name string) {
	t.Helper()
	f, err := safetensors.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, ok := f.Tensors()[name]; !ok {
		t.Errorf("%s has no %s", path, name)
	}
}
