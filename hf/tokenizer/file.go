package tokenizer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// A component is a JSON object of tokenizer.json with a type: a normalizer, a pre-tokenizer, a post-processor or
// a decoder. It has the fields of all of them.
type component struct {
	Type string `json:"type"`

	Normalizers   []component `json:"normalizers"`
	Pretokenizers []component `json:"pretokenizers"`
	Processors    []component `json:"processors"`
	Decoders      []component `json:"decoders"`

	Pattern          pattern         `json:"pattern"`
	Content          string          `json:"content"`
	Behavior         string          `json:"behavior"`
	Invert           bool            `json:"invert"`
	Prepend          string          `json:"prepend"`
	Replacement      string          `json:"replacement"`
	PrependScheme    string          `json:"prepend_scheme"`
	Split            *bool           `json:"split"`
	AddPrefixSpace   *bool           `json:"add_prefix_space"`
	UseRegex         *bool           `json:"use_regex"`
	IndividualDigits bool            `json:"individual_digits"`
	Delimiter        string          `json:"delimiter"`
	StripLeft        bool            `json:"strip_left"`
	StripRight       bool            `json:"strip_right"`
	CleanText        *bool           `json:"clean_text"`
	HandleChinese    *bool           `json:"handle_chinese_chars"`
	StripAccents     *bool           `json:"strip_accents"`
	Lowercase        *bool           `json:"lowercase"`
	Start            int             `json:"start"`
	Stop             int             `json:"stop"`
	Prefix           string          `json:"prefix"`
	Cleanup          *bool           `json:"cleanup"`
	Charsmap         []byte          `json:"precompiled_charsmap"`
	Single           json.RawMessage `json:"single"`
	SpecialTokens    json.RawMessage `json:"special_tokens"`
	Sep              json.RawMessage `json:"sep"`
	CLS              json.RawMessage `json:"cls"`
}

// pattern is a text or a regular expression.
type pattern struct{ String, Regex string }

// orTrue returns the value of a field whose default is true.
func orTrue(b *bool) bool { return b == nil || *b }

type addedToken struct {
	ID         int    `json:"id"`
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"`
	LStrip     bool   `json:"lstrip"`
	RStrip     bool   `json:"rstrip"`
	Normalized bool   `json:"normalized"`
	Special    bool   `json:"special"`
}

// modelFile is the model of tokenizer.json.
type modelFile struct {
	Type string `json:"type"`

	Vocab  json.RawMessage `json:"vocab"`
	Merges []mergeText     `json:"merges"`

	UnkToken      *string `json:"unk_token"`
	UnkID         *int    `json:"unk_id"`
	FuseUnk       bool    `json:"fuse_unk"`
	ByteFallback  bool    `json:"byte_fallback"`
	IgnoreMerges  bool    `json:"ignore_merges"`
	SubwordPrefix string  `json:"continuing_subword_prefix"`
	WordSuffix    string  `json:"end_of_word_suffix"`
	MaxChars      int     `json:"max_input_chars_per_word"`
}

// mergeText is a merge, whose text is "a b" in older files, and ["a", "b"] in newer ones.
type mergeText [2]string

func (m *mergeText) UnmarshalJSON(b []byte) error {
	if b[0] == '[' {
		return json.Unmarshal(b, (*[2]string)(m))
	}
	var text string
	if err := json.Unmarshal(b, &text); err != nil {
		return err
	}
	var ok bool
	if m[0], m[1], ok = strings.Cut(text, " "); !ok {
		return fmt.Errorf("merge %q: want two tokens with a space between them", text)
	}
	return nil
}

// name is a special token's text, which is a string, an object with the field content, or null.
type name string

func (n *name) UnmarshalJSON(b []byte) error {
	if b[0] != '{' {
		return json.Unmarshal(b, (*string)(n))
	}
	var object struct{ Content string }
	err := json.Unmarshal(b, &object)
	*n = name(object.Content)
	return err
}

// specials are the special tokens of tokenizer_config.json and of special_tokens_map.json. Class is the class of
// transformers, which may say itself what comes before and after a text.
type specials struct {
	Class  string `json:"tokenizer_class"`
	AddBOS *bool  `json:"add_bos_token"`
	AddEOS *bool  `json:"add_eos_token"`

	BOS name `json:"bos_token"`
	EOS name `json:"eos_token"`
	Pad name `json:"pad_token"`
	Unk name `json:"unk_token"`
}

// ids is a token or a list of tokens.
type ids []int

func (i *ids) UnmarshalJSON(b []byte) error {
	if b[0] == '[' || b[0] == 'n' {
		return json.Unmarshal(b, (*[]int)(i))
	}
	*i = make(ids, 1)
	return json.Unmarshal(b, &(*i)[0])
}

