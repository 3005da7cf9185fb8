package data

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"path/filepath"
	"runtime"
	"slices"
	"sort"
	"strings"
	"sync"

	"github.com/goddp/goddp/device"
)

// A Document is what one line of a file of JSON lines holds: a chat, a prompt with its completion, or a text.
type Document struct {
	// Messages are the messages of a chat: objects with role and content, and with further fields as the line has them.
	// Hidden is the number of messages at the start that are a prompt: no label is one of their tokens.
	Messages []json.RawMessage
	Hidden   int
	Tools    []json.RawMessage // the functions that the assistant of a chat may call

	Prompt, Completion string
	Text               string
}

// Encode returns the tokens of a document, and which of them are labels: those that a model learns to predict. It is
// called concurrently. The document is valid until it returns.
type Encode func(d *Document) (tokens []int, labels []bool, err error)

// NotALabel is the value in the field "next" of a token that the model does not learn: PyTorch's ignore_index.
const NotALabel = -100

// DocumentsOptions are the choices of [OpenDocuments].
type DocumentsOptions struct {
	// Pack puts several documents into a row, and adds the fields "positions" and "starts". Each row has the full length.
	Pack bool
	// Window is the number of documents among which Pack looks for those that fill a row; default 4096. Seed is the seed
	// of the documents' order before.
	Window int
	Seed   uint64
	// Multiple pads the rows of a batch to a multiple, so that captured steps see few shapes; default 1. Some versions of
	// cuDNN compute attention only for multiples of 128. It has no effect with Pack.
	Multiple int
	// Padding is the token in the rest of a row.
	Padding int
	// Vocab is the size of the model's vocabulary. Tokens from Vocab on are an error. 0: they are not checked.
	Vocab int
}

// Documents are rows of the tokens of documents. As a [Dataset] they have the fields "tokens" and "next", both Int64
// [length]: next[i] is the token after tokens[i] if that is a label, else [NotALabel]. A batch is as long as its longest
// row.
//
// With Pack there are two more fields, of the same shape. "positions" is the position of each token in its document.
// "starts" is the index, in its row, of the first token of the document of each token, for
// [github.com/goddp/goddp/autograd.AttentionOptions]. The padding at the end of a row counts as a document.
type Documents struct {
	DocumentsOptions
	length  int
	tokens  []uint32 // of all documents: twice the token, plus 1 if it is a label
	ends    []int    // the end of each document among tokens
	counts  []int    // the number of labels of each row
	packed  []int    // the documents of all rows, row by row
	rowEnds []int    // the end of each row among packed
	stats   DocumentStats
}

// DocumentStats says what [OpenDocuments] did with the documents of the files.
type DocumentStats struct {
	Documents int // all
	Truncated int // those with more than length + 1 tokens
	Dropped   int // those without a label, after the truncation
	Rows      int
	Tokens    int // the tokens in the rows, without padding
	Labels    int
	MaxLabels int // the most labels of a row: for MaxRows of a loss
}

// OpenDocuments reads the files of JSON lines that match a pattern of [filepath.Glob], in the order of their names, as
// rows of at most length tokens. Files may be gzipped. A line has one of these forms:
//
//	{"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}], "tools": [...]}
//	{"conversations": [{"from": "human", "value": "..."}, {"from": "gpt", "value": "..."}]}, or with turns as in "messages"
//	{"prompt": "...", "completion": "..."}
//	{"prompt": [{"role": ...}], "completion": [{"role": ...}]}
//	{"text": "..."}
//
// Other fields are ignored. encode makes tokens of them, at once, and the tokens stay in memory.
//
// A document of n tokens fills n - 1 places of a row, because the last token has no next one. Of a document with more
// than length + 1 tokens, the first length + 1 remain. A document that then has no label is dropped.
func OpenDocuments(pattern string, length int, encode Encode, opts *DocumentsOptions) (*Documents, error) {
	d := &Documents{DocumentsOptions: *cmp.Or(opts, &DocumentsOptions{}), length: length}
	d.Window, d.Multiple = cmp.Or(d.Window, 4096), cmp.Or(d.Multiple, 1)
	d.Vocab = cmp.Or(d.Vocab, math.MaxInt32)
	if length < 1 || length > math.MaxInt32 || d.Window < 1 || d.Multiple < 1 {
		return nil, fmt.Errorf("data: length %d, Window %d and Multiple %d: want at least 1", length, d.Window, d.Multiple)
	}
	if d.Padding < 0 || d.Padding >= d.Vocab {
		return nil, fmt.Errorf("data: Padding is token %d, want one of the %d tokens of Vocab", d.Padding, d.Vocab)
	}
	paths, err := filepath.Glob(pattern)
	if err != nil {
		return nil, fmt.Errorf("data: %q: %w", pattern, err)
	}
	if len(paths) == 0 {
		return nil, fmt.Errorf("data: no file matches %q", pattern)
	}
	sort.Strings(paths)
	for _, path := range paths {
		if err := d.read(path, encode); err != nil {
			return nil, err
		}
	}
	if d.stats.Rows = d.arrange(); d.stats.Rows == 0 {
		return nil, fmt.Errorf("data: %s: none of %d documents has a label among its first %d tokens", pattern, d.stats.Documents, length+1)
	}
	return d, nil
}

