package gguf

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"github.com/goddp/goddp/decoder"
	"github.com/goddp/goddp/device/cpu"
	"github.com/goddp/goddp/internal/files"
)

// Write writes a model, and the tokenizer of dir, a folder of the Hugging Face hub, to the file at path, which is
// replaced when the new one is complete. kind is the type of the matrices. Write reads one parameter at a time: from its
// device, or if it is not placed, by its Init: see hf.Open. One rank calls Write. The error says what of the model or of
// the tokenizer llama.cpp cannot do.
func Write(ctx context.Context, path string, m *decoder.Model, dir string, kind Type) error {
	if err := write(ctx, path, m, dir, kind); err != nil {
		return fmt.Errorf("gguf: %w", err)
	}
	return nil
}

func write(ctx context.Context, path string, m *decoder.Model, dir string, kind Type) error {
	f := &file{}
	if _, ok := formats[kind]; !ok {
		return fmt.Errorf("type %q, want f32, f16, bf16 or q8_0", kind)
	}
	if err := f.describe(m); err != nil {
		return err
	}
	absolute, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	f.set("general.type", "model")
	f.set("general.name", filepath.Base(absolute))
	f.set("general.file_type", formats[kind].file)
	f.set("general.quantization_version", 2)
	f.set("general.alignment", alignment)
	if err := f.describeTokenizer(dir); err != nil {
		return err
	}
	if err := f.addTensors(m, kind); err != nil {
		return err
	}
	dev := cpu.New(nil)
	err = files.Write(path, 0o666, func(w io.Writer) error {
		if _, err := w.Write(f.head()); err != nil {
			return err
		}
		for _, t := range f.tensors {
			if err := t.write(ctx, w, dev); err != nil {
				return fmt.Errorf("tensor %s: %w", t.name, err)
			}
		}
		return nil
	})
	return errors.Join(err, dev.Close())
}

// alignment is what the offsets of tensors are multiples of.
const alignment = 32

// padding returns the zeros that follow n bytes.
func padding(n int) []byte { return make([]byte, -n&(alignment-1)) }

// file is what a file will contain.
type file struct {
	vocab   int
	heads   [2]int // of queries and of keys, whose rows change places; 0 if they do not: see tensor.source
	tensors []tensor

	metadata []byte
	keys     int // in metadata
}

// set adds a key to the metadata. An int becomes a uint32, and a float64 a float32.
func (f *file) set(key string, value any) {
	b := put(f.metadata, key)
	switch v := value.(type) {
	case int:
		b = put(b, uint32(4), uint32(v))
	case float64:
		b = put(b, uint32(6), float32(v))
	case bool:
		b = put(b, uint32(7), v)
	case string:
		b = put(b, uint32(8), v)
	case []int32:
		b = put(b, uint32(9), uint32(5), uint64(len(v)), v)
	case []float32:
		b = put(b, uint32(9), uint32(6), uint64(len(v)), v)
	case []string:
		b = put(b, uint32(9), uint32(8), uint64(len(v)))
		for _, s := range v {
			b = put(b, s)
		}
	default:
		panic(fmt.Sprintf("gguf: %s of type %T", key, value))
	}
	f.metadata, f.keys = b, f.keys+1
}

// head returns what a file has before the elements of its tensors.
func (f *file) head() []byte {
	b := put([]byte("GGUF"), uint32(3), uint64(len(f.tensors)), uint64(f.keys), f.metadata)
	offset := 0
	for _, t := range f.tensors {
		b = put(b, t.name, uint32(len(t.shape)))
		for i := range t.shape {
			b = put(b, uint64(t.shape[len(t.shape)-1-i])) // the length of a row is the first
		}
		b = put(b, formats[t.kind].tensor, uint64(offset))
		offset += t.bytes() + len(padding(t.bytes()))
	}
	return append(b, padding(len(b))...)
}

// put appends numbers and lists of numbers, little-endian, and strings with their lengths.
func put(b []byte, values ...any) []byte {
	for _, v := range values {
		if s, ok := v.(string); ok {
			b = append(put(b, uint64(len(s))), s...)
			continue
		}
		var err error
		if b, err = binary.Append(b, binary.LittleEndian, v); err != nil {
			panic(err)
		}
	}
	return b
}
