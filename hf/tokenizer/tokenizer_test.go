package tokenizer_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/goddp/goddp/hf/tokenizer"
)

func load(t *testing.T, name string) *tokenizer.Tokenizer {
	t.Helper()
	tok, err := tokenizer.Load(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

// TestExpected compares tokens and texts with those of Hugging Face's library for JavaScript, for each kind of model.
func TestExpected(t *testing.T) {
	for _, name := range []string{"bytelevel", "sentencepiece", "metaspace", "unigram", "wordpiece"} {
		t.Run(name, func(t *testing.T) {
			tok := load(t, name)
			b, err := os.ReadFile(filepath.Join("testdata", name, "expected.json"))
			if err != nil {
				t.Fatal(err)
			}
			var all []struct {
				Text             string
				IDs              []int
				Decoded, Skipped string
			}
			if err := json.Unmarshal(b, &all); err != nil {
				t.Fatal(err)
			}
			for _, want := range all {
				got := tok.Encode(want.Text, nil)
				if !slices.Equal(got, want.IDs) {
					t.Errorf("tokens of %q are\n%v, want\n%v", want.Text, got, want.IDs)
				}
				if text := tok.Decode(got, nil); text != want.Decoded {
					t.Errorf("tokens of %q decode to\n%q, want\n%q", want.Text, text, want.Decoded)
				}
				skip := &tokenizer.DecodeOptions{SkipSpecialTokens: true}
				if text := tok.Decode(got, skip); text != want.Skipped {
					t.Errorf("tokens of %q without special ones decode to\n%q, want\n%q", want.Text, text, want.Skipped)
				}
				var b strings.Builder
				stream := tok.Stream(skip)
				for _, id := range got {
					b.WriteString(stream.Next(id))
				}
				if b.WriteString(stream.End()); b.String() != want.Skipped {
					t.Errorf("tokens of %q, one at a time, decode to\n%q, want\n%q", want.Text, b.String(), want.Skipped)
				}
			}
		})
	}
}

func TestOptions(t *testing.T) {
	tok := load(t, "bytelevel")
	bos, eot := tok.BOS, tok.EOS
	if bos < 0 || eot != bos+1 || tok.Pad != -1 || !slices.Equal(tok.Stop, []int{eot}) || tok.Len() != eot+1 {
		t.Fatalf("bos %d, eos %d, pad %d, stop %v, vocabulary of %d", bos, eot, tok.Pad, tok.Stop, tok.Len())
	}
	const text = "hi<|eot_id|>"
	hi := tok.Encode("hi", &tokenizer.EncodeOptions{NoSpecialTokens: true})
	for _, c := range []struct {
		opts *tokenizer.EncodeOptions
		want []int
	}{
		{nil, slices.Concat([]int{bos}, hi, []int{eot})},
		{&tokenizer.EncodeOptions{NoSpecialTokens: true}, append(slices.Clone(hi), eot)},
	} {
		if got := tok.Encode(text, c.opts); !slices.Equal(got, c.want) {
			t.Errorf("Encode(%q, %+v) = %v, want %v", text, c.opts, got, c.want)
		}
	}
	plain := tok.Encode(text, &tokenizer.EncodeOptions{PlainText: true})
	if slices.Contains(plain, eot) || tok.Decode(plain[1:], nil) != text {
		t.Errorf("special tokens as plain text are %v, which decode to %q", plain, tok.Decode(plain, nil))
	}
	if id, ok := tok.ID("<|eot_id|>"); id != eot || !ok || tok.Token(eot) != "<|eot_id|>" {
		t.Errorf("the token <|eot_id|> is %d, %v, want %d", id, ok, eot)
	}
	if _, ok := tok.ID("none"); ok || tok.Token(-1) != "" || tok.Token(tok.Len()) != "" || tok.Decode([]int{-1, tok.Len()}, nil) != "" {
		t.Error("tokens that do not exist have a text")
	}
}

// changed returns the tokenizer bytelevel with another file beside tokenizer.json.
func changed(t *testing.T, name, content string) *tokenizer.Tokenizer {
	dir := t.TempDir()
	file, err := os.ReadFile("testdata/bytelevel/tokenizer.json")
	if err = errors.Join(err, os.WriteFile(filepath.Join(dir, "tokenizer.json"), file, 0o666), os.WriteFile(filepath.Join(dir, name), []byte(content), 0o666)); err != nil {
		t.Fatal(err)
	}
	tok, err := tokenizer.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

// GPT-2's folder has the number of the last token alone.
func TestLastTokenByNumber(t *testing.T) {
	want := load(t, "bytelevel").EOS
	for _, name := range []string{"config.json", "generation_config.json"} {
		if tok := changed(t, name, fmt.Sprintf(`{"eos_token_id": %d}`, want)); tok.EOS != want || !slices.Equal(tok.Stop, []int{want}) {
			t.Errorf("%s: the last token is %d, generation ends at %v, want %d", name, tok.EOS, tok.Stop, want)
		}
	}
}

// Transformers' class for Llama adds the tokens that tokenizer_config.json says, whatever the post-processor.
func TestTokensOfTheClass(t *testing.T) {
	const config = `{"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>", "add_bos_token": false, "add_eos_token": true, "tokenizer_class": %q}`
	tok := load(t, "bytelevel")
	a := tok.Encode("a", &tokenizer.EncodeOptions{NoSpecialTokens: true})
	for class, want := range map[string][]int{
		"PreTrainedTokenizerFast": append([]int{tok.BOS}, a...),
		"LlamaTokenizerFast":      append(slices.Clone(a), tok.EOS),
	} {
		if got := changed(t, "tokenizer_config.json", fmt.Sprintf(config, class)).Encode("a", nil); !slices.Equal(got, want) {
			t.Errorf("%s: the tokens are %v, want %v", class, got, want)
		}
	}
}

// TestRoundTrip decodes every token of a text of any bytes.
func TestRoundTrip(t *testing.T) {
	tok := load(t, "metaspace") // has no normalizer
	var all strings.Builder
	for r := rune(1); r <= 0x10FFFF; r += 1 + r/97 {
		if r < 0xD800 || r > 0xDFFF {
			all.WriteRune(r)
		}
	}
	if got := tok.Decode(tok.Encode(all.String(), &tokenizer.EncodeOptions{NoSpecialTokens: true}), nil); got != all.String() {
		t.Errorf("the code points decode to\n%q, want\n%q", got, all.String())
	}
	for text, want := range map[string]string{"a\xe2\x82": "a\uFFFD", "\xf0\x9f\x98x": "\uFFFDx", "\xff\xc0\x80": "\uFFFD\uFFFD\uFFFD", "\xed\xa0\x80": "\uFFFD\uFFFD\uFFFD"} {
		bytes := load(t, "bytelevel")
		if got := bytes.Decode(bytes.Encode(text, nil)[1:], nil); got != want {
			t.Errorf("the bytes %q decode to %q, want %q", text, got, want)
		}
	}
}

func TestStreamHoldsCharactersBack(t *testing.T) {
	tok := load(t, "bytelevel")
	stream := tok.Stream(nil)
	var got []string
	for _, id := range tok.Encode("☕", nil)[1:] {
		got = append(got, stream.Next(id))
	}
	if len(got) < 2 || strings.Join(got[:len(got)-1], "") != "" || got[len(got)-1] != "☕" {
		t.Errorf("the text of each token is %q, want all of it with the last one", got)
	}
	for _, id := range tok.Encode("☕", nil)[1:3] {
		stream.Next(id)
	}
	if rest := stream.End(); rest != "\uFFFD" {
		t.Errorf("half a character ends with %q, want U+FFFD", rest)
	}
}

// TestEncodeAt checks that tokens are attributed to the part of the text in which they end.
func TestEncodeAt(t *testing.T) {
	for _, c := range []struct {
		name, text string
		offsets    []int
		want       []string // texts of the tokens between the offsets
	}{
		{"bytelevel", "<|begin_of_text|>the cat<|eot_id|>the dog<|eot_id|>", []int{0, 34, 41, 51}, []string{"<|begin_of_text|>the cat<|eot_id|>", "the dog", "<|eot_id|>"}},
		{"bytelevel", "he is\nnot", []int{5, 6, 9}, []string{"\n", "not"}},
		{"bytelevel", "a the b", []int{0, 3, 7}, []string{"a", " the b"}},
		{"bytelevel", "", []int{0, 0}, []string{""}},
		{"metaspace", "<s>the of</s>the of", []int{0, 6, 13, 19}, []string{"<s>the", " of</s>", "the of"}},
	} {
		tok := load(t, c.name)
		tokens, at := tok.EncodeAt(c.text, c.offsets)
		if want := tok.Encode(c.text, &tokenizer.EncodeOptions{NoSpecialTokens: true}); !slices.Equal(tokens, want) {
			t.Errorf("tokens of %q are %v, want those of Encode, %v", c.text, tokens, want)
		}
		for i, want := range c.want {
			var got strings.Builder
			for _, id := range tokens[at[i]:at[i+1]] {
				got.WriteString(strings.NewReplacer("Ġ", " ", "Ċ", "\n", "▁", " ").Replace(tok.Token(id)))
			}
			if got.String() != want {
				t.Errorf("%s: tokens of %q between %d and %d are %q, want %q", c.name, c.text, c.offsets[i], c.offsets[i+1], got.String(), want)
			}
		}
	}
}

func TestLoadErrors(t *testing.T) {
	for _, c := range []struct{ file, want string }{
		{"", "tokenizer.json: no such file or directory: want the file that transformers' save_pretrained writes"},
		{"version https://git-lfs.github.com/spec/v1\noid sha256:0", "is a pointer of Git LFS"},
		{"<html>", "invalid character '<'"},
		{`{"version":"1.0"}`, "has no model"},
		{`{"model":{"type":"WordLevel","vocab":{}}}`, `the model "WordLevel" is not supported`},
		{`{"model":{"type":"BPE","vocab":{"a":0},"merges":["a b"]}}`, `merge 0 of "a" and "b": the vocabulary lacks`},
		{`{"model":{"type":"BPE","vocab":{},"merges":["ab"]}}`, `merge "ab": want two tokens`},
		{`{"model":{"type":"BPE","vocab":{},"merges":[]},"normalizer":{"type":"Nmt"}}`, `the normalizer "Nmt" is not supported`},
		{`{"model":{"type":"BPE","vocab":{},"merges":[]},"pre_tokenizer":{"type":"Split","pattern":{"Regex":"("},"behavior":"Isolated"}}`, `the regular expression "("`},
		{`{"model":{"type":"BPE","vocab":{"a":-1},"merges":[]}}`, `token -1`},
	} {
		dir := t.TempDir()
		if c.file != "" {
			if err := os.WriteFile(filepath.Join(dir, "tokenizer.json"), []byte(c.file), 0o666); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := tokenizer.Load(dir); err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), dir) {
			t.Errorf("Load of %.30q: %v, want %q and the folder", c.file, err, c.want)
		}
	}
}

// FuzzEncode checks that all ways to encode and to decode a text agree.
func FuzzEncode(f *testing.F) {
	var all []*tokenizer.Tokenizer
	for _, name := range []string{"bytelevel", "sentencepiece", "metaspace", "unigram", "wordpiece"} {
		tok, err := tokenizer.Load(filepath.Join("testdata", name))
		if err != nil {
			f.Fatal(err)
		}
		all = append(all, tok)
	}
	f.Add("<s>the of</s> it's\n\n a☕", uint(7))
	f.Add("[CLS] [MASK]  \u0301 <|eot_id|>", uint(9))
	f.Fuzz(func(t *testing.T, text string, offset uint) {
		for _, tok := range all {
			want := tok.Encode(text, &tokenizer.EncodeOptions{NoSpecialTokens: true})
			got, at := tok.EncodeAt(text, []int{int(offset % uint(len(text)+1)), len(text)})
			if !slices.Equal(got, want) || at[0] > at[1] || at[1] != len(want) {
				t.Errorf("EncodeAt(%q) = %v, %v, want %v", text, got, at, want)
			}
			if !utf8.ValidString(text) {
				continue // bytes of a character that are valid so far may be wrong in the whole
			}
			var b strings.Builder
			stream := tok.Stream(nil)
			for _, id := range want {
				b.WriteString(stream.Next(id))
			}
			b.WriteString(stream.End())
			if decoded := tok.Decode(want, nil); b.String() != decoded {
				t.Errorf("tokens of %q, one at a time, decode to %q, want %q", text, b.String(), decoded)
			}
		}
	})
}

func BenchmarkEncode(b *testing.B) {
	tok, err := tokenizer.Load("testdata/bytelevel")
	if err != nil {
		b.Fatal(err)
	}
	text, err := os.ReadFile("testdata/sentences.txt")
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		tok.Encode(string(text), nil)
	}
}
