package safetensors

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"math/bits"
	"slices"
	"unicode/utf8"

	"github.com/goddp/goddp/internal/files"
	"github.com/goddp/goddp/internal/magic"
)

// MaxHeader is the maximum size of a header in bytes, as in the format's own library.
const MaxHeader = 100_000_000

// Tensor describes a tensor of a file.
type Tensor struct {
	DType DType
	Shape []int
	// From and To are the range of its bytes in the file.
	From, To int64
}

// File is an open file of tensors. Several goroutines may call its methods concurrently.
type File struct {
	r        io.ReaderAt
	close    func() error
	tensors  map[string]Tensor
	metadata map[string]string
}

// Open opens a file and checks its header. The error names the file and the tensor that is wrong. If the file has
// another format that Open recognises, the error names that format.
func Open(path string) (*File, error) {
	f, err := files.Open(path)
	if err != nil {
		return nil, fmt.Errorf("safetensors: %w", err)
	}
	info, err := f.Stat()
	if err == nil {
		var file *File
		if file, err = NewFile(f, info.Size()); err == nil {
			file.close = f.Close
			return file, nil
		}
	}
	f.Close()
	return nil, fmt.Errorf("safetensors: %s: %w", path, err)
}

// NewFile reads the header of a file of size bytes. Close does not close r.
func NewFile(r io.ReaderAt, size int64) (*File, error) {
	head := make([]byte, min(size, magic.HeadSize))
	if _, err := r.ReadAt(head, 0); err != nil && err != io.EOF {
		return nil, err
	}
	if len(head) < 8 {
		return nil, fmt.Errorf("truncated: the file has %d bytes, but the header's length alone takes 8", size)
	}
	n := binary.LittleEndian.Uint64(head)
	if n > MaxHeader || len(head) > 8 && head[8] != '{' {
		if format := magic.Describe(head); format != "" {
			return nil, fmt.Errorf("want a safetensors file, but it is %s", format)
		}
	}
	switch {
	case n > MaxHeader:
		return nil, fmt.Errorf("the header's length is %d bytes, want at most %d", n, MaxHeader)
	case int64(n) > size-8:
		return nil, fmt.Errorf("truncated: the header has %d bytes, but the whole file has %d", n, size)
	}
	header := make([]byte, n)
	if _, err := r.ReadAt(header, 8); err != nil && err != io.EOF {
		return nil, fmt.Errorf("the header: %w", err)
	}
	f := &File{r: r, close: func() error { return nil }}
	if err := f.parse(header); err != nil {
		return nil, fmt.Errorf("the header: %w", err)
	}
	return f, f.cover(8+int64(n), size)
}

