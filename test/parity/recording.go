package main

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"os"
)

// recording is a file of torch_parity.py in the safetensors format: eight bytes that hold the length of
// the header, a JSON header, and raw data.
type recording struct {
	training
	file    *os.File
	data    int64 // the offset of the raw data
	tensors map[string]entry
}

// training holds the settings with which PyTorch trained; torch_parity.py explains them.
type training struct {
	Name, DType, Loss     string
	TF32                  bool
	Widths                []int
	World, Steps          int
	Batch, Batches, Micro int // samples per rank and step; number of recorded batches; passes per step
	LR, Momentum          float64
	WeightDecay           float64 `json:"weight_decay"`
	BucketCapMB           float64 `json:"bucket_cap_mb"`
	Gap                   struct{ Loss, Gradient, Parameter float64 }
}

// entry is the header's entry for a tensor.
type entry struct {
	DType   string
	Shape   []int
	Offsets [2]int64 `json:"data_offsets"`
}

func openRecording(path string) (*recording, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	r := &recording{file: file, tensors: map[string]entry{}}
	if err := r.readHeader(); err != nil {
		file.Close()
		return nil, fmt.Errorf("reading the header: %w", err)
	}
	return r, nil
}

func (r *recording) readHeader() error {
	var length int64
	if err := binary.Read(r.file, binary.LittleEndian, &length); err != nil {
		return err
	}
	r.data = 8 + length
	var header map[string]json.RawMessage
	if err := json.NewDecoder(io.LimitReader(r.file, length)).Decode(&header); err != nil {
		return err
	}
	var metadata struct{ Case string }
	if err := json.Unmarshal(header["__metadata__"], &metadata); err != nil {
		return err
	}
	delete(header, "__metadata__")
	for name, text := range header {
		var e entry
		if err := json.Unmarshal(text, &e); err != nil {
			return err
		}
		r.tensors[name] = e
	}
	return json.Unmarshal([]byte(metadata.Case), &r.training)
}

func (r *recording) Close() error { return r.file.Close() }

// read returns a tensor's elements, row by row.
func read[T float32 | float64 | int64](r *recording, name string) ([]T, error) {
	e, ok := r.tensors[name]
	if !ok {
		return nil, fmt.Errorf("there is no tensor %q", name)
	}
	var zero T
	if want := map[any]string{float32(0): "F32", float64(0): "F64", int64(0): "I64"}[any(zero)]; e.DType != want {
		return nil, fmt.Errorf("tensor %q is of %s, want %s", name, e.DType, want)
	}
	data := make([]T, (e.Offsets[1]-e.Offsets[0])/int64(binary.Size(zero)))
	section := io.NewSectionReader(r.file, r.data+e.Offsets[0], e.Offsets[1]-e.Offsets[0])
	if err := binary.Read(section, binary.LittleEndian, data); err != nil {
		return nil, fmt.Errorf("tensor %q: %w", name, err)
	}
	return data, nil
}

// readAll returns the tensors "group/name" for all names, such as "gradient/0.weight".
func readAll[T float32 | float64](r *recording, group string, names []string) ([][]T, error) {
	all := make([][]T, len(names))
	for i, name := range names {
		var err error
		if all[i], err = read[T](r, group+"/"+name); err != nil {
			return nil, err
		}
	}
	return all, nil
}
