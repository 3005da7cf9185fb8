package data

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/cpu"
)

// asBytes is an Encode whose tokens are bytes. The labels of a chat are the contents of the assistant's messages that
// are not hidden.
func asBytes(d *Document) (tokens []int, labels []bool, err error) {
	add := func(s string, isLabel bool) {
		for _, b := range []byte(s) {
			tokens, labels = append(tokens, int(b)), append(labels, isLabel)
		}
	}
	for i, raw := range d.Messages {
		var m struct{ Role, Content string }
		if err := json.Unmarshal(raw, &m); err != nil {
			return nil, nil, err
		}
		add(m.Role[:1]+":", false)
		add(m.Content, i >= d.Hidden && m.Role == "assistant")
	}
	add(d.Prompt, false)
	add(d.Completion+d.Text, true)
	if strings.Contains(d.Text, "bad") {
		return tokens, labels[1:], nil
	}
	return tokens, labels, nil
}

// writeLines writes a file of lines and returns its path.
func writeLines(t *testing.T, name string, lines ...string) string {
	t.Helper()
	content := []byte(strings.Join(lines, "\n"))
	if strings.HasSuffix(name, ".gz") {
		content = zipped(t, content)
	}
	return write(t, t.TempDir(), name, content)
}

func openDocuments(t *testing.T, path string, length int, opts *DocumentsOptions) *Documents {
	t.Helper()
	d, err := OpenDocuments(path, length, asBytes, opts)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// shown returns a row's tokens and labels as text, with a dot for padding and for what is not a label.
func shown(tokens, next []int64) string {
	text := func(v []int64) string {
		var b strings.Builder
		for _, c := range v {
			if c <= 0 {
				c = '.'
			}
			b.WriteByte(byte(c))
		}
		return b.String()
	}
	return text(tokens) + "|" + text(next)
}

// Each form of a line has the tokens of its text. The labels are the tokens after those in the row, without the prompt.
// Rows are cut, and documents without labels are dropped.
func TestDocuments(t *testing.T) {
	lines := []string{
		"\ufeff" + `{"messages": [{"role": "user", "content": "Hi", "name": "x"}, {"role": "assistant", "content": "Ho"}], "id": 3}`, "",
		`{"conversations": [{"from": "human", "value": "A"}, {"from": "gpt", "value": "B"}]}`,
		`{"conversations": [{"from": "human", "value": "E"}, {"role": "assistant", "content": "F"}]}`,
		`{"prompt": "one", "completion": "two"}`,
		`{"prompt": [{"role": "assistant", "content": "C"}], "completion": [{"role": "assistant", "content": "D"}]}`,
		`{"text": "long text"}`,
		`{"text": "x"}`,
		`{"prompt": "a long prompt", "completion": "y"}` + "\n",
	}
	want := []string{"u:Hia:H|.....Ho", "u:Aa:|....B", "u:Ea:|....F", "onetw|..two", "a:Ca:|....D", "long tex|ong text"}
	for _, name := range []string{"a.jsonl", "a.jsonl.gz"} {
		d := openDocuments(t, writeLines(t, name, lines...), 8, nil)
		var got []string
		loader, err := NewLoader(d, ranks{0, 1, cpu.New(nil)}, nil)
		if err != nil {
			t.Fatal(err)
		}
		for b, err := range loader.Epoch(t.Context(), 0) {
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, shown(device.Elements[int64](b.Vars[0].Tensor()), device.Elements[int64](b.Vars[1].Tensor())))
			if labels := strings.ReplaceAll(strings.SplitAfter(got[len(got)-1], "|")[1], ".", ""); b.Labels != len(labels) {
				t.Errorf("%s has %d labels, want %d", got[len(got)-1], b.Labels, len(labels))
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: the rows are %q, want %q", name, got, want)
		}
		if got, want := d.Stats(), (DocumentStats{Documents: 8, Truncated: 1, Dropped: 2, Rows: 6, Tokens: 35, Labels: 16, MaxLabels: 8}); got != want {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
	}
}

// A batch is as long as its longest row, or the next multiple, but no longer than the limit.
func TestDocumentsArePadded(t *testing.T) {
	path := writeLines(t, "a.jsonl", `{"text": "abc"}`, `{"text": "abcdef"}`, `{"text": "ab"}`, `{"text": "ab"}`)
	for multiple, want := range map[int][]string{1: {"ab...abcde|bc...bcdef", "aa|bb"}, 4: {"ab.....abcde..|bc.....bcdef..", "a...a...|b...b..."}} {
		d := openDocuments(t, path, 7, &DocumentsOptions{Multiple: multiple})
		loader, err := NewLoader(d, ranks{0, 1, cpu.New(nil)}, &LoaderOptions{Batch: 2})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for b, err := range loader.Epoch(t.Context(), 0) {
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, shown(device.Elements[int64](b.Vars[0].Tensor()), device.Elements[int64](b.Vars[1].Tensor())))
		}
		if !slices.Equal(got, want) {
			t.Errorf("Multiple %d: the batches are %q, want %q", multiple, got, want)
		}
	}
}

// Packed rows hold each document once, whole, next to its positions and its start. They depend only on the seed, and few
// places are padding.
func TestDocumentsArePacked(t *testing.T) {
	const length = 64
	rng := rand.New(rand.NewPCG(1, 2))
	var lines []string
	count := map[string]int{}
	for i := range 1000 {
		text := fmt.Sprintf("%d,%s", i, strings.Repeat("x", int(rng.ExpFloat64()*12)))
		text = text[:min(len(text), length+1)]
		lines, count[text] = append(lines, fmt.Sprintf(`{"text": %q}`, text)), 1
	}
	path := writeLines(t, "a.jsonl", lines...)
	read := func(seed uint64) (d *Documents, fields [4][]int64) {
		d = openDocuments(t, path, length, &DocumentsOptions{Pack: true, Window: 300, Seed: seed})
		rows := make([]int, d.Len())
		var dst []device.Tensor
		for f := range fields {
			fields[f] = make([]int64, d.Len()*length)
			dst = append(dst, device.HostTensor(fields[f], device.Int64, d.Len(), length))
		}
		for i := range rows {
			rows[i] = i
		}
		if err := d.Read(rows, dst); err != nil {
			t.Fatal(err)
		}
		return d, fields
	}
	d, fields := read(3)
	if _, again := read(3); !slices.Equal(again[0], fields[0]) {
		t.Error("equal seeds pack differently")
	}
	if _, other := read(4); slices.Equal(other[0], fields[0]) {
		t.Error("different seeds pack equally")
	}
	for row := range d.Len() {
		tokens, next, positions, starts := fields[0][row*length:], fields[1][row*length:], fields[2][row*length:], fields[3][row*length:]
		text := ""
		for i := range length {
			if positions[i] != int64(i)-starts[i] || starts[i] != int64(i) && starts[i] != starts[i-1] {
				t.Fatalf("row %d, token %d: position %d, start %d", row, i, positions[i], starts[i])
			}
			if next[i] == NotALabel {
				break
			}
			if positions[i] == 0 {
				text = string(rune(tokens[i]))
			}
			if text += string(rune(next[i])); i+1 == length || starts[i+1] != starts[i] {
				count[text]--
			}
		}
	}
	for text, n := range count {
		if n != 0 {
			t.Errorf("the rows have %q %d times too few", text, n)
		}
	}
	if s := d.Stats(); s.Tokens < s.Rows*length*97/100 {
		t.Errorf("%d tokens in %d rows of %d", s.Tokens, s.Rows, length)
	}
}

// A mix of packed sets has each sample as often as its weight says. A job that is killed and goes on with another number
// of ranks has the batches of one that is not.
func TestMixIsResumed(t *testing.T) {
	sets := make([]Dataset, 2)
	for i, letter := range []string{"a", "b"} {
		var lines []string
		for n := range 40 {
			lines = append(lines, fmt.Sprintf(`{"text": "%02d%s"}`, n, strings.Repeat(letter, 4)))
		}
		sets[i] = openDocuments(t, writeLines(t, letter, lines...), 11, &DocumentsOptions{Pack: true})
	}
	mixed, err := Mix(sets, []float64{0.5, 2}, 7)
	if err != nil {
		t.Fatal(err)
	}
	dev := cpu.New(nil)
	// steps returns the labels of each global batch, from a position on, and the position after `stop` of them.
	steps := func(size int, from Position, stop int) (steps []string, after Position) {
		for rank := range size {
			loader, err := NewLoader(mixed, ranks{rank, size, dev}, &LoaderOptions{Batch: 2, GlobalBatch: 4, Shuffle: true, Seed: 5})
			if err != nil {
				t.Fatal(err)
			}
			if err := loader.Resume(from); err != nil {
				t.Fatal(err)
			}
			at := 0
			for b, err := range loader.Epoch(t.Context(), from.Epoch) {
				if err != nil {
					t.Fatal(err)
				}
				if at == len(steps) {
					steps = append(steps, "")
				}
				if b.Weight > 0 { // not a repeated sample
					steps[at] += shown(nil, device.Elements[int64](b.Vars[1].Tensor()))
				}
				if b.EndsStep {
					at++
				}
				if after = loader.Position(); at == stop {
					break
				}
			}
		}
		return steps, after
	}
	want, _ := steps(1, Position{}, -1)
	all := strings.Join(want, "")
	if a, b := strings.Count(all, "a"), strings.Count(all, "b"); a != 40*4/2 || b != 40*4*2 {
		t.Errorf("an epoch has %d and %d letters of the sets, want %d and %d", a, b, 40*4/2, 40*4*2)
	}
	normal := func(steps []string) []string { // micro-batches end with |
		for i := range steps {
			steps[i] = strings.ReplaceAll(steps[i], "|", "")
		}
		return steps
	}
	got, after := steps(2, Position{}, 5)
	rest, _ := steps(3, after, -1)
	if got = normal(append(got, rest...)); !slices.Equal(got, normal(want)) {
		t.Errorf("the steps are\n%q, want\n%q", got, want)
	}
	if _, err := Mix([]Dataset{sets[0], numbers(3)}, []float64{1, 1}, 0); err == nil || !strings.Contains(err.Error(), "set 1 has the fields") {
		t.Errorf("a mix of other fields: %v", err)
	}
	fields := []Field{{Shape: device.Shape{3}}}
	length := &fields[0].Shape[0]
	mixed, err = Mix([]Dataset{Each(2, fields, nil)}, []float64{1}, 0)
	if err != nil {
		t.Fatal(err)
	}
	if mixed.(Ragged).FieldsOf([]int{0, 1}); &fields[0].Shape[0] != length {
		t.Error("a batch's fields replace those of a set, which other goroutines read")
	}
}

// An error names the line.
func TestDocumentErrors(t *testing.T) {
	for line, want := range map[string]string{
		`{"text": }`:                       "line 2: not a document: invalid character",
		`{"txt": "a"}`:                     `line 2: the fields are ["txt"], want "messages", "conversations", "prompt" and "completion", or "text"`,
		`[`:                                "line 2: not a document: unexpected end of JSON input: want a JSON object in each line",
		`[{"text": "a"}]`:                  "line 2: not a document: the line is a JSON array, want an object",
		`{"text": 5}`:                      `line 2: not a document: a JSON number in the place of "text" does not fit`,
		`{"prompt": "a", "completion": 3}`: `line 2: "prompt" and "completion" are not both texts or both lists of messages`,
		`{"conversations": [{"from": "a", "text": "b"}]}`: `line 2: turn 0 of "conversations" lacks the text "from" or "value"`,
		`{"text": "bad"}`: "line 2: Encode returned 3 tokens and 2 labels, want as many",
		`{"text": "az"}`:  "line 2: Encode returned token 122, want one of the 120 tokens of Vocab",
	} {
		if _, err := OpenDocuments(writeLines(t, "a.jsonl", `{"text": "ok"}`, line), 4, asBytes, &DocumentsOptions{Vocab: 120}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: the error is %v, want %q", line, err, want)
		}
	}
	if _, err := OpenDocuments(writeLines(t, "a.jsonl", `{"text": "a"}`), 4, asBytes, nil); err == nil || !strings.Contains(err.Error(), "none of 1 documents has a label") {
		t.Errorf("documents of one token: %v", err)
	}
}
