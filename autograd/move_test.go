package autograd_test

import (
	"slices"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
)

// A moved leaf keeps its content and gets its gradients as before, later writes go to the new memory, and
// the old memory is freed.
func TestMoveTo(t *testing.T) {
	dev := newDevice(t)
	w := autograd.FromSlice(dev, []float64{1, 2, 3, 4}, 2, 2).SetName("w").RequireGrad()
	old := w.Detach()
	home, err := dev.Alloc(64)
	if err != nil {
		t.Fatal(err)
	}
	square := func() []float64 {
		mustBackward(t, autograd.Sum(autograd.Mul(w, w)))
		return read(t, w.Grad())
	}
	if got := square(); !slices.Equal(got, []float64{2, 4, 6, 8}) {
		t.Fatalf("the gradient is %v", got)
	}
	w.ZeroGrad()
	use := dev.Memory().InUse
	if err := w.MoveTo(device.NewTensor(home.Slice(32, 32), device.Float64, 4)); err != nil {
		t.Fatal(err)
	}
	if now := dev.Memory().InUse; now != use-device.Align {
		t.Errorf("%d bytes in use, %d before: the old place was not given back", now, use)
	}
	held := device.Elements[float64](device.NewTensor(home.Slice(32, 32), device.Float64, 4))
	if !slices.Equal(held, []float64{1, 2, 3, 4}) || !w.Shape().Equal(device.Shape{2, 2}) {
		t.Errorf("moved %v of shape %v", held, w.Shape())
	}
	held[0] = 10
	if got := square(); !slices.Equal(got, []float64{20, 4, 6, 8}) {
		t.Errorf("the gradient where it is now is %v", got)
	}
	panics[*autograd.FreedError](t, func() { old.Tensor() })
	panics[*device.ShapeError](t, func() { w.MoveTo(device.NewTensor(home, device.Float64, 3)) })
	panics[*device.DTypeError](t, func() { w.MoveTo(device.NewTensor(home, device.Float32, 4)) })
	panics[*autograd.GraphError](t, func() { autograd.Mul(w, w).MoveTo(device.NewTensor(home, device.Float64, 4)) })
	dev.Free(home)
}
