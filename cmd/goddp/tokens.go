package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/tiktoken-go/tokenizer"
	"github.com/tiktoken-go/tokenizer/codec"

	"github.com/goddp/goddp/data"
	hf "github.com/goddp/goddp/hf/tokenizer"
)

// separator separates the documents of a file.
const separator = "<|endoftext|>"

// endOfText is the first token of each document, as in llm.c's shards.
const endOfText = 50256

// makeTokens implements "goddp tokens", which makes shards of tokens from text.
func makeTokens(args []string) (err error) {
	var out, dir string
	var shardSize, valSize int
	fs := newFlags("tokens")
	fs.StringVar(&dir, "tokenizer", "", "`folder` of Hugging Face's hub with the tokenizer (default: GPT-2's, built in)")
	fs.StringVarP(&out, "output", "o", "", "`folder` to write the shards to")
	fs.IntVar(&shardSize, "shard-size", 100_000_000, "tokens of a shard")
	fs.IntVar(&valSize, "val-size", 1<<15, "tokens of the validation shard, the first; 0: none")
	if err := parse(fs, args, `Make token shards of text, by GPT-2's byte pair encoding or the tokenizer of a model.

Usage:
  goddp tokens [flags] FILE... -o DIR

A file is a document, or several with %s between them. The shards are files of
llm.c's formats: DIR/val_000000.bin, DIR/train_000001.bin and so on. Their tokens have
32 bits if the vocabulary has more than 65536, else 16. Each document begins with the
token %d, or with the tokenizer's bos token, or eos if it has none. Other special tokens
in a file are text. The last shard has the tokens that remain; a reader skips it if it is
shorter than a window. A file is UTF-8, and may be a pipe. Nothing is downloaded.

Examples:
  goddp tokens input.txt -o shards
  goddp tokens corpus/*.txt -o shards --val-size 100000000
  goddp tokens <(zcat corpus.txt.gz) -o shards
  goddp tokens --tokenizer SmolLM2-135M corpus/*.txt -o shards

Flags:
%s
Exit codes: 0 the shards are written; 1 a file cannot be read or written; 2 usage.
`, separator, endOfText); err != nil {
		return err
	}
	switch {
	case fs.NArg() == 0:
		return usagef("want at least one file, got none")
	case out == "":
		return usagef("want a folder, -o DIR")
	case shardSize < 2:
		return usagef("--shard-size %d: want 2 or more", shardSize)
	case valSize < 0 || valSize == 1:
		return usagef("--val-size %d: want 0, or 2 or more", valSize)
	}
	var enc encoder
	if dir == "" {
		enc = gpt2(codec.NewR50kBase())
	} else if enc, err = huggingFace(dir); err != nil {
		return err
	}
	w := &shardWriter{dir: out, val: valSize, train: shardSize, encoder: enc}
	if err := w.write(fs.Args()); err != nil {
		return errors.Join(err, w.remove())
	}
	for _, s := range w.written {
		fmt.Fprintf(stdout, "%s: %d tokens\n", s.path, s.tokens)
	}
	return nil
}

// An encoder turns pieces of text into tokens less than vocab. Each document begins with the token first.
type encoder struct {
	first, vocab int
	encode       func(p piece) ([]uint32, error)
}

// gpt2 is the encoder of GPT-2.
func gpt2(c tokenizer.Codec) encoder {
	return encoder{endOfText, endOfText + 1, func(p piece) ([]uint32, error) { return encode(c, p) }}
}

// huggingFace returns the encoder of the tokenizer in a folder.
func huggingFace(dir string) (encoder, error) {
	t, err := hf.Load(dir)
	if err != nil {
		return encoder{}, err
	}
	first := t.BOS
	if first < 0 {
		first = t.EOS
	}
	if first < 0 {
		return encoder{}, fmt.Errorf("%s: the tokenizer has no bos_token and no eos_token: want one of them, with which each document begins", dir)
	}
	return encoder{first, t.Len(), func(p piece) ([]uint32, error) {
		ids := t.Encode(p.text, &hf.EncodeOptions{NoSpecialTokens: true, PlainText: true})
		if !p.first && len(ids) > 0 && t.Token(ids[0]) == "▁" {
			ids = ids[1:] // SentencePiece puts a space before a text; this piece follows another, and begins with a new line
		}
		tokens := make([]uint32, len(ids))
		for i, id := range ids {
			tokens[i] = uint32(id)
		}
		return tokens, nil
	}}, nil
}

// shardWriter writes the tokens of files to shards.
type shardWriter struct {
	encoder
	dir        string
	val, train int // number of tokens of a validation and of a training shard
	written    []shard
	made       []string // the folders that write made, the innermost first
}