// noEOF returns io.ErrUnexpectedEOF if err is io.EOF, and err otherwise.
func noEOF(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// Tensors returns all tensors of the file by name. The map belongs to the caller.
func (f *File) Tensors() map[string]Tensor { return maps.Clone(f.tensors) }

// Metadata returns the strings of the file's "__metadata__". The map belongs to the caller.
func (f *File) Metadata() map[string]string { return maps.Clone(f.metadata) }

// Read reads the elements of a tensor.
func (f *File) Read(name string) ([]byte, error) {
	t, ok := f.tensors[name]
	if !ok {
		return nil, fmt.Errorf("safetensors: there is no tensor %q", name)
	}
	data := make([]byte, t.To-t.From)
	if n, err := f.r.ReadAt(data, t.From); n < len(data) {
		return nil, fmt.Errorf("safetensors: tensor %q: %w", name, noEOF(err))
	}
	return data, nil
}

// Close closes the file that Open opened.
func (f *File) Close() error { return f.close() }

const metadataKey = "__metadata__"

// parse parses the header. It leaves offsets relative to the end of the header.
func (f *File) parse(header []byte) error {
	if len(header) == 0 || header[0] != '{' {
		return errors.New("it does not begin with '{'")
	}
	if !utf8.Valid(header) {
		return errors.New("it is not UTF-8")
	}
	d := json.NewDecoder(bytes.NewReader(header))
	f.tensors, f.metadata = map[string]Tensor{}, map[string]string{}
	err := members(d, func(name string) (err error) {
		if name == metadataKey {
			return members(d, func(key string) error {
				var value *string
				if err := d.Decode(&value); err != nil || value == nil {
					return cmp.Or(err, errors.New("null, want a string"))
				}
				f.metadata[key] = *value
				return nil
			})
		}
		f.tensors[name], err = decodeTensor(d)
		return err
	})
	if err != nil {
		return err
	}
	if len(bytes.Trim(header[d.InputOffset():], " ")) > 0 {
		return errors.New("there is data after the JSON object")
	}
	return nil
}

// members calls decode for each member of an object. decode must decode the member's value.
func members(d *json.Decoder, decode func(key string) error) error {
	if begin, err := d.Token(); err != nil || begin != json.Delim('{') {
		return cmp.Or(err, fmt.Errorf("%v, want an object", begin))
	}
	seen := map[string]bool{}
	for d.More() {
		token, err := d.Token()
		if err != nil {
			return err
		}
		key := token.(string)
		if seen[key] {
			return fmt.Errorf("the key %q occurs twice", key)
		}
		seen[key] = true
		if err := decode(key); err != nil {
			return fmt.Errorf("%q: %w", key, err)
		}
	}
	_, err := d.Token()
	return err
}

// decodeTensor decodes a tensor's member of the header, and checks that the offsets fit the type and the shape.
// It skips fields that the format does not define.
func decodeTensor(d *json.Decoder) (t Tensor, err error) {
	var shape, offsets []*int64 // an element is nil if the JSON has null
	err = members(d, func(field string) error {
		switch field {
		case "dtype":
			return d.Decode(&t.DType)
		case "shape":
			return d.Decode(&shape)
		case "data_offsets":
			return d.Decode(&offsets)
		}
		return d.Decode(new(json.RawMessage))
	})
	if err != nil {
		return t, err
	}
	if t.DType == "" || shape == nil || len(offsets) != 2 || slices.Contains(slices.Concat(shape, offsets), nil) {
		return t, errors.New("it lacks a dtype, a shape or two data_offsets")
	}
	t.From, t.To = *offsets[0], *offsets[1]
	total := uint64(t.DType.Bits())
	if total == 0 {
		return t, fmt.Errorf("unknown dtype %q", t.DType)
	}
	isOverflow := false
	for _, n := range shape {
		high, low := bits.Mul64(total, uint64(*n))
		isOverflow = isOverflow || *n < 0 || *n > math.MaxInt || high != 0
		total = low
		t.Shape = append(t.Shape, int(*n))
	}
	switch {
	case isOverflow:
		return t, fmt.Errorf("shape %v, want sizes of at least 0 and less than 2^64 bits in total", t.Shape)
	case t.From < 0, t.To < t.From, total%8 != 0, uint64(t.To-t.From) != total/8:
		return t, fmt.Errorf("data_offsets are %d to %d, but a tensor of type %s and shape %v takes %d bits", t.From, t.To, t.DType, t.Shape, total)
	}
	return t, nil
}

// cover checks that the tensors fill the file behind the header, and converts their offsets to
// offsets in the file.
func (f *File) cover(start, size int64) error {
	inOrder := slices.SortedFunc(maps.Keys(f.tensors), func(a, b string) int {
		x, y := f.tensors[a], f.tensors[b]
		// An empty tensor comes before one that begins at the same byte.
		return cmp.Or(cmp.Compare(x.From, y.From), cmp.Compare(x.To, y.To), cmp.Compare(a, b))
	})
	end := int64(0)
	for _, name := range inOrder {
		t := f.tensors[name]
		if t.From != end {
			return fmt.Errorf("tensor %q begins at byte %d of the data, but the tensors before it end at byte %d", name, t.From, end)
		}
		end = t.To
		if end > size-start {
			return fmt.Errorf("truncated: tensor %q ends at byte %d of the data, which has %d bytes", name, end, size-start)
		}
		t.From, t.To = t.From+start, t.To+start
		f.tensors[name] = t
	}
	if end != size-start {
		return fmt.Errorf("extra data at the end: there are %d bytes of data, but the tensors end at byte %d", size-start, end)
	}
	return nil
}
