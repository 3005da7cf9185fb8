package device

import "testing"

// Of tensors on the same memory the first is kept, whatever its shape; parts of it are
// others.
func TestDistinct(t *testing.T) {
	data := make([]float32, 6)
	x, y := HostTensor(data, Invalid), HostTensor(make([]float32, 6), Invalid)
	got := Distinct([]Tensor{x, y, x.Reshape(2, 3), x.Range(0, 3), y})
	if len(got) != 3 || got[0].Buf.Addr() != x.Buf.Addr() || got[1].Buf.Addr() != y.Buf.Addr() || got[2].Len() != 3 {
		t.Errorf("got %v, want x, y and the half of x", got)
	}
}