type shard struct {
	path   string
	tokens int
}

// write writes all shards. It returns an error if the folder holds shards of an earlier run,
// because a reader would take them for part of this one.
func (w *shardWriter) write(files []string) error {
	for _, path := range files { // before the work, which a wrong path would waste
		if err := checkInput(path); err != nil {
			return err
		}
	}
	var missing []string
	for dir := filepath.Clean(w.dir); ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
			break
		}
		missing = append(missing, dir)
	}
	if err := os.MkdirAll(w.dir, 0o777); err != nil {
		return err
	}
	w.made = missing
	if there, _ := filepath.Glob(filepath.Join(w.dir, "*_[0-9][0-9][0-9][0-9][0-9][0-9].bin")); len(there) > 0 { // the pattern is well formed
		return fmt.Errorf("%s exists already: want a folder without shards", there[0])
	}
	var failed error
	next, stop := iter.Pull(tokensOf(files, w.encoder, &failed))
	defer stop()
	token, more := next()
	for number := 0; more; number++ {
		split, size := "train", w.train
		if number == 0 {
			if w.val == 0 {
				continue
			}
			split, size = "val", w.val
		}
		n := 0
		path := filepath.Join(w.dir, fmt.Sprintf("%s_%06d.bin", split, number))
		err := w.shard(path, func(yield func(uint32) bool) {
			for ; more && n < size && yield(token); n++ {
				token, more = next()
			}
		})
		if err != nil {
			return err
		}
		w.written[len(w.written)-1].tokens = n
	}
	switch {
	case failed != nil:
		return failed
	case len(w.written) == 0:
		return errors.New("the files have no text")
	case w.val > 0 && len(w.written) == 1:
		return fmt.Errorf("all %d tokens would be for validation, none for training: want a smaller --val-size", w.written[0].tokens)
	}
	return nil
}

// shard writes one shard.
func (w *shardWriter) shard(path string, tokens iter.Seq[uint32]) (err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o666)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	w.written = append(w.written, shard{path: path})
	if w.vocab > 1<<16 {
		_, err = data.WriteTokens(f, tokens)
		return err
	}
	_, err = data.WriteTokens(f, func(yield func(uint16) bool) {
		for token := range tokens {
			if !yield(uint16(token)) {
				return
			}
		}
	})
	return err
}

// checkInput returns an error if a file cannot be read. It does not open a pipe, which can be read only once.
func checkInput(path string) error {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return err
	case info.IsDir():
		return fmt.Errorf("%s is a folder: want a file", path)
	case !info.Mode().IsRegular():
		return nil
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return f.Close()
}

// remove removes the shards that were written, and the folders that write made.
func (w *shardWriter) remove() error {
	var errs []error
	for _, s := range w.written {
		errs = append(errs, os.Remove(s.path))
	}
	for _, dir := range w.made {
		errs = append(errs, os.Remove(dir))
	}
	return errors.Join(errs...)
}

// tokensOf returns the tokens of all files, in order. It encodes pieces of text concurrently.
// After an error the sequence ends, and *failed holds the error.
func tokensOf(files []string, enc encoder, failed *error) iter.Seq[uint32] {
	type encoded struct {
		tokens []uint32
		err    error
	}
	return func(yield func(uint32) bool) {
		waiting := make(chan chan encoded, runtime.GOMAXPROCS(0))
		stop := make(chan struct{})
		go func() { // ends when all text is encoded, or when the loop below ends
			defer close(waiting)
			for _, path := range files {
				for piece, err := range pieces(path) {
					done := make(chan encoded, 1)
					select {
					case waiting <- done:
					case <-stop:
						return
					}
					if err != nil {
						done <- encoded{err: err}
						return
					}
					go func() {
						tokens, err := enc.encode(piece)
						if err != nil {
							err = fmt.Errorf("%s: %w", path, err)
						}
						if piece.first {
							tokens = slices.Insert(tokens, 0, uint32(enc.first))
						}
						done <- encoded{tokens, err}
					}()
				}
			}
		}()
		defer func() { // waits for the end of the goroutines
			close(stop)
			for done := range waiting {
				<-done
			}
		}()
		for done := range waiting {
			e := <-done
			if e.err != nil {
				*failed = e.err
				return
			}
			for _, t := range e.tokens {
				if !yield(t) {
					return
				}
			}
		}
	}
}

// piece is a part of a document's text.
type piece struct {
	text   string
	offset int64 // where the text begins in the file
	first  bool  // the piece starts a document
}

