package kernels

import (
	"testing"

	"github.com/goddp/goddp/device"
)

// Of several tensors on the same memory Distinct keeps the first, whatever their shapes are. A
// tensor on a part of that memory is distinct from it.
func TestDistinct(t *testing.T) {
	data := make([]float32, 6)
	x, y := device.HostTensor(data, device.Invalid), device.HostTensor(make([]float32, 6), device.Invalid)
	got := Distinct([]device.Tensor{x, y, x.Reshape(2, 3), x.Range(0, 3), y})
	if len(got) != 3 || got[0].Buf.Addr() != x.Buf.Addr() || got[1].Buf.Addr() != y.Buf.Addr() || got[2].Len() != 3 {
		t.Errorf("got %v, want x, y and the half of x", got)
	}
}
