package chat_test

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/goddp/goddp/hf/chat"
	"github.com/goddp/goddp/hf/tokenizer"
	"github.com/goddp/goddp/internal/testkit"
)

// A case is a chat, as render.py reads it.
type testCase struct {
	Messages            []chat.Message
	AddGenerationPrompt bool `json:"add_generation_prompt"`
	Tools               []json.RawMessage
	Variables           map[string]any
}

func cases(t *testing.T) (all []testCase) {
	t.Helper()
	b, err := os.ReadFile("testdata/cases.json")
	if err == nil {
		err = json.Unmarshal(b, &all)
	}
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func templates(t *testing.T, pattern string) []string {
	t.Helper()
	paths, err := filepath.Glob(pattern)
	if err != nil || len(paths) == 0 {
		t.Fatalf("no file matches %s: %v", pattern, err)
	}
	return paths
}

// compare renders all chats with templates, and compares the texts with those of Jinja2; nil: it raised an error.
func compare(t *testing.T, paths []string, want [][]*string) {
	t.Helper()
	now := time.Now()
	dates := strings.NewReplacer("<%d %b %Y>", now.Format("02 Jan 2006"), "<%d %B %Y>", now.Format("02 January 2006"))
	if len(want) != len(paths) {
		t.Fatalf("texts of %d templates, want %d", len(want), len(paths))
	}
	for i, path := range paths {
		source, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		template, err := chat.New(string(source), map[string]string{"bos_token": "<s>", "eos_token": "</s>"})
		if err != nil {
			t.Error(path, err)
			continue
		}
		for j, c := range cases(t) {
			got, err := template.Render(c.Messages, &chat.Options{AddGenerationPrompt: c.AddGenerationPrompt, Tools: c.Tools, Variables: c.Variables})
			w := want[i][j]
			switch {
			case w == nil && err == nil && strings.Contains(string(c.Messages[0]), `"content": "`):
				t.Errorf("%s: chat %d has no error, want one:\n%s", path, j, got)
			case w != nil && err != nil:
				t.Errorf("%s: chat %d: %v", path, j, err)
			case w != nil && got != dates.Replace(*w):
				t.Errorf("%s: chat %d is\n%q, want\n%q", path, j, got, *w)
			}
		}
	}
}

func TestExpected(t *testing.T) {
	b, err := os.ReadFile("testdata/expected.json")
	if err != nil {
		t.Fatal(err)
	}
	var want [][]*string
	if err := json.Unmarshal(b, &want); err != nil {
		t.Fatal(err)
	}
	compare(t, templates(t, "testdata/*.jinja"), want)
}

// TestEqualsJinja2 renders the templates, and those of real models in the tests of the library, with Jinja2 itself.
func TestEqualsJinja2(t *testing.T) {
	testkit.Long(t)
	testkit.Need(t, testkit.Python("import jinja2"))
	dir := strings.TrimSpace(testkit.Output(t, exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/ardanlabs/jinja")))
	paths := append(templates(t, "testdata/*.jinja"), templates(t, filepath.Join(dir, "testdata/templates/*.jinja"))...)
	var want [][]*string
	render := func(dates string, paths ...string) []byte {
		return testkit.RunPython(t, nil, append([]string{"testdata/render.py", dates, "testdata/cases.json"}, paths...)...)
	}
	out := render("now", paths...)
	if err := json.Unmarshal(out, &want); err != nil {
		t.Fatal(err)
	}
	compare(t, paths, want)
	expected, err := os.ReadFile("testdata/expected.json")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(render("formats", templates(t, "testdata/*.jinja")...), expected) {
		t.Error("testdata/expected.json differs from what testdata/render.py prints")
	}
}

// model returns a folder with a byte-level tokenizer whose special tokens are those of the templates.
func model(t *testing.T, config string) string {
	t.Helper()
	b, err := os.ReadFile("../tokenizer/testdata/bytelevel/tokenizer.json")
	if err != nil {
		t.Fatal(err)
	}
	var file map[string]any
	if err := json.Unmarshal(b, &file); err != nil {
		t.Fatal(err)
	}
	added := file["added_tokens"].([]any)
	for _, token := range []string{"<|im_start|>", "<|im_end|>", "<s>", "</s>", "[INST]", "[/INST]", "<|start_header_id|>", "<|end_header_id|>"} {
		added = append(added, map[string]any{"id": 2000 + len(added), "content": token, "special": true})
	}
	file["added_tokens"] = added
	if b, err = json.Marshal(file); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	write(t, filepath.Join(dir, "tokenizer.json"), string(b))
	write(t, filepath.Join(dir, "tokenizer_config.json"), config)
	return dir
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
		t.Fatal(err)
	}
}

// TestEncode checks which tokens are answers: those between ⟦ and ⟧.
func TestEncode(t *testing.T) {
	tok, err := tokenizer.Load(model(t, `{}`))
	if err != nil {
		t.Fatal(err)
	}
	hi := []chat.Message{chat.Text("user", "Hi"), chat.Text("assistant", "Hello")}
	two := append(hi[:2:2], chat.Text("user", "2+2?"), chat.Text("assistant", " 4"))
	thought := append([]chat.Message{chat.Text("user", "Hi"), chat.Text("assistant", "<think>\nhm\n</think>\n\nHello")}, two[2:]...)
	for _, c := range []struct {
		template string
		messages []chat.Message
		opts     *chat.Options
		want     string
	}{
		{"chatml", two, nil, "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n⟦Hello<|im_end|>⟧\n<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n⟦ 4<|im_end|>⟧\n"},
		{"chatml", two, &chat.Options{Prompt: 3}, "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello<|im_end|>\n<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n⟦ 4<|im_end|>⟧\n"},
		// Qwen 3 renders an answer differently when others follow.
		{"qwen3", thought, nil, "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n⟦Hello<|im_end|>⟧\n<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n⟦<think>\n\n</think>\n\n 4<|im_end|>⟧\n"},
		{"mistral", two, nil, "<s>[INST] Hi[/INST]⟦ Hello</s>⟧[INST] 2+2?[/INST]⟦ 4</s>⟧"},
		{"smollm3", hi, nil, "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n⟦Hello<|im_end|>\n⟧"},
		{"smollm3", two, &chat.Options{Prompt: 2}, "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello<|im_end|>\n<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n⟦ 4<|im_end|>\n⟧"},
	} {
		source, err := os.ReadFile(filepath.Join("testdata", c.template+".jinja"))
		if err != nil {
			t.Fatal(err)
		}
		template, err := chat.New(string(source), map[string]string{"bos_token": "<s>", "eos_token": "</s>"})
		if err != nil {
			t.Fatal(err)
		}
		tokens, answer, err := template.Encode(tok, c.messages, c.opts)
		if err != nil {
			t.Errorf("%s: %v", c.template, err)
			continue
		}
		var got strings.Builder
		for i := 0; i < len(tokens); {
			end := i
			for end < len(tokens) && answer[end] == answer[i] {
				end++
			}
			text := tok.Decode(tokens[i:end], nil)
			if answer[i] {
				text = "⟦" + text + "⟧"
			}
			got.WriteString(text)
			i = end
		}
		text := got.String()
		if at := strings.Index(text, "<|im_start|>user"); c.template == "smollm3" {
			text = text[at:] // after the date
		}
		if text != c.want {
			t.Errorf("%s: answers are\n%q, want\n%q", c.template, text, c.want)
		}
	}
}

func TestEncodeErrors(t *testing.T) {
	tok, err := tokenizer.Load(model(t, `{}`))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		template string
		messages []chat.Message
		want     string
	}{
		{`{{ messages|length }}{{ messages[-1].content }}`, []chat.Message{chat.Text("user", "a"), chat.Text("assistant", "b")}, "renders the messages before answer 1 differently"},
		{`{% for m in messages %}{{ m.content }}{% if loop.last %}!{% endif %}{% endfor %}`,
			[]chat.Message{chat.Text("user", ""), chat.Text("assistant", "b"), chat.Text("user", "c")}, "renders the messages before answer 1 differently"},
		{`{% for m in messages %}{{ m.content }}{% endfor %}{{ "!" if not add_generation_prompt }}`,
			[]chat.Message{chat.Text("user", "a"), chat.Text("assistant", "b"), chat.Text("user", "c")}, "renders answer 1 differently"},
		{`{{ raise_exception("no " + messages[0].role) }}`, []chat.Message{chat.Text("user", "a")}, "no user"},
		{`x`, []chat.Message{chat.Text("assistant", "a")}, "the first message is the assistant's"},
		{`x`, nil, "no messages"},
		{`x`, []chat.Message{chat.Message(`"text"`)}, `message 0 is "text": want an object`},
	} {
		template, err := chat.New(c.template, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := template.Encode(tok, c.messages, nil); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.template, err, c.want)
		}
	}
	for source, want := range map[string]string{`{{ a`: "does not end", `{% if a %}`: "template", `{% raw %}`: "endraw"} {
		if _, err := chat.New(source, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("New(%q): %v, want %q", source, err, want)
		}
	}
}

