//go:build cgo && linux

package cuda

import (
	"testing"
	"unsafe"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
	"github.com/goddp/goddp/internal/testkit/fakegpu"
)

// An index out of range gives NaN in a gather, and its term is not added in a scatter.
func TestEmulatedIndexOutOfRange(t *testing.T) {
	fakegpu.Use(t)
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
