//go:build cgo && linux

package cuda

import (
	"fmt"
	"testing"
	"unsafe"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

// An index out of range gives NaN in a gather, and its term is not added in a scatter.
func TestIndexOutOfRange(t *testing.T) {
	openFakes(t)
	d := openGPU(t, &Options{Log: quiet()})
	defer func() { ok(t, d.Close()) }()
	k, s := kernels.Of(d), d.Compute()
	at := []int64{1, -1, 2, 0}
	index := tensor(t, d, device.Int64, len(at))
	ok(t, d.CopyIn(s, index.Buf, unsafe.Slice((*byte)(unsafe.Pointer(&at[0])), 8*len(at))))
	const inner = 4
	src, rows := upload(t, d, []float32{0, 1, 2, 3, 4, 5, 6, 7}, 1, 2, inner), tensor(t, d, device.Float32, 1, len(at), inner)
	ok(t, k.Gather(s, rows, src, index))
	for i, v := range download(t, d, rows) {
		row := at[i/inner]
		if bad := row < 0 || row > 1; (v != v) != bad || !bad && v != float32(int(row)*inner+i%inner) {
			t.Errorf("element %d of row %d is %v", i%inner, row, v)
		}
	}
	ok(t, k.Fill(s, rows, 1))
	ok(t, k.ScatterAdd(s, src, device.Store, rows, index, -1))
	for i, v := range download(t, d, src) {
		if v != 1 {
			t.Errorf("sum %d is %v, want 1", i, v)
		}
	}
}

// BenchmarkLayout measures the kernels that move elements in a step of a transformer, in bytes read
// and written.
func BenchmarkLayout(b *testing.B) {
	d := gpu(b, &Options{Log: quiet()})
	k, s := kernels.Of(d), d.Compute()
	for _, dt := range []device.DType{device.Float32, device.BFloat16} {
		const batch, length, heads, width, vocabulary = 64, 1024, 12, 64, 50257
		const features = heads * width
		shape := device.Shape{batch, length, heads, width}
		x, y := uniform(b, d, tensor(b, d, dt, shape...)), tensor(b, d, dt, shape...)
		weight, ids := uniform(b, d, tensor(b, d, dt, 1, vocabulary, features)), tensor(b, d, device.Int64, batch*length)
		uniformIDs := tensor(b, d, device.Float32, batch*length)
		ok(b, k.Uniform(s, uniformIDs, 0, vocabulary, 1, 0))
		ok(b, k.Copy(s, ids, uniformIDs))
		same := tensor(b, d, device.Int64, batch*length)
		ok(b, k.Fill(s, same, 7))
		rows := x.Reshape(1, batch*length, features)
		permute := func(shape device.Shape, order ...int) error {
			in, out, from := kernels.Dense(shape), make(device.Shape, len(shape)), kernels.Layout{Strides: make([]int, len(shape))}
			for i, axis := range order {
				out[i], from.Strides[i] = shape[axis], in.Strides[axis]
			}
			return k.CopyStrided(s, out, y, kernels.Dense(out), device.Store, x, from)
		}
		moved := 2 * x.Bytes()
		for _, c := range []struct {
			name  string
			bytes int
			f     func() error
		}{
			{"heads before positions", moved, func() error { return permute(shape, 0, 2, 1, 3) }},
			{"last axes", moved, func() error { return permute(device.Shape{batch, length, features}, 0, 2, 1) }},
			{"matrix", moved, func() error { return permute(device.Shape{batch * length, features}, 1, 0) }},
			{"a third of columns", moved / 3, func() error {
				part := device.Shape{batch * length, features / 3}
				return k.CopyStrided(s, part, y, kernels.Dense(part), device.Store, x, kernels.Layout{Strides: []int{features, 1}})
			}},
			{"embedding", moved, func() error { return k.Gather(s, y.Reshape(1, batch*length, features), weight, ids) }},
			{"embedding's gradient", weight.Bytes() + x.Bytes(), func() error { return k.ScatterAdd(s, weight, device.Store, rows, ids, -1) }},
			{"embedding's gradient, one id", weight.Bytes() + x.Bytes(), func() error { return k.ScatterAdd(s, weight, device.Store, rows, same, -1) }},
		} {
			b.Run(fmt.Sprintf("%s/%v", c.name, dt), func(b *testing.B) {
				b.SetBytes(int64(c.bytes))
				for b.Loop() {
					ok(b, c.f())
				}
				ok(b, s.Sync(b.Context()))
			})
		}
		for _, t := range []device.Tensor{x, y, weight, ids, uniformIDs, same} {
			d.Free(t.Buf)
		}
	}
}
