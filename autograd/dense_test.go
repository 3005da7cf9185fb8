package autograd_test

import (
	"runtime"
	"slices"
	"testing"

	"gorgonia.org/tensor"

	"github.com/goddp/goddp/autograd"
)

// On the CPU a Dense and a Variable share memory, in both directions.
func TestDenseSharesMemory(t *testing.T) {
	dev := newDevice(t)
	d := tensor.New(tensor.WithShape(2, 3), tensor.WithBacking([]float32{1, 2, 3, 4, 5, 6}))
	v := autograd.FromDense(dev, d)
	d.Float32s()[4] = 50
	if got, want := read(t, v), []float64{1, 2, 3, 4, 50, 6}; !slices.Equal(got, want) {
		t.Errorf("after a write to the Dense, the Variable reads %v, want %v", got, want)
	}

	back, err := v.Dense(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !back.Shape().Eq(d.Shape()) {
		t.Errorf("shape %v went in, %v came out", d.Shape(), back.Shape())
	}
	back.Float32s()[0] = -1
	if d.Float32s()[0] != -1 {
		t.Error("a write to the Dense that came out does not show in the one that went in")
	}

	s, err := autograd.Sum(v).Dense(t.Context())
	if err != nil || s.Data() != float32(64) {
		t.Errorf("a scalar came out as %v, %v; want 64", s.Data(), err)
	}
	f64 := autograd.FromDense(dev, tensor.New(tensor.WithShape(2), tensor.WithBacking([]float64{1, 1e-9})))
	if got := read(t, autograd.Sum(f64))[0]; got != 1+1e-9 {
		t.Errorf("float64 sums to %v", got)
	}
}

// A Dense keeps the memory that it shares, past the end of the step.
func TestDenseRetains(t *testing.T) {
	dev := newDevice(t)
	var d *tensor.Dense
	autograd.Scope(dev, func() {
		v := autograd.MulScalar(autograd.FromSlice(dev, []float64{1, 2}), 3)
		d, _ = v.Dense(t.Context())
	})
	for range 10 { // would take the memory, were it freed
		runtime.GC()
		autograd.FromSlice(dev, []float64{-1, -1})
	}
	if got, want := d.Float64s(), []float64{3, 6}; !slices.Equal(got, want) {
		t.Errorf("the Dense holds %v, want %v", got, want)
	}
}

func TestDenseMustBePlain(t *testing.T) {
	dev := newDevice(t)
	d := tensor.New(tensor.WithShape(2, 2), tensor.WithBacking([]float32{1, 2, 3, 4}))
	col, err := d.Slice(nil, tensor.S(0))
	if err != nil {
		t.Fatal(err)
	}
	panics[error](t, func() { autograd.FromDense(dev, col.(*tensor.Dense)) })
	if err := d.T(); err != nil {
		t.Fatal(err)
	}
	panics[error](t, func() { autograd.FromDense(dev, d) })
	panics[error](t, func() {
		autograd.FromDense(dev, tensor.New(tensor.WithShape(2), tensor.WithBacking([]int{1, 2})))
	})
}
