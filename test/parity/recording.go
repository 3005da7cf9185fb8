package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"

	"github.com/goddp/goddp/checkpoint/safetensors"
)

// recording is a file of torch_parity.py.
type recording struct {
	*safetensors.File
	training
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
	Stage                 int     // of package ddp/zero, in place of PyTorch's FSDP2; 0: package ddp, in place of DDP
	Gap                   struct{ Loss, Gradient, Parameter float64 }
}

func openRecording(path string) (*recording, error) {
	file, err := safetensors.Open(path)
	if err != nil {
		return nil, err
	}
	r := &recording{File: file}
	if err := json.Unmarshal([]byte(file.Metadata()["case"]), &r.training); err != nil {
		file.Close()
		return nil, fmt.Errorf("%s: the case: %w", path, err)
	}
	return r, nil
}

// read returns a tensor's elements, row by row.
func read[T float32 | float64 | int64](r *recording, name string) ([]T, error) {
	var zero T
	if got, want := r.Tensors()[name].DType, map[any]safetensors.DType{float32(0): "F32", float64(0): "F64", int64(0): "I64"}[any(zero)]; got != want {
		return nil, fmt.Errorf("tensor %q is of %q, want %s", name, got, want)
	}
	elements, err := r.Read(name)
	if err != nil {
		return nil, err
	}
	data := make([]T, len(elements)/binary.Size(zero))
	return data, binary.Read(bytes.NewReader(elements), binary.LittleEndian, data)
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
