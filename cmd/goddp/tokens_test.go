package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/tiktoken-go/tokenizer"
	"github.com/tiktoken-go/tokenizer/codec"

	"github.com/goddp/goddp/data"
	"github.com/goddp/goddp/device"
	hf "github.com/goddp/goddp/hf/tokenizer"
	"github.com/goddp/goddp/internal/testkit"
)

// readShard is the tokens of a shard, whose header must be right.
func readShard(t *testing.T, path string) []uint16 {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	tokens := make([]uint16, (len(raw)-1024)/2)
	for i := range tokens {
		tokens[i] = binary.LittleEndian.Uint16(raw[1024+2*i:])
	}
	if magic, n := binary.LittleEndian.Uint32(raw), binary.LittleEndian.Uint32(raw[8:]); magic != 20240520 || int(n) != len(tokens) {
		t.Errorf("%s: magic number %d, %d tokens of %d", path, magic, n, len(tokens))
	}
	return tokens
}

// The tokens are GPT-2's. Each document begins with the token of its end, documents go on from
// shard to shard, and package data reads what was written.
func TestTokens(t *testing.T) {
	dir := t.TempDir()
	one, two := filepath.Join(dir, "one.txt"), filepath.Join(dir, "two.txt")
	os.WriteFile(one, []byte("The quick brown fox jumps over the lazy dog<|endoftext|>Hello world"), 0o600)
	os.WriteFile(two, []byte("Hello world"), 0o600)
	out := filepath.Join(dir, "shards")
	code, stdout, stderr := goddp(t, "tokens", one, two, "-o", out, "--val-size", "4", "--shard-size", "7")
	if code != 0 || stderr != "" {
		t.Fatalf("exit code %d\n%s", code, stderr)
	}
	want := []uint16{50256, 464, 2068, 7586, 21831, 18045, 625, 262, 16931, 3290, 50256, 15496, 995, 50256, 15496, 995}
	var got []uint16
	for i, name := range []string{"val_000000", "train_000001", "train_000002"} {
		path := filepath.Join(out, name+".bin")
		tokens := readShard(t, path)
		if n := []int{4, 7, 5}[i]; len(tokens) != n || !strings.Contains(stdout, fmt.Sprintf("%s: %d tokens\n", path, n)) {
			t.Errorf("%d tokens in %s, want %d; it printed\n%s", len(tokens), name, n, stdout)
		}
		got = append(got, tokens...)
	}
	if !slices.Equal(got, want) {
		t.Errorf("the tokens are %v, want %v", got, want)
	}
	set, err := data.OpenTokens(filepath.Join(out, "train_*.bin"), 3, 50257)
	if err != nil || set.Len() != 3 {
		t.Errorf("%v, %d windows, want 3", err, set.Len())
	}
	if err == nil {
		set.Close()
	}
	code, _, stderr = goddp(t, "tokens", one, "-o", out)
	if code != 1 || !strings.Contains(stderr, "000000.bin exists already") && !strings.Contains(stderr, "000001.bin exists already") {
		t.Errorf("over other shards the exit code is %d: %s", code, stderr)
	}
	link := filepath.Join(dir, "link")
	os.Symlink(filepath.Join(dir, "none"), link)
	code, _, stderr = goddp(t, "tokens", one, "-o", link)
	if _, err := os.Lstat(link); code != 1 || strings.Count(stderr, "\n") != 1 || err != nil {
		t.Errorf("in a folder that cannot be made, the exit code is %d: %s, %v", code, stderr, err)
	}
}

