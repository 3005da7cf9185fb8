package tokenizer

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// A Tokenizer turns text into tokens and back. Its methods may be called concurrently.
type Tokenizer struct {
	// The first and the last token of a text, and the token that fills rows; -1 if the tokenizer has none.
	BOS, EOS, Pad int
	// Stop are the tokens at which generation ends: the eos_token_id of generation_config.json, else EOS.
	Stop []int

	normalize func(string) string // nil: none
	split     splitter            // nil: none
	model     model
	before    []int // the tokens that the post-processor adds to a text
	after     []int
	decode    decoder // nil: tokens are joined with spaces

	raw, normalized matcher // the added tokens that are found before and after normalization
	added           map[string]int
	tokens          []string // text of each token; "" if there is none
	special         []bool   // the token is an added token that is special
}

// A model turns a piece of text into tokens, which it appends to dst.
type model interface {
	encode(dst []int, piece string) []int
	vocabulary() map[string]int
}

// EncodeOptions are options of [Tokenizer.Encode].
type EncodeOptions struct {
	// NoSpecialTokens leaves out the tokens that the post-processor adds, such as Llama's <|begin_of_text|>. A chat
	// that a template rendered has them already.
	NoSpecialTokens bool
	// PlainText reads special tokens in the text as text, which is safe for text of strangers.
	PlainText bool
}

// Before returns the tokens that the post-processor adds before a text, such as the first token.
func (t *Tokenizer) Before() []int { return slices.Clone(t.before) }

// Encode returns the tokens of text. opts may be nil.
func (t *Tokenizer) Encode(text string, opts *EncodeOptions) []int {
	if opts == nil {
		opts = new(EncodeOptions)
	}
	out := make([]int, 0, len(text)/3+len(t.before)+len(t.after)+1)
	if !opts.NoSpecialTokens {
		out = append(out, t.before...)
	}
	start := true
	t.raw.split(text, opts.PlainText, func(section string, id int) {
		if id >= 0 {
			out = append(out, id)
		} else {
			out = t.encodeSection(out, section, start, opts.PlainText)
		}
		start = false
	})
	if !opts.NoSpecialTokens {
		out = append(out, t.after...)
	}
	return out
}

// encodeSection appends the tokens of text between added tokens to out. start says that it begins the text.
func (t *Tokenizer) encodeSection(out []int, text string, start, plain bool) []int {
	if t.normalize != nil {
		text = t.normalize(text)
	}
	var pieces []string
	t.normalized.split(text, plain, func(section string, id int) {
		switch {
		case id >= 0:
			out = append(out, id)
		case t.split == nil:
			out = t.model.encode(out, section)
		default:
			pieces = t.split(pieces[:0], section, start)
			for _, piece := range pieces {
				out = t.model.encode(out, piece)
			}
		}
		start = false
	})
	return out
}

// EncodeAt is Encode without the tokens of the post-processor. It also returns for each offset the number of tokens
// that end at or before this byte of text: so tokens[at[0]:at[1]] are the tokens of text[offsets[0]:offsets[1]],
// and a token that spans an offset counts as after it. The offsets must ascend.
func (t *Tokenizer) EncodeAt(text string, offsets []int) (tokens, at []int) {
	at = make([]int, len(offsets))
	begin, i := 0, 0 // where the section begins; the next offset
	t.raw.split(text, false, func(section string, id int) {
		n, end := len(tokens), begin+len(section)
		if id >= 0 {
			tokens = append(tokens, id)
		} else {
			tokens = t.encodeSection(tokens, section, begin == 0, false)
		}
		for ; i < len(offsets) && offsets[i] <= end; i++ {
			switch at[i] = n; {
			case offsets[i] == end:
				at[i] = len(tokens)
			case id < 0 && offsets[i] > begin:
				// The encoding of the section up to the offset begins with the tokens that do not depend on what follows.
				prefix := t.encodeSection(nil, section[:offsets[i]-begin], begin == 0, false)
				for at[i] < len(tokens) && at[i]-n < len(prefix) && prefix[at[i]-n] == tokens[at[i]] {
					at[i]++
				}
			}
		}
		begin = end
	})
	return tokens, at
}

// DecodeOptions are options of [Tokenizer.Decode].
type DecodeOptions struct {
	SkipSpecialTokens bool
}

// Decode returns the text of tokens. Bytes that are not UTF-8 become U+FFFD. A token that the vocabulary lacks has no
// text. opts may be nil.
func (t *Tokenizer) Decode(tokens []int, opts *DecodeOptions) string {
	texts := make([]string, 0, len(tokens))
	for _, id := range tokens {
		if id < 0 || id >= len(t.tokens) || opts != nil && opts.SkipSpecialTokens && t.special[id] {
			continue
		}
		texts = append(texts, t.tokens[id])
	}
	if t.decode == nil {
		return strings.Join(texts, " ")
	}
	return strings.Join(t.decode(texts), "")
}

// Len returns the size of the vocabulary: the greatest token and one.
func (t *Tokenizer) Len() int { return len(t.tokens) }