// readJSON reads a JSON file. If the file does not exist, readJSON leaves v as it is.
func readJSON(path string, v any) error {
	b, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("tokenizer: %w", err)
	case bytes.HasPrefix(b, []byte("version https://git-lfs")):
		return fmt.Errorf("tokenizer: %s is a pointer of Git LFS: want the file itself; \"git lfs pull\" gets it", path)
	}
	if err := json.Unmarshal(b, v); err != nil {
		return fmt.Errorf("tokenizer: %s: %w", path, err)
	}
	return nil
}

// Load reads the tokenizer of a folder of Hugging Face's hub: tokenizer.json, and if they exist
// tokenizer_config.json, special_tokens_map.json and generation_config.json. If the tokenizer has a part that this
// package lacks, the error names the part.
func Load(dir string) (*Tokenizer, error) {
	path := filepath.Join(dir, "tokenizer.json")
	var file struct {
		Added         []addedToken `json:"added_tokens"`
		Normalizer    *component   `json:"normalizer"`
		Pretokenizer  *component   `json:"pre_tokenizer"`
		PostProcessor *component   `json:"post_processor"`
		Decoder       *component   `json:"decoder"`
		Model         *modelFile   `json:"model"`
	}
	if err := readJSON(path, &file); err != nil {
		return nil, err
	}
	if file.Model == nil {
		if _, err := os.Stat(path); err != nil {
			return nil, fmt.Errorf("tokenizer: %w: want the file that transformers' save_pretrained writes", err)
		}
		return nil, fmt.Errorf("tokenizer: %s has no model: not a tokenizer of the library tokenizers", path)
	}
	t := &Tokenizer{BOS: -1, EOS: -1, Pad: -1}
	wrap := func(err error) error { return fmt.Errorf("tokenizer: %s: %w", path, err) }
	var err error
	if t.model, err = newModel(file.Model, usesByteLevel(file.Pretokenizer)); err != nil {
		return nil, wrap(err)
	}
	if file.Normalizer != nil {
		if t.normalize, err = newNormalizer(*file.Normalizer); err != nil {
			return nil, wrap(err)
		}
	}
	if file.Pretokenizer != nil {
		if t.split, err = newSplitter(*file.Pretokenizer); err != nil {
			return nil, wrap(err)
		}
	}
	if file.PostProcessor != nil {
		if t.before, t.after, err = postProcess(*file.PostProcessor); err != nil {
			return nil, wrap(err)
		}
	}
	if file.Decoder != nil {
		if t.decode, err = newDecoder(*file.Decoder); err != nil {
			return nil, wrap(err)
		}
	}
	if err := t.add(file.Added); err != nil {
		return nil, wrap(err)
	}
	return t, t.readSpecials(dir)
}

// readSpecials reads the special tokens from the files beside tokenizer.json. special_tokens_map.json repeats those
// of tokenizer_config.json in older folders.
func (t *Tokenizer) readSpecials(dir string) error {
	var s specials
	for _, file := range []string{"special_tokens_map.json", "tokenizer_config.json"} {
		if err := readJSON(filepath.Join(dir, file), &s); err != nil {
			return err
		}
	}
	for _, special := range []struct {
		name name
		id   *int
	}{{s.BOS, &t.BOS}, {s.EOS, &t.EOS}, {s.Pad, &t.Pad}} {
		if id, ok := t.ID(string(special.name)); ok && special.name != "" {
			*special.id = id
		}
	}
	var config, generation struct {
		EOS ids `json:"eos_token_id"`
	}
	if err := errors.Join(readJSON(filepath.Join(dir, "config.json"), &config), readJSON(filepath.Join(dir, "generation_config.json"), &generation)); err != nil {
		return err
	}
	// Older folders, such as GPT-2's, have only the number of the token.
	if last := append(generation.EOS, config.EOS...); t.EOS < 0 && len(last) > 0 && t.Token(last[0]) != "" {
		t.EOS = last[0]
	}
	if strings.HasPrefix(s.Class, "LlamaTokenizer") { // replaces the post-processor, which DeepSeek's files leave out
		t.before, t.after = addedBy(s.AddBOS, t.BOS, t.before), addedBy(s.AddEOS, t.EOS, t.after)
	}
	if t.Stop = generation.EOS; t.Stop == nil && t.EOS >= 0 {
		t.Stop = []int{t.EOS}
	}
	return nil
}

// addedBy returns the tokens at an end of a text: by the setting, or if there is none, tokens.
func addedBy(setting *bool, id int, tokens []int) []int {
	switch {
	case setting == nil:
		return tokens
	case *setting && id >= 0:
		return []int{id}
	}
	return nil
}
