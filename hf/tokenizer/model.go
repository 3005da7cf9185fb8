package tokenizer

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"sync"
	"unicode/utf8"
)

// newModel returns the model of tokenizer.json. byteLevel says that the vocabulary writes bytes as characters.
func newModel(f *modelFile, byteLevel bool) (model, error) {
	kind := f.Type
	if kind == "" { // older files name it only by its fields
		switch {
		case f.Merges != nil:
			kind = "BPE"
		case f.MaxChars > 0:
			kind = "WordPiece"
		default:
			kind = "Unigram"
		}
	}
	if kind == "Unigram" {
		return newUnigram(f)
	}
	var vocab map[string]int
	if err := json.Unmarshal(f.Vocab, &vocab); err != nil {
		return nil, fmt.Errorf("the vocabulary: %w", err)
	}
	unk := -1
	if f.UnkToken != nil {
		if id, ok := vocab[*f.UnkToken]; ok {
			unk = id
		}
	}
	switch kind {
	case "BPE":
		return newBPE(f, vocab, unk, byteLevel)
	case "WordPiece":
		w := &wordPiece{vocab: vocab, unk: unk, prefix: f.SubwordPrefix, longest: f.MaxChars}
		if w.longest == 0 {
			w.longest = 100
		}
		if unk < 0 {
			return nil, fmt.Errorf("the model WordPiece lacks its unk_token in the vocabulary")
		}
		return w, nil
	}
	return nil, fmt.Errorf("the model %q is not supported", kind)
}

// byteFallback returns the tokens <0x00> to <0xFF>, or nil if the vocabulary lacks one.
func byteFallback(vocab map[string]int) *[256]int {
	var ids [256]int
	for b := range ids {
		id, ok := vocab[fmt.Sprintf("<0x%02X>", b)]
		if !ok {
			return nil
		}
		ids[b] = id
	}
	return &ids
}

// bpe is byte pair encoding: it merges the two neighbours that come first in the list of merges until none is left.
type bpe struct {
	vocab        map[string]int
	merges       map[pair]merge
	unk          int       // -1: none
	fuseUnk      bool      // consecutive unknown characters are one token
	bytes        *[256]int // byte-level: the token of each byte; -1: none
	fallback     *[256]int // the tokens of the bytes of unknown characters; nil: none
	ignoreMerges bool      // a piece that is a token is not made by merges
	scratch      sync.Pool // *bpeScratch
}

type pair struct{ left, right int32 }

type merge struct{ rank, token int32 }

func newBPE(f *modelFile, vocab map[string]int, unk int, byteLevel bool) (model, error) {
	if f.WordSuffix != "" || f.SubwordPrefix != "" {
		return nil, fmt.Errorf("the model BPE with continuing_subword_prefix %q and end_of_word_suffix %q is not supported", f.SubwordPrefix, f.WordSuffix)
	}
	m := &bpe{vocab: vocab, merges: make(map[pair]merge, len(f.Merges)), unk: unk, fuseUnk: f.FuseUnk, ignoreMerges: f.IgnoreMerges}
	if f.ByteFallback {
		m.fallback = byteFallback(vocab)
	}
	if byteLevel {
		m.bytes = new([256]int)
		for b, char := range byteChars {
			id, ok := vocab[char]
			if !ok {
				id = -1
			}
			m.bytes[b] = id
		}
	}
	for rank, texts := range f.Merges {
		left, ok := vocab[texts[0]]
		right, ok2 := vocab[texts[1]]
		token, ok3 := vocab[texts[0]+texts[1]]
		if !ok || !ok2 || !ok3 {
			return nil, fmt.Errorf("merge %d of %q and %q: the vocabulary lacks one of them or both together", rank, texts[0], texts[1])
		}
		p := pair{int32(left), int32(right)}
		if _, ok := m.merges[p]; !ok {
			m.merges[p] = merge{int32(rank), int32(token)}
		}
	}
	m.scratch.New = func() any { return &bpeScratch{known: make(map[string][]int)} }
	return m, nil
}

func (m *bpe) vocabulary() map[string]int { return m.vocab }

// bpeScratch is memory that an encoding needs.
type bpeScratch struct {
	symbols []symbol
	queue   []candidate
	known   map[string][]int // tokens of short pieces, at most knownPieces
}

// The most pieces whose tokens are kept, and their largest size in bytes.
const knownPieces, knownSize = 1 << 14, 32

// A symbol is a token of the piece, linked to its neighbours by index; -1: none. A symbol that was merged into its
// left neighbour has token -1.
type symbol struct{ token, prev, next int32 }