// The matcher of the tokenizer's library skips the character del. The character substitute replaces del: both are of
// the same class, and no token of more than one byte contains either of them.
const (
	del, delToken = "\x7f", 221
	substitute    = "\x01"
)

// encode returns the tokens of a piece. It returns an error unless they decode to the piece.
func encode(gpt2 tokenizer.Codec, p piece) ([]uint32, error) {
	ids, parts, err := gpt2.Encode(strings.ReplaceAll(p.text, del, substitute))
	if err != nil {
		return nil, fmt.Errorf("at byte %d: %w", p.offset, err)
	}
	at := 0
	for i := range ids {
		if parts[i] == substitute && strings.HasPrefix(p.text[at:], del) {
			ids[i] = delToken
		}
		at += len(parts[i])
	}
	switch decoded, err := gpt2.Decode(ids); {
	case err != nil:
		return nil, fmt.Errorf("at byte %d: %w", p.offset, err)
	case decoded != p.text:
		same := 0
		for same < min(len(decoded), len(p.text)) && decoded[same] == p.text[same] {
			same++
		}
		return nil, fmt.Errorf("at byte %d: encoding and decoding does not reproduce the text %.10q: this tokenizer cannot represent it", p.offset+int64(same), p.text[same:])
	}
	tokens := make([]uint32, len(ids))
	for i, id := range ids {
		tokens[i] = uint32(id)
	}
	return tokens, nil
}

// pieceSize is the smallest size of a piece in bytes. The last piece of a document may be
// smaller. Tests reduce it.
var pieceSize = 1 << 20

// pieces returns the pieces of a file's documents. It cuts documents only at places that do
// not change the encoding.
func pieces(path string) iter.Seq2[piece, error] {
	return func(yield func(piece, error) bool) {
		f, err := os.Open(path)
		if err != nil {
			yield(piece{}, err)
			return
		}
		defer f.Close()
		var text []byte
		var offset int64 // offset of text in the file
		first, ended := true, false
		for !ended || len(text) > 0 {
			if !ended && len(text) < 2*pieceSize {
				n := len(text)
				text = slices.Grow(text, pieceSize)[:n+pieceSize]
				got, err := io.ReadFull(f, text[n:])
				text = text[:n+got]
				if ended = errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF); err != nil && !ended {
					yield(piece{}, err)
					return
				}
			}
			end, next := cut(text, ended)
			if end < 0 { // cut needs more text
				more, err := io.ReadAll(io.LimitReader(f, int64(pieceSize)))
				if err != nil {
					yield(piece{}, err)
					return
				}
				text, ended = append(text, more...), len(more) == 0
				continue
			}
			p := piece{string(text[:end]), offset, first}
			if !utf8.ValidString(p.text) {
				yield(piece{}, fmt.Errorf("%s: at byte %d: the text is not UTF-8", path, offset+int64(invalidAt(p.text))))
				return
			}
			if end > 0 && !yield(p, nil) {
				return
			}
			first = next > end || first && end == 0
			text, offset = text[next:], offset+int64(next)
		}
	}
}

// cut returns where the first piece of text ends, and where the next one begins. It cuts at a
// separator, or at the end of a line between a letter or a digit and a character that is not a space, where all
// tokenizers split: some take a new line together with punctuation. ended says that no text follows. end is -1 if cut needs more text.
func cut(text []byte, ended bool) (end, next int) {
	at := bytes.Index(text, []byte(separator))
	if at >= 0 && at < pieceSize {
		return at, at + len(separator)
	}
	last := len(text) - 1 // the character after each earlier index is known
	if at >= 0 {
		last = at - 1
	}
	for i := pieceSize; i < last && i < len(text)-len(separator); i++ {
		if text[i] != '\n' {
			continue
		}
		before, _ := utf8.DecodeLastRune(text[:i])
		behind, _ := utf8.DecodeRune(text[i+1:])
		if (unicode.IsLetter(before) || unicode.IsDigit(before)) && isVisible(behind) {
			return i, i
		}
	}
	switch {
	case at >= 0:
		return at, at + len(separator)
	case ended:
		return len(text), len(text)
	}
	return -1, -1
}

func isVisible(r rune) bool {
	return r != utf8.RuneError && !unicode.IsSpace(r) && !unicode.IsControl(r)
}

// invalidAt returns the index of the first byte of text that is not UTF-8.
func invalidAt(text string) int {
	for i := 0; i < len(text); {
		r, n := utf8.DecodeRuneInString(text[i:])
		if r == utf8.RuneError && n == 1 {
			return i
		}
		i += n
	}
	return len(text)
}