// ID returns the token with this text in the vocabulary. ok is false if there is none.
func (t *Tokenizer) ID(text string) (id int, ok bool) {
	if id, ok = t.added[text]; !ok {
		id, ok = t.model.vocabulary()[text]
	}
	return id, ok
}

// Token returns the text of a token in the vocabulary, which differs from what it decodes to: "Ġthe" is " the". It is
// empty if there is no such token.
func (t *Tokenizer) Token(id int) string {
	if id < 0 || id >= len(t.tokens) {
		return ""
	}
	return t.tokens[id]
}

// add fills in the texts of all tokens, and what finds the added ones in a text.
func (t *Tokenizer) add(added []addedToken) error {
	least, n := 0, 0
	for _, id := range t.model.vocabulary() {
		least, n = min(least, id), max(n, id+1)
	}
	for _, a := range added {
		least, n = min(least, a.ID), max(n, a.ID+1)
	}
	if least < 0 || n > maxTokens {
		return fmt.Errorf("the vocabulary has the token %d and %d tokens: want tokens from 0 to %d", least, n, maxTokens-1)
	}
	t.tokens, t.special, t.added = make([]string, n), make([]bool, n), make(map[string]int)
	for text, id := range t.model.vocabulary() {
		t.tokens[id] = text
	}
	for _, a := range added {
		t.tokens[a.ID], t.special[a.ID], t.added[a.Content] = a.Content, a.Special, a.ID
		if !a.Normalized || t.normalize == nil {
			t.raw.add(a)
			continue
		}
		a.Content = t.normalize(a.Content)
		t.normalized.add(a)
	}
	return nil
}

// maxTokens is far more than a vocabulary has. It protects from a file that is wrong.
const maxTokens = 1 << 24

// A matcher finds added tokens in a text.
type matcher struct {
	byFirst [256][]addedToken // by the first byte, the longest first
	any     bool
}

func (m *matcher) add(a addedToken) {
	if a.Content == "" {
		return
	}
	list := &m.byFirst[a.Content[0]]
	*list = append(*list, a)
	slices.SortStableFunc(*list, func(a, b addedToken) int { return cmp.Compare(len(b.Content), len(a.Content)) })
	m.any = true
}

// split calls yield with each added token and its number, and with each text between them and -1. plain skips tokens
// that are special.
func (m *matcher) split(text string, plain bool, yield func(section string, id int)) {
	from := 0
	for i := 0; m.any && i < len(text); {
		a := m.at(text, i, plain)
		if a == nil {
			i++
			continue
		}
		begin, end := i, i+len(a.Content)
		if a.LStrip {
			begin = from + len(strings.TrimRightFunc(text[from:i], unicode.IsSpace))
		}
		if a.RStrip {
			end = len(text) - len(strings.TrimLeftFunc(text[end:], unicode.IsSpace))
		}
		if begin > from {
			yield(text[from:begin], -1)
		}
		yield(text[begin:end], a.ID)
		from, i = end, end
	}
	if from < len(text) {
		yield(text[from:], -1)
	}
}

// at returns the longest added token that begins at a byte of text, or nil.
func (m *matcher) at(text string, i int, plain bool) *addedToken {
	list := m.byFirst[text[i]]
	for k := range list {
		a := &list[k]
		if !strings.HasPrefix(text[i:], a.Content) || plain && a.Special {
			continue
		}
		if a.SingleWord {
			before, _ := utf8.DecodeLastRuneInString(text[:i])
			behind, _ := utf8.DecodeRuneInString(text[i+len(a.Content):])
			if i > 0 && isWord(before) || i+len(a.Content) < len(text) && isWord(behind) {
				continue
			}
		}
		return a
	}
	return nil
}

// A Stream decodes tokens one at a time, as a generation makes them.
//
// The algorithm is that of DecodeStream in Hugging Face's library tokenizers: the text of a token is what it adds to
// the text of the tokens since the last text.
type Stream struct {
	t      *Tokenizer
	opts   *DecodeOptions
	tokens []int
	read   int    // number of tokens whose text is written
	prefix string // their text
}

// Stream returns a decoder for one text. opts may be nil.
func (t *Tokenizer) Stream(opts *DecodeOptions) *Stream { return &Stream{t: t, opts: opts} }

// Next returns the text that a token adds. It is empty while the text ends within a character.
func (s *Stream) Next(token int) string {
	s.tokens = append(s.tokens, token)
	text := s.t.Decode(s.tokens, s.opts)
	if len(text) <= len(s.prefix) || strings.HasSuffix(text, "\uFFFD") {
		return ""
	}
	return s.take(text)
}

// take returns the new part of text, the text of all tokens, and forgets the tokens before.
func (s *Stream) take(text string) string {
	added := text[min(len(s.prefix), len(text)):]
	s.tokens = s.tokens[s.read:]
	s.read = len(s.tokens)
	s.prefix = s.t.Decode(s.tokens, s.opts)
	return added
}

// End returns the text that Next held back because it ends within a character.
func (s *Stream) End() string { return s.take(s.t.Decode(s.tokens, s.opts)) }