// A candidate is a possible merge of two neighbours. It is out of date if they are not there any more.
type candidate struct {
	merge
	at int32 // index of the left symbol
	pair
}

func (c candidate) before(d candidate) bool {
	return c.rank < d.rank || c.rank == d.rank && c.at < d.at
}

func (m *bpe) encode(dst []int, piece string) []int {
	s := m.scratch.Get().(*bpeScratch)
	defer m.scratch.Put(s)
	if len(piece) > knownSize {
		return m.merge(dst, s, piece)
	}
	if tokens, ok := s.known[piece]; ok {
		return append(dst, tokens...)
	}
	n := len(dst)
	dst = m.merge(dst, s, piece)
	if len(s.known) == knownPieces {
		clear(s.known)
	}
	s.known[strings.Clone(piece)] = append([]int(nil), dst[n:]...)
	return dst
}

// merge appends the tokens of piece to dst.
func (m *bpe) merge(dst []int, s *bpeScratch, piece string) []int {
	if m.ignoreMerges {
		if id, ok := m.whole(piece); ok {
			return append(dst, id)
		}
	}
	s.symbols = m.symbols(s.symbols[:0], piece)
	s.queue = s.queue[:0]
	for i := range len(s.symbols) - 1 {
		m.offer(s, int32(i))
	}
	for len(s.queue) > 0 {
		c := s.pop()
		left := &s.symbols[c.at]
		if left.token != c.left || left.next < 0 || s.symbols[left.next].token != c.right {
			continue
		}
		right := &s.symbols[left.next]
		left.token, left.next, right.token = c.token, right.next, -1
		if left.next >= 0 {
			s.symbols[left.next].prev = c.at
			m.offer(s, c.at)
		}
		if left.prev >= 0 {
			m.offer(s, left.prev)
		}
	}
	if len(s.symbols) > 0 {
		for i := int32(0); i >= 0; i = s.symbols[i].next {
			dst = append(dst, int(s.symbols[i].token))
		}
	}
	return dst
}

// whole returns the token of a whole piece.
func (m *bpe) whole(piece string) (int, bool) {
	if m.bytes == nil {
		id, ok := m.vocab[piece]
		return id, ok
	}
	var buf [2 * 64]byte
	if len(piece) > len(buf)/2 { // longer tokens are rare
		buf := make([]byte, 0, 2*len(piece))
		for i := range len(piece) {
			buf = append(buf, byteChars[piece[i]]...)
		}
		id, ok := m.vocab[string(buf)]
		return id, ok
	}
	text := buf[:0]
	for i := range len(piece) {
		text = append(text, byteChars[piece[i]]...)
	}
	id, ok := m.vocab[string(text)]
	return id, ok
}

// symbols appends the symbols of a piece before any merge: those of its bytes or characters.
func (m *bpe) symbols(dst []symbol, piece string) []symbol {
	add := func(token int) {
		dst = append(dst, symbol{int32(token), int32(len(dst)) - 1, int32(len(dst)) + 1})
	}
	unknown := false // the last symbol is of an unknown character
	for i := 0; i < len(piece); {
		n, id, ok := 1, -1, false
		if m.bytes != nil {
			id = m.bytes[piece[i]]
			ok = id >= 0
		} else {
			n = runeLen(piece[i:])
			id, ok = m.vocab[piece[i:i+n]]
		}
		switch {
		case ok:
			add(id)
		case m.fallback != nil:
			for _, b := range []byte(piece[i : i+n]) {
				add(m.fallback[b])
			}
		case m.unk >= 0 && !(unknown && m.fuseUnk):
			add(m.unk)
		}
		unknown = !ok && m.fallback == nil
		i += n
	}
	if len(dst) > 0 {
		dst[len(dst)-1].next = -1
	}
	return dst
}

// offer adds the merge of a symbol with the next one to the queue, if there is one.
func (m *bpe) offer(s *bpeScratch, at int32) {
	left := s.symbols[at]
	if left.next < 0 {
		return
	}
	p := pair{left.token, s.symbols[left.next].token}
	found, ok := m.merges[p]
	if !ok {
		return
	}
	s.queue = append(s.queue, candidate{found, at, p})
	q := s.queue
	for i := len(q) - 1; i > 0; { // a binary heap
		parent := (i - 1) / 2
		if !q[i].before(q[parent]) {
			break
		}
		q[i], q[parent] = q[parent], q[i]
		i = parent
	}
}

