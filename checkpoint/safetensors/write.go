package safetensors

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"unicode/utf8"

	"github.com/goddp/goddp/device"
)

// Source is a tensor that [Write] writes.
type Source struct {
	DType device.DType
	// Format is the format's name of the elements' type. It is needed for types that devices do not support. If
	// it is "", DType is the type.
	Format DType
	Shape  device.Shape
	// Write writes the elements, little-endian, row by row.
	Write func(w io.Writer) error
}

// dtype returns the type of the elements.
func (s Source) dtype() DType { return cmp.Or(s.Format, Of(s.DType)) }

// size returns the size of the elements in bytes.
func (s Source) size() int64 { return int64(s.Shape.Len()) * int64(s.dtype().Bits()) / 8 }

// typeName returns the type's name in messages.
func (s Source) typeName() string {
	if s.Format != "" {
		return string(s.Format)
	}
	return s.DType.String()
}

// Bytes returns a source whose elements are in memory.
func Bytes(dt device.DType, shape device.Shape, elements []byte) Source {
	return Source{DType: dt, Shape: shape, Write: func(w io.Writer) error {
		_, err := w.Write(elements)
		return err
	}}
}

// Write writes a file of tensors. Tensors of the widest type come first, as in the format's own
// library, so that all are aligned. metadata may be nil. The same tensors give the same bytes. The
// error names the tensor.
func Write(w io.Writer, tensors map[string]Source, metadata map[string]string) error {
	names := inOrder(tensors)
	header, err := header(names, tensors, metadata)
	if err != nil {
		return err
	}
	if _, err := w.Write(header); err != nil {
		return fmt.Errorf("safetensors: %w", err)
	}
	for _, name := range names {
		t := tensors[name]
		counted := &counter{w: w}
		if err := t.Write(counted); err != nil {
			return fmt.Errorf("safetensors: tensor %q: %w", name, err)
		}
		if counted.n != t.size() {
			return fmt.Errorf("safetensors: tensor %q: %d bytes were written, but %s %v takes %d", name, counted.n, t.typeName(), t.Shape, t.size())
		}
	}
	return nil
}

// inOrder returns the names of tensors in the order in which Write writes them.
func inOrder(tensors map[string]Source) []string {
	return slices.SortedFunc(maps.Keys(tensors), func(a, b string) int {
		return cmp.Or(cmp.Compare(tensors[b].dtype().Bits(), tensors[a].dtype().Bits()), cmp.Compare(a, b))
	})
}

// Plan returns the bytes that [Write] writes before the elements, and the place of each tensor in the file. It
// does not call Source.Write.
func Plan(tensors map[string]Source, metadata map[string]string) (head []byte, places map[string]Tensor, err error) {
	names := inOrder(tensors)
	if head, err = header(names, tensors, metadata); err != nil {
		return nil, nil, err
	}
	places = map[string]Tensor{}
	end := int64(len(head))
	for _, name := range names {
		t := tensors[name]
		to := end + t.size()
		places[name] = Tensor{DType: t.dtype(), Shape: slices.Clone(t.Shape), From: end, To: to}
		end = to
	}
	return head, places, nil
}

// header returns the length and the header, padded with spaces to a multiple of 8 bytes.
func header(names []string, tensors map[string]Source, metadata map[string]string) ([]byte, error) {
	out := bytes.NewBuffer(make([]byte, 8)) // reserves the bytes of the length
	out.WriteByte('{')
	member := func(key string, value any) error {
		k, err := json.Marshal(key)
		if err != nil {
			return err
		}
		v, err := json.Marshal(value)
		if err != nil {
			return err
		}
		if out.Len() > 8+1 {
			out.WriteByte(',')
		}
		out.Write(k)
		out.WriteByte(':')
		out.Write(v)
		return nil
	}
	if len(metadata) > 0 {
		if err := member(metadataKey, metadata); err != nil {
			return nil, fmt.Errorf("safetensors: metadata: %w", err)
		}
	}
	end := int64(0)
	for _, name := range names {
		t := tensors[name]
		if name == metadataKey || t.dtype().Bits() == 0 || !utf8.ValidString(name) { // JSON would replace other bytes
			return nil, fmt.Errorf("safetensors: a tensor %q of type %s cannot be written", name, t.typeName())
		}
		shape := make([]int64, len(t.Shape)) // [] for a scalar, never null
		for i, n := range t.Shape {
			shape[i] = int64(n)
		}
		offsets := [2]int64{end, end + t.size()}
		end = offsets[1]
		if err := member(name, entry{t.dtype(), shape, offsets}); err != nil {
			return nil, fmt.Errorf("safetensors: tensor %q: %w", name, err)
		}
	}
	out.WriteByte('}')
	for out.Len()%8 != 0 {
		out.WriteByte(' ')
	}
	n := out.Len() - 8
	if n > MaxHeader {
		return nil, fmt.Errorf("safetensors: a header of %d bytes, want at most %d", n, MaxHeader)
	}
	binary.LittleEndian.PutUint64(out.Bytes(), uint64(n))
	return out.Bytes(), nil
}

// entry is a tensor's member of the header.
type entry struct {
	DType   DType    `json:"dtype"`
	Shape   []int64  `json:"shape"`
	Offsets [2]int64 `json:"data_offsets"`
}

// counter counts the bytes that are written.
type counter struct {
	w io.Writer
	n int64
}

func (c *counter) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	c.n += int64(n)
	return n, err
}
