package gguf

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
	"github.com/goddp/goddp/nn"
)

// Type is a type of numbers.
type Type string

// The types.
const (
	F32  Type = "f32"
	F16  Type = "f16"
	BF16 Type = "bf16"
	Q8_0 Type = "q8_0" // blocks of 32 integers of 8 bits and a Float16 by which they are multiplied
)

// formats holds the numbers of the types, for files and for tensors, and the elements and bytes of a block.
var formats = map[Type]struct {
	file            int
	tensor          uint32
	elements, bytes int
}{F32: {0, 0, 1, 4}, F16: {1, 1, 1, 2}, BF16: {32, 30, 1, 2}, Q8_0: {7, 8, 32, 34}}

// tensor is a tensor of a file.
type tensor struct {
	name  string
	kind  Type
	shape device.Shape
	heads int           // 0 unless the rows of this many heads change places: see source
	p     *nn.Parameter // nil if data is set
	data  []byte        // the elements as Float32
}

// bytes returns the size of the elements in the file.
func (t *tensor) bytes() int { return t.shape.Len() / formats[t.kind].elements * formats[t.kind].bytes }

// source returns which row of the parameter is row i of the tensor. A model in transformers' files rotates element j of
// the first half of a head with element j of the second. Some architectures of llama.cpp rotate adjacent elements.
func (t *tensor) source(i int) int {
	if t.heads == 0 {
		return i
	}
	size := t.shape[0] / t.heads
	return i - i%size + i%2*(size/2) + i%size/2
}

// write writes the elements and the padding after them. Parameters that are not placed are read with dev.
func (t *tensor) write(ctx context.Context, w io.Writer, dev device.Device) (err error) {
	data := t.data
	if t.p != nil {
		if data, err = read(ctx, t.p, dev); err != nil {
			return err
		}
	}
	row, b := make([]float32, t.shape.Len()/t.shape[0]), []byte(nil)
	for i := range t.shape[0] {
		if _, err := binary.Decode(data[t.source(i)*4*len(row):], binary.LittleEndian, row); err != nil {
			return err
		}
		if b, err = appendRow(b[:0], t.kind, row); err != nil {
			return err
		}
		if _, err := w.Write(b); err != nil {
			return err
		}
	}
	_, err = w.Write(padding(t.bytes()))
	return err
}

// read returns the elements of a parameter as Float32.
func read(ctx context.Context, p *nn.Parameter, dev device.Device) (data []byte, err error) {
	var v *autograd.Variable
	if p.Placed() {
		v = p.Var()
	} else {
		if v, err = p.Initial(dev); err != nil {
			return nil, err
		}
		defer v.Free()
	}
	autograd.NoGrad(v.Device(), func() {
		wide := autograd.Cast(v, device.Float32)
		if wide != v {
			defer wide.Free()
		}
		data, err = wide.Bytes(ctx)
	})
	return data, err
}

// appendRow appends a row as numbers of type kind. Blocks of Q8_0 are llama.cpp's: the largest element becomes 127, and
// the others are divided by the factor before it is rounded to Float16.
func appendRow(b []byte, kind Type, row []float32) ([]byte, error) {
	switch kind {
	case F32:
		return put(b, row), nil
	case F16:
		for _, x := range row {
			if b = binary.LittleEndian.AppendUint16(b, kernels.F16(x)); math.Abs(float64(x)) >= 65520 {
				return nil, fmt.Errorf("%v is too large for f16, want bf16 or f32", x)
			}
		}
	case BF16:
		for _, x := range row {
			b = binary.LittleEndian.AppendUint16(b, kernels.BF16(x))
		}
	case Q8_0:
		for ; len(row) > 0; row = row[32:] {
			var most, inverse float32
			for _, x := range row[:32] {
				most = max(most, x, -x)
			}
			if factor := most / 127; factor > 0 {
				inverse = 1 / factor
			}
			b = binary.LittleEndian.AppendUint16(b, kernels.F16(most/127))
			for _, x := range row[:32] {
				b = append(b, byte(int8(math.Round(float64(x*inverse)))))
			}
		}
	}
	return b, nil
}