// pop removes the first candidate from the queue.
func (s *bpeScratch) pop() candidate {
	q := s.queue
	first := q[0]
	last := len(q) - 1
	q[0] = q[last]
	q = q[:last]
	s.queue = q
	for i := 0; ; {
		child := 2*i + 1
		if child >= len(q) {
			return first
		}
		if child+1 < len(q) && q[child+1].before(q[child]) {
			child++
		}
		if !q[child].before(q[i]) {
			return first
		}
		q[i], q[child] = q[child], q[i]
		i = child
	}
}

// unigram chooses the tokens of a piece whose scores have the greatest sum, as Viterbi's algorithm does.
type unigram struct {
	vocab    map[string]int
	scores   []float64
	longest  int // size of the longest token in bytes
	unk      int // -1: none
	unkScore float64
	fallback *[256]int // the tokens of the bytes of unknown characters; nil: none
}

func newUnigram(f *modelFile) (model, error) {
	var list [][2]any
	if err := json.Unmarshal(f.Vocab, &list); err != nil {
		return nil, fmt.Errorf("the vocabulary: %w", err)
	}
	m := &unigram{vocab: make(map[string]int, len(list)), scores: make([]float64, len(list)), unk: -1, unkScore: math.Inf(1)}
	for i, entry := range list {
		text, ok := entry[0].(string)
		score, ok2 := entry[1].(float64)
		if !ok || !ok2 {
			return nil, fmt.Errorf("entry %d of the vocabulary is %v: want a text and a score", i, entry)
		}
		m.vocab[text], m.scores[i] = i, score
		m.longest = max(m.longest, len(text))
		m.unkScore = min(m.unkScore, score)
	}
	m.unkScore -= 10
	if f.UnkID != nil {
		m.unk = *f.UnkID
	}
	if f.ByteFallback {
		m.fallback = byteFallback(m.vocab)
	}
	return m, nil
}

func (m *unigram) vocabulary() map[string]int { return m.vocab }

func (m *unigram) encode(dst []int, piece string) []int {
	type best struct {
		score float64
		from  int // where the last token begins
		token int // -1: unknown
	}
	ends := make([]best, len(piece)+1) // the best tokens up to each byte; from == -1: none
	for i := range ends {
		ends[i].from = -1
	}
	ends[0].from = 0
	for i := 0; i < len(piece); i += runeLen(piece[i:]) {
		char := i + runeLen(piece[i:])
		single := false
		for end := i; end < min(len(piece), i+m.longest); {
			end += runeLen(piece[end:])
			id, ok := m.vocab[piece[i:end]]
			if !ok {
				continue
			}
			single = single || end == char
			if score := ends[i].score + m.scores[id]; ends[end].from < 0 || score > ends[end].score {
				ends[end] = best{score, i, id}
			}
		}
		if score := ends[i].score + m.unkScore; !single && (ends[char].from < 0 || score > ends[char].score) {
			ends[char] = best{score, i, -1}
		}
	}
	n := len(dst)
	for end := len(piece); end > 0; end = ends[end].from { // the last token first
		if e := ends[end]; e.token >= 0 {
			dst = append(dst, e.token)
		} else if m.fallback != nil {
			for i := end - 1; i >= e.from; i-- {
				dst = append(dst, m.fallback[piece[i]])
			}
		} else if m.unk >= 0 && (len(dst) == n || dst[len(dst)-1] != m.unk) {
			dst = append(dst, m.unk)
		}
	}
	for i, j := n, len(dst)-1; i < j; i, j = i+1, j-1 {
		dst[i], dst[j] = dst[j], dst[i]
	}
	return dst
}

// wordPiece takes the longest token at each place of a word. A token within the word has a prefix.
type wordPiece struct {
	vocab   map[string]int
	unk     int // the token of a word that has no tokens or is too long
	prefix  string
	longest int // number of characters
}

func (m *wordPiece) vocabulary() map[string]int { return m.vocab }

func (m *wordPiece) encode(dst []int, piece string) []int {
	n := len(dst)
	if utf8.RuneCountInString(piece) > m.longest {
		return append(dst, m.unk)
	}
	for begin := 0; begin < len(piece); {
		end := len(piece)
		for ; end > begin; end -= lastRuneLen(piece[:end]) {
			text := piece[begin:end]
			if begin > 0 {
				text = m.prefix + text
			}
			if id, ok := m.vocab[text]; ok {
				dst = append(dst, id)
				break
			}
		}
		if end == begin {
			return append(dst[:n], m.unk)
		}
		begin = end
	}
	return dst
}

func lastRuneLen(text string) int {
	_, n := utf8.DecodeLastRuneInString(text)
	return n
}