// With --tokenizer, the tokens are a model's, each document begins with its bos token, and other special tokens
// are text. Tokens of a large vocabulary have 32 bits.
func TestTokensOfAModel(t *testing.T) {
	const folder = "../../hf/tokenizer/testdata/bytelevel"
	tok, err := hf.Load(folder)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	large := filepath.Join(dir, "large")
	file, err := os.ReadFile(filepath.Join(folder, "tokenizer.json"))
	if err != nil {
		t.Fatal(err)
	}
	config, err := os.ReadFile(filepath.Join(folder, "tokenizer_config.json"))
	if err != nil {
		t.Fatal(err)
	}
	wide := strings.ReplaceAll(string(file), fmt.Sprintf(`"id":%d`, tok.BOS), `"id":151000`)
	text := filepath.Join(dir, "text.txt")
	for _, err := range []error{
		os.Mkdir(large, 0o700), os.WriteFile(filepath.Join(large, "tokenizer.json"), []byte(wide), 0o600),
		os.WriteFile(filepath.Join(large, "tokenizer_config.json"), config, 0o600),
		os.WriteFile(text, []byte("the cat<|endoftext|>a <|eot_id|> dog"), 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	plain := &hf.EncodeOptions{NoSpecialTokens: true, PlainText: true}
	for name, c := range map[string]struct {
		folder string
		bos    int
		bytes  int64 // of a token
	}{"small": {folder, tok.BOS, 2}, "large": {large, 151000, 4}} {
		out := filepath.Join(dir, "shards", name)
		code, _, stderr := goddp(t, "tokens", "--tokenizer", c.folder, text, "-o", out, "--val-size", "0")
		if code != 0 || stderr != "" {
			t.Fatalf("exit code %d\n%s", code, stderr)
		}
		want := slices.Concat([]int{c.bos}, tok.Encode("the cat", plain), []int{c.bos}, tok.Encode("a <|eot_id|> dog", plain))
		path := filepath.Join(out, "train_000001.bin")
		if info, err := os.Stat(path); err != nil || info.Size() != 1024+c.bytes*int64(len(want)) {
			t.Errorf("%s: %v, want a shard of %d tokens of %d bytes", name, err, len(want), c.bytes)
		}
		set, err := data.OpenTokens(path, len(want)-1, 151001)
		if err != nil {
			t.Fatal(err)
		}
		defer set.Close()
		dst := []device.Tensor{device.HostTensor(make([]int64, len(want)-1), device.Invalid, 1, len(want)-1), device.HostTensor(make([]int64, len(want)-1), device.Invalid, 1, len(want)-1)}
		if err := set.Read([]int{0}, dst); err != nil {
			t.Fatal(err)
		}
		var got []int
		for _, token := range append(device.Elements[int64](dst[0])[:1:1], device.Elements[int64](dst[1])...) {
			got = append(got, int(token))
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: the tokens are %v, want %v", name, got, want)
		}
	}
	if code, _, stderr := goddp(t, "tokens", "--tokenizer", dir, text, "-o", filepath.Join(dir, "none")); code != 1 || !strings.Contains(stderr, "tokenizer.json: no such file") {
		t.Errorf("without a tokenizer the exit code is %d: %s", code, stderr)
	}
}

// A long document is cut where that does not change its tokens.
func TestLongDocumentsAreEncodedAsAWhole(t *testing.T) {
	defer func(before int) { pieceSize = before }(pieceSize)
	pieceSize = 1 << 14
	var text bytes.Buffer
	for i := 0; text.Len() < 3*pieceSize; i++ {
		fmt.Fprintf(&text, "line %d  of words,\n\n  some é%s\nit's\t\n词\né\n", i, strings.Repeat(" ", i%5))
	}
	path := filepath.Join(t.TempDir(), "long.txt")
	if err := os.WriteFile(path, text.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	encoders := map[string]encoder{"GPT-2": gpt2(codec.NewR50kBase())}
	for _, name := range []string{"bytelevel", "sentencepiece", "metaspace"} {
		enc, err := huggingFace(filepath.Join("../../hf/tokenizer/testdata", name))
		if err != nil {
			t.Fatal(err)
		}
		encoders[name] = enc
	}
	for name, enc := range encoders {
		want, err := enc.encode(piece{text: text.String(), first: true})
		if err != nil {
			t.Fatal(err)
		}
		want = slices.Insert(want, 0, uint32(enc.first))
		var failed error
		got := slices.Collect(tokensOf([]string{path}, enc, &failed))
		if failed != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %d tokens in pieces, want the %d of the whole: %v", name, len(got), len(want), failed)
		}
	}
	n := 0
	for p := range pieces(path) {
		if n++; p.first != (n == 1) || len(p.text) > 2*pieceSize {
			t.Errorf("piece %d of %d bytes begins the document: %t", n, len(p.text), p.first)
		}
	}
	if n < 2 {
		t.Errorf("%d pieces, want more", n)
	}
}

// The tokens' bytes are the text's, whatever characters it has.
func TestEncodeKeepsText(t *testing.T) {
	gpt2 := codec.NewR50kBase()
	for text, want := range map[string][]uint32{
		"a\x7fb":         {64, 221, 65},
		"\x7f\x7f":       {221, 221},
		"\x01\x7f\x01":   {189, 221, 189},
		"x  \x7f":        {87, 220, 220, 221}, // the matcher gives one space to the word behind
		"\x7f's \x7f 's": {221, 6, 82, 220, 221, 705, 82},
		"\x00":           {188},
		"\ufeffa":        {171, 119, 123, 64},
		"a\r\nb":         {64, 201, 198, 65},
		"\ufffd":         {4210},
		"":               {},
	} {
		if got, err := encode(gpt2, piece{text: text}); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %v, %v, want %v", text, got, err, want)
		}
	}
	last := rune(0x3000)
	if testkit.IsLong() {
		last = utf8.MaxRune
	}
	var every strings.Builder
	for r := range last + 1 {
		if utf8.ValidRune(r) {
			every.WriteRune(r)
		}
	}
	for _, text := range []string{every.String(), strings.Repeat("\x7f", 1<<16), strings.Repeat(" ", 1<<16), strings.Repeat("a", 1<<16)} {
		if _, err := encode(gpt2, piece{text: text}); err != nil {
			t.Errorf("%d bytes that begin with %.9q: %v", len(text), text, err)
		}
	}
	_, err := encode(forgetful{gpt2}, piece{text: "ab\x7fcde", offset: 100})
	if err == nil || err.Error() != `at byte 104: encoding and decoding does not reproduce the text "de": this tokenizer cannot represent it` {
		t.Errorf("a tokenizer that drops text: %v", err)
	}
}

// forgetful drops the character d.
type forgetful struct{ tokenizer.Codec }

func (f forgetful) Encode(text string) ([]uint, []string, error) {
	return f.Codec.Encode(strings.ReplaceAll(text, "d", ""))
}

func TestTokensRefuses(t *testing.T) {
	dir := t.TempDir()
	file := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	binary, short, empty := file("a.bin", "abc<|endoftext|>def\xff\xfe"), file("short.txt", "Hello world"), file("empty.txt", "")
	out := filepath.Join(dir, "out")
	for want, args := range map[string][]string{
		"a.bin: at byte 19: the text is not UTF-8":       {short, binary, "-o", out},
		"goddp tokens: stat ":                            {short, filepath.Join(dir, "none"), "-o", out},
		dir + " is a folder: want a file":                {short, dir, "-o", out},
		"the files have no text":                         {empty, "-o", out},
		"all 3 tokens would be for validation":           {short, "-o", out},
		"want at least one file, got none":               {"-o", out},
		"want a folder, -o DIR":                          {short},
		"--shard-size 1: want 2 or more":                 {short, "-o", out, "--shard-size", "1"},
		"--val-size 1: want 0, or 2 or more":             {short, "-o", out, "--val-size", "1"},
		`invalid argument "x" for "--shard-size" flag: `: {short, "-o", out, "--shard-size", "x"},
	} {
		code, stdout, stderr := goddp(t, append([]string{"tokens"}, args...)...)
		if code == 0 || stdout != "" || !strings.Contains(stderr, want) {
			t.Errorf("%v: exit code %d; it printed %q and\n%s\nwant %q", args, code, stdout, stderr, want)
		}
		if _, err := os.Stat(out); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%v: it left the folder: %v", args, err)
		}
	}
}
