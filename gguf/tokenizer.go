package gguf

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/goddp/goddp/internal/files"
)

// tokenizer is what llama.cpp needs of tokenizer.json.
type tokenizer struct {
	Model struct {
		Type         string          // "" in old files of BPE
		Vocab        json.RawMessage // of BPE: the tokens' ids
		Merges       []any           // "a b", or in newer files ["a", "b"]
		Unknown      string          `json:"unk_token"`
		ByteFallback bool            `json:"byte_fallback"`
		IgnoreMerges bool            `json:"ignore_merges"` // words of the vocabulary are tokens, whatever the merges
	}
	Added []struct {
		ID      int
		Content string
		Special bool
	} `json:"added_tokens"`
	Normalizer    component
	Pretokenizer  component `json:"pre_tokenizer"`
	PostProcessor component `json:"post_processor"`
}

// component is a normalizer, a pre-tokenizer, a post-processor, or a sequence of them.
type component struct {
	Type          string
	Normalizers   []component
	Pretokenizers []component
	Processors    []component

	Pattern    struct{ Regex string }                       // of Split
	UseRegex   *bool                                        `json:"use_regex"`         // of ByteLevel
	Individual bool                                         `json:"individual_digits"` // of Digits
	Scheme     string                                       `json:"prepend_scheme"`    // of Metaspace
	Single     []struct{ SpecialToken struct{ ID string } } // of TemplateProcessing
}

// parts returns the parts of a sequence, or c itself.
func (c component) parts() (all []component) {
	if c.Type != "Sequence" {
		return []component{c}
	}
	for _, part := range append(append(c.Normalizers, c.Pretokenizers...), c.Processors...) {
		all = append(all, part.parts()...)
	}
	return all
}

// describeTokenizer sets the keys of the tokenizer in dir.
func (f *file) describeTokenizer(dir string) error {
	path, t, ids := filepath.Join(dir, "tokenizer.json"), &tokenizer{}, map[string]int{}
	if err := readJSON(path, t); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: want the file that transformers' save_pretrained writes", err)
	} else if err != nil {
		return err
	}
	tokens, err := f.describeTokens(t, ids)
	if err == nil {
		err = f.describeMerges(t, tokens)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return f.describeSpecial(dir, t, ids)
}

// readJSON reads a JSON file.
func readJSON(path string, v any) error {
	text, err := files.Read(path, 1<<28)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, v); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// describeTokens sets the tokens and their types, returns the tokens, and sets ids.
func (f *file) describeTokens(t *tokenizer, ids map[string]int) ([]string, error) {
	if t.Model.Type != "BPE" && (t.Model.Type != "" || t.Model.Merges == nil) {
		return nil, fmt.Errorf("a model of type %q, want BPE", t.Model.Type)
	}
	if err := json.Unmarshal(t.Model.Vocab, &ids); err != nil {
		return nil, err
	}
	const normal, unknown, control, userDefined, unused, oneByte = 1, 2, 3, 4, 5, 6
	kinds := map[string]int32{}
	for _, a := range t.Added {
		ids[a.Content] = a.ID
		if kinds[a.Content] = userDefined; a.Special || strings.HasPrefix(a.Content, "<|") && strings.HasSuffix(a.Content, "|>") {
			kinds[a.Content] = control
		}
	}
	if t.Model.ByteFallback {
		kinds[t.Model.Unknown] = unknown
		for b := range 256 {
			kinds[fmt.Sprintf("<0x%02X>", b)] = oneByte
		}
	}
	tokens, types := make([]string, f.vocab), make([]int32, f.vocab)
	for i := range tokens {
		tokens[i], types[i] = fmt.Sprintf("[PAD%d]", i), unused
	}
	for token, id := range ids {
		if id < 0 || id >= f.vocab {
			return nil, fmt.Errorf("token %q has id %d, want less than %d, the vocabulary of the model", token, id, f.vocab)
		}
		tokens[id], types[id] = token, max(kinds[token], normal)
	}
	f.set("tokenizer.ggml.tokens", tokens)
	f.set("tokenizer.ggml.token_type", types)
	return tokens, nil
}

const (
	words = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|`
	rest  = `| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
)

// pretokenizers are llama.cpp's names of pre-tokenizers.
var pretokenizers = map[string]string{
	"ByteLevel":                 "gpt-2",
	"Digits ByteLevel":          "smollm",
	words + `\p{N}` + rest:      "qwen2",
	words + `\p{N}{1,3}` + rest: "llama-bpe",
	`[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|` +
		`[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|` +
		`\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`: "tekken",
}