// Stats says what became of the documents.
func (d *Documents) Stats() DocumentStats { return d.stats }

// linesAtOnce is the number of lines that are in memory while they are encoded.
const linesAtOnce = 4096

// read appends the documents of a file.
func (d *Documents) read(path string, encode Encode) error {
	f, err := open(path)
	if err != nil {
		return err
	}
	defer f.close()
	in := bufio.NewReaderSize(f.r, 1<<20)
	if mark, err := in.Peek(len(byteOrderMark)); err == nil && string(mark) == byteOrderMark {
		in.Discard(len(byteOrderMark)) // cannot fail after Peek
	}
	var lines [][]byte
	for first := 1; ; first += len(lines) {
		lines = lines[:0]
		for len(lines) < linesAtOnce && err == nil {
			var line []byte
			line, err = in.ReadBytes('\n')
			lines = append(lines, line)
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("data: %s: %w", path, err)
		}
		if at, wrong := d.encode(lines, encode); wrong != nil {
			return fmt.Errorf("data: %s: line %d: %w", path, first+at, wrong)
		}
		if err != nil {
			return nil
		}
	}
}

// encode appends the documents of lines. It returns the first error and its line.
func (d *Documents) encode(lines [][]byte, encode Encode) (int, error) {
	type result struct {
		tokens []uint32
		err    error
	}
	all := make([]result, len(lines))
	var group sync.WaitGroup
	workers := runtime.GOMAXPROCS(0)
	for w := range workers {
		group.Go(func() {
			for i := w; i < len(lines); i += workers {
				if len(bytes.TrimSpace(lines[i])) > 0 {
					all[i].tokens, all[i].err = encodeLine(lines[i], encode, d.Vocab)
				}
			}
		})
	}
	group.Wait()
	for i, r := range all {
		if r.err != nil {
			return i, r.err
		}
		if len(bytes.TrimSpace(lines[i])) > 0 {
			d.add(r.tokens)
		}
	}
	return 0, nil
}

func encodeLine(line []byte, encode Encode, vocab int) ([]uint32, error) {
	document, err := parseDocument(line)
	if err != nil {
		return nil, err
	}
	tokens, labels, err := encode(document)
	if err != nil {
		return nil, err
	}
	if len(tokens) != len(labels) {
		return nil, fmt.Errorf("Encode returned %d tokens and %d labels, want as many", len(tokens), len(labels))
	}
	out := make([]uint32, len(tokens))
	for i, t := range tokens {
		if t < 0 || t >= vocab {
			return nil, fmt.Errorf("Encode returned token %d, want one of the %d tokens of Vocab", t, vocab)
		}
		if out[i] = uint32(t) << 1; labels[i] {
			out[i]++
		}
	}
	return out, nil
}

// add appends a document, unless it has no label.
func (d *Documents) add(tokens []uint32) {
	d.stats.Documents++
	if len(tokens) > d.length+1 {
		d.stats.Truncated++
		tokens = tokens[:d.length+1]
	}
	if len(tokens) == 0 || !slices.ContainsFunc(tokens[1:], func(t uint32) bool { return t&1 == 1 }) {
		d.stats.Dropped++
		return
	}
	d.tokens = append(d.tokens, tokens...)
	d.ends = append(d.ends, len(d.tokens))
}

// document returns the tokens of document i.
func (d *Documents) document(i int) []uint32 {
	if i == 0 {
		return d.tokens[:d.ends[0]]
	}
	return d.tokens[d.ends[i-1]:d.ends[i]]
}

// row returns the documents of row i.
func (d *Documents) row(i int) []int {
	if i == 0 {
		return d.packed[:d.rowEnds[0]]
	}
	return d.packed[d.rowEnds[i-1]:d.rowEnds[i]]
}

// arrange divides the documents among rows, and returns the number of rows.
func (d *Documents) arrange() int {
	if d.Pack {
		lengths := make([]int, len(d.ends))
		for i := range lengths {
			lengths[i] = len(d.document(i)) - 1
		}
		d.packed, d.rowEnds = pack(lengths, d.length, d.Window, d.Seed)
	} else {
		for i := range d.ends {
			d.packed, d.rowEnds = append(d.packed, i), append(d.rowEnds, i+1)
		}
	}
	for i := range d.rowEnds {
		n := 0
		for _, document := range d.row(i) {
			tokens := d.document(document)[1:]
			d.stats.Tokens += len(tokens)
			for _, t := range tokens {
				n += int(t & 1)
			}
		}
		d.counts = append(d.counts, n)
		d.stats.Labels += n
		d.stats.MaxLabels = max(d.stats.MaxLabels, n)
	}
	return len(d.rowEnds)
}

// Len returns the number of rows.
func (d *Documents) Len() int { return len(d.rowEnds) }

// Labels returns the number of labels of row i.
func (d *Documents) Labels(i int) int { return d.counts[i] }

