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
	name   string
	kind   Type
	shape  device.Shape
	heads  int           // 0 unless the rows of this many heads change places: see source
	p      *nn.Parameter // nil if there are values
	values []float32
}

// bytes returns the size of the elements in the file.
func (t *tensor) bytes() int { return t.shape.Len() / formats[t.kind].elements * formats[t.kind].bytes }

// source returns which row of a parameter, or of some of its heads, is row i of the tensor. A model in transformers' files rotates element j of
// the first half of a head with element j of the second. Some architectures of llama.cpp rotate adjacent elements.
func (t *tensor) source(i int) int {
	if t.heads == 0 {
		return i
	}
	size := t.shape[0] / t.heads
	return i - i%size + i%2*(size/2) + i%size/2
}

// write writes the elements and the padding after them, a few megabytes at a time. dev is for what is not placed.
func (t *tensor) write(ctx context.Context, w io.Writer, dev device.Device) (err error) {
	var v *autograd.Variable
	switch {
	case t.p == nil:
		v = autograd.FromSlice(dev, t.values, t.shape...)
	case t.p.Placed():
		v = t.p.Var()
	default:
		if v, err = t.p.Initial(dev); err != nil {
			return err
		}
		defer v.Free()
	}
	length := t.shape.Len() / t.shape[0]
	row, b, some := make([]float32, length), []byte(nil), max(1<<20/length, 1)
	if t.heads > 0 { // whole heads
		size := t.shape[0] / t.heads
		some = max(some/size, 1) * size
	}
	for first := 0; first < t.shape[0]; first += some {
		var data []byte
		autograd.NoGrad(v.Device(), func() {
			data, err = autograd.Cast(autograd.Slice(v, 0, first, first+some, 1), device.Float32).Bytes(ctx)
		})
		b = b[:0]
		for i := 0; i*4*length < len(data) && err == nil; i++ {
			if _, err = binary.Decode(data[t.source(i)*4*length:], binary.LittleEndian, row); err == nil {
				b, err = appendRow(b, t.kind, row)
			}
		}
		if err != nil {
			return err
		}
		if _, err := w.Write(b); err != nil {
			return err
		}
	}
	_, err = w.Write(padding(t.bytes()))
	return err
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
