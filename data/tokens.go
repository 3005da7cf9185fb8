package data

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"sort"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/files"
)

// A token shard has llm.c's format: a header of 256 little-endian int32 (a magic number, the version, the number
// of tokens, and zeros), followed by the tokens as little-endian uint16, as for GPT-2, or uint32, as for Llama 3.
const shardHeader = 256 * 4

// shardKinds are the magic numbers and versions of shards, by the size of a token in bytes.
var shardKinds = map[int][2]uint32{2: {20240520, 1}, 4: {20240801, 7}}

// Tokens are windows of tokens in shards, read from disk on demand. As a [Dataset] they have the fields
// "tokens" and "next", both Int64 [Window]: next[i] is the token after tokens[i]. A window does not
// span shards.
type Tokens struct {
	window int
	vocab  int
	shards []shard
}

// A shard is an open file of tokens. first is the index of its first window among the windows of all shards.
type shard struct {
	path   string
	file   *os.File
	size   int // of a token in bytes
	tokens int
	first  int
	count  int // the number of windows, which may be 0
}

// OpenTokens opens the shards that match a pattern of [filepath.Glob], in the order of their names, as
// windows of tokens less than vocab. Shards of uint16 and of uint32 may be mixed. A shard of at most window tokens has no window and is skipped: the
// last shard of a text may be that short. If no shard has a window, OpenTokens returns an error. The
// caller must close the Tokens.
func OpenTokens(pattern string, window, vocab int) (*Tokens, error) {
	if window < 1 || vocab < 1 {
		return nil, fmt.Errorf("data: window %d and vocabulary %d: want at least 1 of each", window, vocab)
	}
	paths, err := filepath.Glob(pattern)
	if err != nil {
		return nil, fmt.Errorf("data: %q: %w", pattern, err)
	}
	if len(paths) == 0 {
		return nil, fmt.Errorf("data: no file matches %q", pattern)
	}
	sort.Strings(paths)
	t := &Tokens{window: window, vocab: vocab}
	longest := 0
	for _, path := range paths {
		s, err := openShard(path, window)
		if err != nil {
			return nil, errors.Join(err, t.Close())
		}
		s.first = t.Len()
		t.shards = append(t.shards, s)
		longest = max(longest, s.tokens)
	}
	if t.Len() == 0 {
		err := fmt.Errorf("data: %s: all shards have at most %d tokens, want at least %d for a window", pattern, longest, window+1)
		return nil, errors.Join(err, t.Close())
	}
	return t, nil
}

func openShard(path string, window int) (s shard, err error) {
	f, err := files.Open(path)
	if err != nil {
		return s, fmt.Errorf("data: %w", err)
	}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	var head [12]byte
	info, err := f.Stat()
	if err != nil {
		return s, fmt.Errorf("data: %w", err)
	}
	_, err = f.ReadAt(head[:], 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return s, fmt.Errorf("data: %w", err)
	}
	if err != nil || info.Size() < shardHeader {
		return s, fmt.Errorf("data: %s: at byte %d: truncated: the header of a shard has %d bytes", path, info.Size(), shardHeader)
	}
	magic, version := binary.LittleEndian.Uint32(head[:]), binary.LittleEndian.Uint32(head[4:])
	size := 2
	if magic == shardKinds[4][0] {
		size = 4
	}
	if kind := shardKinds[size]; magic != kind[0] || version != kind[1] {
		return s, fmt.Errorf("data: %s: not a shard of tokens: magic number %d and version %d, want %d and %d, or %d and %d", path, magic, version,
			shardKinds[2][0], shardKinds[2][1], shardKinds[4][0], shardKinds[4][1])
	}
	tokens := int64(binary.LittleEndian.Uint32(head[8:]))
	switch want := shardHeader + int64(size)*tokens; {
	case info.Size() < want:
		return s, fmt.Errorf("data: %s: at byte %d: truncated: the header says %d tokens, which take %d bytes", path, info.Size(), tokens, want)
	case info.Size() > want:
		return s, fmt.Errorf("data: %s: extra data at the end: the header says %d tokens, which end at byte %d, but the file has %d bytes", path, tokens, want, info.Size())
	}
	return shard{path: path, file: f, size: size, tokens: int(tokens), count: max(0, int(tokens)-1) / window}, nil
}

// Len returns the number of windows.
func (t *Tokens) Len() int {
	if len(t.shards) == 0 {
		return 0
	}
	last := t.shards[len(t.shards)-1]
	return last.first + last.count
}

// Fields returns the tokens and the next tokens.
func (t *Tokens) Fields() []Field {
	shape := device.Shape{t.window}
	return []Field{{Name: "tokens", DType: device.Int64, Shape: shape}, {Name: "next", DType: device.Int64, Shape: shape}}
}

// Read writes windows to dst. If a token is not in the vocabulary, the error names the shard and the
// offset.
func (t *Tokens) Read(indices []int, dst []device.Tensor) error {
	buf := make([]byte, 4*(t.window+1))
	tokens, next := device.Elements[int64](dst[0]), device.Elements[int64](dst[1])
	for row, i := range indices {
		at := sort.Search(len(t.shards), func(s int) bool { return t.shards[s].first > i }) - 1
		s := t.shards[at]
		raw := buf[:s.size*(t.window+1)]
		offset := int64(shardHeader + s.size*(i-s.first)*t.window)
		if _, err := s.file.ReadAt(raw, offset); err != nil {
			return fmt.Errorf("data: %s: at byte %d: %w", s.path, offset, err)
		}
		for j := range t.window + 1 {
			var token int64
			if s.size == 2 {
				token = int64(binary.LittleEndian.Uint16(raw[2*j:]))
			} else {
				token = int64(binary.LittleEndian.Uint32(raw[4*j:]))
			}
			if token >= int64(t.vocab) {
				return fmt.Errorf("data: %s: at byte %d: token %d, want a token below %d", s.path, offset+int64(s.size*j), token, t.vocab)
			}
			if j < t.window {
				tokens[row*t.window+j] = token
			}
			if j > 0 {
				next[row*t.window+j-1] = token
			}
		}
	}
	return nil
}

// Close closes the shards.
func (t *Tokens) Close() error {
	var errs []error
	for _, s := range t.shards {
		errs = append(errs, s.file.Close())
	}
	return errors.Join(errs...)
}

// WriteTokens writes a shard of tokens to w, and returns the number of tokens. w must be at its start. The
// header is written last, so that an incomplete shard is not valid. uint16 is for vocabularies of at most 65,536 tokens.
func WriteTokens[T uint16 | uint32](w io.WriteSeeker, tokens iter.Seq[T]) (n int, err error) {
	size := binary.Size(T(0))
	out := bufio.NewWriterSize(w, 1<<20)
	out.Write(make([]byte, shardHeader)) // Flush returns the error
	for token := range tokens {
		if n++; n > 1<<31-1 {
			return n, fmt.Errorf("data: too many tokens, want at most %d in a shard", 1<<31-1)
		}
		var b [4]byte
		binary.LittleEndian.PutUint32(b[:], uint32(token))
		if _, err := out.Write(b[:size]); err != nil {
			return n, err
		}
	}
	if err := out.Flush(); err != nil {
		return n, err
	}
	if _, err := w.Seek(0, io.SeekStart); err != nil {
		return n, err
	}
	var head [12]byte
	binary.LittleEndian.PutUint32(head[:], shardKinds[size][0])
	binary.LittleEndian.PutUint32(head[4:], shardKinds[size][1])
	binary.LittleEndian.PutUint32(head[8:], uint32(n))
	_, err = w.Write(head[:])
	return n, err
}