// Fields returns the fields of the longest row.
func (d *Documents) Fields() []Field { return d.fields(d.length) }

// FieldsOf returns the fields of the longest of some rows.
func (d *Documents) FieldsOf(indices []int) []Field {
	if d.Pack {
		return d.fields(d.length)
	}
	longest := 0
	for _, i := range indices {
		longest = max(longest, len(d.document(i))-1)
	}
	return d.fields(min(ceilDiv(longest, d.Multiple)*d.Multiple, d.length))
}

func (d *Documents) fields(length int) []Field {
	names := []string{"tokens", "next"}
	if d.Pack {
		names = append(names, "positions", "starts")
	}
	var fields []Field
	for _, name := range names {
		fields = append(fields, Field{Name: name, DType: device.Int64, Shape: device.Shape{length}})
	}
	return fields
}

// Read writes rows to dst.
func (d *Documents) Read(indices []int, dst []device.Tensor) error {
	length := dst[0].Shape[1]
	var fields [4][]int64
	for row, i := range indices {
		for f := range dst {
			fields[f] = device.Elements[int64](dst[f])[row*length : (row+1)*length]
		}
		tokens, next, at := fields[0], fields[1], 0
		place := func(token, label, start int) {
			tokens[at], next[at] = int64(token), int64(label)
			if d.Pack {
				fields[2][at], fields[3][at] = int64(at-start), int64(start)
			}
			at++
		}
		for _, document := range d.row(i) {
			all, start := d.document(document), at
			for j, t := range all[1:] {
				label := NotALabel
				if t&1 == 1 {
					label = int(t >> 1)
				}
				place(int(all[j]>>1), label, start)
			}
		}
		for start := at; at < length; {
			place(d.Padding, NotALabel, start)
		}
	}
	return nil
}

// roles are the names of roles in conversations, as ShareGPT's files have them.
var roles = map[string]string{"human": "user", "gpt": "assistant"}

// parseDocument parses a line.
func parseDocument(line []byte) (*Document, error) {
	var l struct {
		Messages      []json.RawMessage
		Conversations []json.RawMessage
		Prompt        json.RawMessage
		Completion    json.RawMessage
		Text          *string
		Tools         json.RawMessage // an array, or its text
	}
	switch wrong, err := (*json.UnmarshalTypeError)(nil), json.Unmarshal(line, &l); {
	case errors.As(err, &wrong) && wrong.Field == "":
		return nil, fmt.Errorf("not a document: the line is a JSON %s, want an object", wrong.Value)
	case errors.As(err, &wrong):
		return nil, fmt.Errorf("not a document: a JSON %s in the place of %q does not fit: see data.OpenDocuments", wrong.Value, strings.ToLower(wrong.Field))
	case err != nil:
		return nil, fmt.Errorf("not a document: %w: want a JSON object in each line", err)
	}
	d := &Document{Messages: l.Messages}
	if inner := ""; json.Unmarshal(l.Tools, &inner) == nil {
		l.Tools = json.RawMessage(inner)
	}
	if len(l.Tools) > 0 {
		if err := json.Unmarshal(l.Tools, &d.Tools); err != nil {
			return nil, fmt.Errorf("tools: %w", err)
		}
	}
	switch {
	case len(l.Messages) > 0:
		return d, nil
	case len(l.Conversations) > 0:
		for i, raw := range l.Conversations {
			var turn struct{ Role, From, Value *string }
			switch err := json.Unmarshal(raw, &turn); {
			case turn.Role != nil:
				d.Messages = append(d.Messages, raw)
				continue
			case err != nil || turn.From == nil || turn.Value == nil:
				return nil, fmt.Errorf(`turn %d of "conversations" lacks the text "from" or "value"`, i)
			}
			message, err := json.Marshal(struct {
				Role    string `json:"role"`
				Content string `json:"content"`
			}{cmp.Or(roles[*turn.From], *turn.From), *turn.Value})
			if err != nil {
				return nil, err
			}
			d.Messages = append(d.Messages, message)
		}
		return d, nil
	case l.Prompt != nil && l.Completion != nil:
		var completion []json.RawMessage
		if json.Unmarshal(l.Prompt, &d.Messages) == nil && json.Unmarshal(l.Completion, &completion) == nil {
			d.Hidden, d.Messages = len(d.Messages), append(d.Messages, completion...)
			return d, nil
		}
		d.Messages = nil
		if json.Unmarshal(l.Prompt, &d.Prompt) != nil || json.Unmarshal(l.Completion, &d.Completion) != nil {
			return nil, errors.New(`"prompt" and "completion" are not both texts or both lists of messages`)
		}
		return d, nil
	case l.Text != nil:
		d.Text = *l.Text
		return d, nil
	}
	var fields map[string]json.RawMessage
	_ = json.Unmarshal(line, &fields) // it was an object, or null
	return nil, fmt.Errorf(`the fields are %q, want "messages", "conversations", "prompt" and "completion", or "text"`, slices.Sorted(maps.Keys(fields)))
}
