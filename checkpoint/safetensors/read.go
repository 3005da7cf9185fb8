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
	"os"
	"slices"
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

// Open opens a file and checks its header. The error names the file, and the tensor that is wrong.
func Open(path string) (*File, error) {
	f, err := os.Open(path)
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
	var length [8]byte
	if _, err := r.ReadAt(length[:], 0); err != nil {
		return nil, fmt.Errorf("the length of the header: %w", noEOF(err))
	}
	n := binary.LittleEndian.Uint64(length[:])
	switch {
	case n > MaxHeader:
		return nil, fmt.Errorf("a header of %d bytes, want at most %d", n, MaxHeader)
	case int64(n) > size-8:
		return nil, fmt.Errorf("truncated: a header of %d bytes in a file of %d", n, size)
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

// noEOF returns err, but io.ErrUnexpectedEOF in place of io.EOF.
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

// entry is a tensor's member of the header. A nil pointer stands for a missing field.
type entry struct {
	DType   *DType   `json:"dtype"`
	Shape   *[]int64 `json:"shape"`
	Offsets *[]int64 `json:"data_offsets"`
}

const metadataKey = "__metadata__"

// parse parses the header. It leaves offsets relative to the end of the header.
func (f *File) parse(header []byte) error {
	if len(header) == 0 || header[0] != '{' {
		return errors.New("it does not begin with '{'")
	}
	d := json.NewDecoder(bytes.NewReader(header))
	if _, err := d.Token(); err != nil {
		return err
	}
	f.tensors, f.metadata = map[string]Tensor{}, map[string]string{}
	sawMetadata := false
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return err
		}
		name := key.(string)
		if name == metadataKey {
			if sawMetadata {
				return fmt.Errorf("%q comes twice", name)
			}
			sawMetadata = true
			if err := d.Decode(&f.metadata); err != nil {
				return fmt.Errorf("%q: %w", name, err)
			}
			continue
		}
		if _, ok := f.tensors[name]; ok {
			return fmt.Errorf("tensor %q comes twice", name)
		}
		var e entry
		if err := d.Decode(&e); err != nil {
			return fmt.Errorf("tensor %q: %w", name, err)
		}
		if f.tensors[name], err = e.tensor(); err != nil {
			return fmt.Errorf("tensor %q: %w", name, err)
		}
	}
	if _, err := d.Token(); err != nil {
		return err
	}
	if len(bytes.Trim(header[d.InputOffset():], " ")) > 0 {
		return errors.New("there is something behind the JSON object")
	}
	return nil
}

// tensor checks that the offsets fit the type and the shape.
func (e entry) tensor() (t Tensor, err error) {
	if e.DType == nil || e.Shape == nil || e.Offsets == nil || len(*e.Offsets) != 2 {
		return t, errors.New("it lacks a dtype, a shape or two data_offsets")
	}
	width, ok := sizes[*e.DType]
	if !ok {
		return t, fmt.Errorf("unknown dtype %q", *e.DType)
	}
	t = Tensor{DType: *e.DType, From: (*e.Offsets)[0], To: (*e.Offsets)[1]}
	total := uint64(width)
	for _, n := range *e.Shape {
		high, low := bits.Mul64(total, uint64(n))
		if n < 0 || n > math.MaxInt || high != 0 {
			return t, fmt.Errorf("shape %v", *e.Shape)
		}
		total = low
		t.Shape = append(t.Shape, int(n))
	}
	if t.From < 0 || t.To < t.From || total%8 != 0 || uint64(t.To-t.From) != total/8 {
		return t, fmt.Errorf("offsets %d to %d for %s %v, which takes %d bits", t.From, t.To, t.DType, *e.Shape, total)
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
			return fmt.Errorf("tensor %q begins at byte %d of the elements, but those before it end at %d", name, t.From, end)
		}
		end = t.To
		if end > size-start {
			return fmt.Errorf("truncated: tensor %q ends at byte %d of the elements, of which there are %d", name, end, size-start)
		}
		t.From, t.To = t.From+start, t.To+start
		f.tensors[name] = t
	}
	if end != size-start {
		return fmt.Errorf("%d bytes of elements, but the tensors end at %d", size-start, end)
	}
	return nil
}
