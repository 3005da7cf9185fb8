package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/goddp/goddp/generate"
	"github.com/goddp/goddp/hf"
	"github.com/goddp/goddp/hf/tokenizer"
	"github.com/goddp/goddp/internal/kernels"
	"github.com/goddp/goddp/internal/testkit/cputest"
	"github.com/goddp/goddp/internal/testkit/must"
	"github.com/goddp/goddp/lora"
)

// A prompt is rendered by the template, if there is one, behind the prompts and answers before it.
func TestGenerate(t *testing.T) {
	t.Setenv("GODDP_DEVICE", "cpu")
	dev := cputest.New(t)
	dir := modelFolder(t, dev)
	answer := func(f *hf.Folder, prompt string) string { // what a model continues a rendered chat with
		tok := must.New(tokenizer.Load(dir))
		g := must.New(generate.New(f.Model, 1, 16))
		tokens := must.New(g.Generate(t.Context(), [][]int{tok.Encode(prompt, nil)}, &generate.Options{MaxTokens: 2}))
		return tok.Decode(tokens[0], nil)
	}
	expect := func(want string, args ...string) {
		t.Helper()
		if code, out, stderr := goddp(t, append([]string{"generate", dir, "--max-tokens", "2"}, args...)...); code != 0 || out != want {
			t.Errorf("%q: exit code %d, %q, %s, want %q", args, code, out, stderr, want)
		}
	}
	base := must.New(hf.Load(dir, dev, nil))
	expect(answer(base, "ab")+"\n", "ab")

	template := "{% for m in messages %}{{ m.role[0] }}{{ m.content }}{% endfor %}{% if add_generation_prompt %}a{% endif %}"
	must.New(0, os.WriteFile(filepath.Join(dir, "chat_template.jinja"), []byte(template), 0o666))
	expect(answer(base, "ab")+"\n", "ab", "--raw")
	first := answer(base, "sbuaa") // of these, a and b are tokens
	expect(first+"\n", "a", "--system", "b")

	// The third line has 5 tokens of its own.
	in := filepath.Join(t.TempDir(), "in")
	must.New(0, os.WriteFile(in, []byte("bbb\n\nbbb\nbbbbb"), 0o666))
	file := must.New(os.Open(in))
	defer file.Close()
	defer func(before *os.File) { os.Stdin = before }(os.Stdin)
	os.Stdin = file
	code, out, stderr := goddp(t, "generate", dir, "--max-tokens", "2")
	cut, want := "the answer ends after 2 tokens, ", "the prompt has 16 tokens with those before, want 1 to 15"
	if code != 1 || strings.Count(out, "\n") != 2 || strings.Count(stderr, cut) != 2 || !strings.Contains(stderr, want) {
		t.Errorf("of three lines: exit code %d, %q, %s, want two answers, %q for both, and %q", code, out, stderr, cut, want)
	}

	adapters := t.TempDir()
	f := must.New(hf.Load(dir, dev, nil))
	a := must.New(lora.Add(f.Model, &lora.Options{Targets: []string{"c_fc", "c_proj"}}))
	for _, p := range a.Parameters() {
		must.New(0, kernels.Of(dev).Uniform(dev.Compute(), p.Var().Tensor(), -9, 9, 1, 0))
	}
	must.New(0, a.Save(t.Context(), adapters, dir))
	must.New(0, a.Merge())
	changed := answer(f, "sbuaa")
	if changed == first {
		t.Fatalf("the adapters do not change the answer %q", first)
	}
	expect(changed+"\n", "a", "--system", "b", "--adapters", adapters)

	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{nil, 2, "goddp generate: want the folder of a model, and perhaps a prompt in quotes, got 0 arguments"},
		{[]string{dir, "a", "--max-tokens", "0"}, 2, "--max-tokens 0 and --context 4096: want at least 1 and 2"},
		{[]string{dir, "a", "--raw", "--system", "b"}, 2, "--system: want a model with a chat template"},
		{[]string{dir, strings.Repeat("b", 17), "--raw"}, 1, "the prompt has 17 tokens with those before, want 1 to 15"},
		{[]string{dir, "", "--raw"}, 1, "the prompt has 0 tokens"},
		{[]string{dir, "a", "--top-p", "0.9"}, 2, "--top-k 0 and --top-p 0.9 have no effect with --temperature 0"},
		{[]string{dir, "a", "--stop", ""}, 2, "--stop '': want a text"},
		{[]string{adapters, "a"}, 1, "the folder has adapters, want a whole model"},
	} {
		if code, _, stderr := goddp(t, append([]string{"generate"}, c.args...)...); code != c.code || !strings.Contains(stderr, c.want) {
			t.Errorf("%q: exit code %d, %s, want %d, %q", c.args, code, stderr, c.code, c.want)
		}
	}
}