// describeMerges sets how text is divided and merged: for a vocabulary of bytes by llama.cpp's model gpt2, otherwise by
// llama, SentencePiece's BPE. That merges first what makes the token with the highest score.
func (f *file) describeMerges(t *tokenizer, tokens []string) error {
	merges, ranks := make([]string, len(t.Model.Merges)), map[string]int{}
	for i, m := range t.Model.Merges {
		merges[i], _ = m.(string)
		if pair, ok := m.([]any); ok {
			merges[i] = strings.TrimSuffix(fmt.Sprintln(pair...), "\n")
		}
		if made := strings.Replace(merges[i], " ", "", 1); ranks[made] == 0 {
			ranks[made] = i + 1
		}
	}
	isOfBytes, addsSpace, splits := false, false, []string(nil)
	for _, c := range t.Normalizer.parts() {
		addsSpace = addsSpace || c.Type == "Prepend"
	}
	for _, c := range t.Pretokenizer.parts() {
		split := c.Type
		switch {
		case c.Type == "Metaspace":
			addsSpace = c.Scheme != "never"
		case c.Type == "Split":
			split = c.Pattern.Regex
		case c.Type == "Digits" && !c.Individual:
			split = "Digits in groups"
		case c.Type == "ByteLevel":
			if isOfBytes = true; c.UseRegex != nil && !*c.UseRegex {
				continue
			}
		}
		splits = append(splits, split)
	}
	name, ok := pretokenizers[strings.Join(splits, " ")]
	switch {
	case !isOfBytes && !t.Model.ByteFallback:
		return errors.New("a vocabulary without bytes, want byte-level BPE, or BPE with byte_fallback")
	case !isOfBytes:
		scores := make([]float32, len(tokens))
		for i, token := range tokens {
			if scores[i] = float32(-ranks[token]); ranks[token] == 0 {
				scores[i] = float32(-len(merges) - 1)
			}
		}
		f.set("tokenizer.ggml.model", "llama")
		f.set("tokenizer.ggml.pre", "default")
		f.set("tokenizer.ggml.scores", scores)
		f.set("tokenizer.ggml.add_space_prefix", addsSpace)
		return nil
	case !ok:
		return fmt.Errorf("pre-tokenizer %q, want that of GPT-2, Llama 3, Qwen 2, SmolLM or Mistral NeMo", splits)
	case name == "llama-bpe" && !t.Model.IgnoreMerges:
		name = "smaug-bpe" // the same, but for IgnoreMerges
	}
	f.set("tokenizer.ggml.model", "gpt2")
	f.set("tokenizer.ggml.pre", name)
	f.set("tokenizer.ggml.merges", merges)
	return nil
}

// describeSpecial sets the special tokens and the chat template. The special tokens are in tokenizer_config.json, or in
// special_tokens_map.json in older folders. GPT-2's folder has only their ids, in config.json.
func (f *file) describeSpecial(dir string, t *tokenizer, ids map[string]int) error {
	settings := map[string]any{}
	for _, name := range []string{"config.json", "special_tokens_map.json", "tokenizer_config.json"} {
		if err := readJSON(filepath.Join(dir, name), &settings); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	first, last := "", "" // the special tokens around a text
	for _, c := range t.PostProcessor.parts() {
		if n := len(c.Single); n > 0 {
			first, last = c.Single[0].SpecialToken.ID, c.Single[n-1].SpecialToken.ID
		}
	}
	for _, special := range [][3]string{{"bos", "bos", first}, {"eos", "eos", last}, {"unk", "unknown"}, {"pad", "padding"}} {
		name := settings[special[0]+"_token"]
		if object, ok := name.(map[string]any); ok {
			name = object["content"]
		}
		token, _ := name.(string)
		id, ok := ids[token]
		if number, isNumber := settings[special[0]+"_token_id"].(float64); !ok && isNumber && number >= 0 {
			id, ok = int(number), true
		}
		if ok {
			f.set("tokenizer.ggml."+special[1]+"_token_id", id)
		}
		if special[0] == "bos" || special[0] == "eos" {
			adds, isSet := settings["add_"+special[0]+"_token"].(bool) // as llama.cpp's converter does: above the post-processor
			if !isSet {
				adds = ids[special[2]] == id && special[2] != ""
			}
			f.set("tokenizer.ggml.add_"+special[0]+"_token", ok && adds)
		}
	}
	text, err := files.Read(filepath.Join(dir, "chat_template.jinja"), 1<<24)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	template, _ := settings["chat_template"].(string)
	if list, ok := settings["chat_template"].([]any); ok { // templates with names
		for _, named := range list {
			if m, _ := named.(map[string]any); m["name"] == "default" {
				template, _ = m["template"].(string)
			}
		}
	}
	if template = cmp.Or(string(text), template); template != "" {
		f.set("tokenizer.chat_template", template)
	}
	return nil
}