func TestLoad(t *testing.T) {
	messages := []chat.Message{chat.Text("user", "Hi")}
	for _, c := range []struct{ config, jinja, want string }{
		{`{"bos_token":"<s>","add_bos_token":true,"chat_template":"{{ bos_token }}one"}`, "", "<s>one"},
		{`{"bos_token":{"content":"<s>"},"chat_template":[{"name":"tool_use","template":"tools"},{"name":"default","template":"{{ bos_token }}two"}]}`, "", "<s>two"},
		{`{"eos_token":"</s>","chat_template":"one"}`, "three{{ eos_token }}", "three</s>"},
		{`{}`, "", "no chat_template"},
		{`{"chat_template":"{% for %}"}`, "", "tokenizer_config.json"},
	} {
		dir := model(t, c.config)
		if c.jinja != "" {
			write(t, filepath.Join(dir, "chat_template.jinja"), c.jinja)
		}
		template, err := chat.Load(dir)
		if err != nil {
			if !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), dir) {
				t.Errorf("Load with %s: %v, want %q and the folder", c.config, err, c.want)
			}
			continue
		}
		if got, err := template.Render(messages, nil); err != nil || got != c.want {
			t.Errorf("with %s the chat is %q, %v, want %q", c.config, got, err, c.want)
		}
	}
}
