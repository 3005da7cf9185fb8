package ddpgorgonia

import (
	"runtime"
	"slices"
	"testing"

	"gorgonia.org/tensor"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/cpu"
)

// On the CPU a Dense and a Variable share memory, in both directions.
func TestDenseSharesMemory(t *testing.T) {
	dev := host(t)
	d := tensor.New(tensor.WithShape(2, 3), tensor.WithBacking([]float32{1, 2, 3, 4, 5, 6}))
	v := FromDense(dev, d)
	d.Float32s()[4] = 50
	if got, want := numbers(t, v), []float64{1, 2, 3, 4, 50, 6}; !slices.Equal(got, want) {
		t.Errorf("after a write to the Dense, the Variable reads %v, want %v", got, want)
	}

	back, err := Dense(t.Context(), v)
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

	s, err := Dense(t.Context(), autograd.Sum(v))
	if err != nil || s.Data() != float32(64) {
		t.Errorf("a scalar came out as %v, %v; want 64", s.Data(), err)
	}
	f64 := FromDense(dev, tensor.New(tensor.WithShape(2), tensor.WithBacking([]float64{1, 1e-9})))
	if got := numbers(t, autograd.Sum(f64))[0]; got != 1+1e-9 {
		t.Errorf("float64 sums to %v", got)
	}
}

// A Dense keeps the shared memory alive after the step.
func TestDenseRetains(t *testing.T) {
	dev := host(t)
	var d *tensor.Dense
	autograd.Scope(dev, func() {
		v := autograd.MulScalar(autograd.FromSlice(dev, []float64{1, 2}), 3)
		d, _ = Dense(t.Context(), v)
	})
	for range 10 { // these allocations would reuse the memory if it had been freed
		runtime.GC()
		autograd.FromSlice(dev, []float64{-1, -1})
	}
	if got, want := d.Float64s(), []float64{3, 6}; !slices.Equal(got, want) {
		t.Errorf("the Dense holds %v, want %v", got, want)
	}
}

func TestDenseMustBePlain(t *testing.T) {
	dev := host(t)
	d := tensor.New(tensor.WithShape(2, 2), tensor.WithBacking([]float32{1, 2, 3, 4}))
	col, err := d.Slice(nil, tensor.S(0))
	if err != nil {
		t.Fatal(err)
	}
	refused(t, func() { FromDense(dev, col.(*tensor.Dense)) })
	if err := d.T(); err != nil {
		t.Fatal(err)
	}
	refused(t, func() { FromDense(dev, d) })
	refused(t, func() {
		FromDense(dev, tensor.New(tensor.WithShape(2), tensor.WithBacking([]int{1, 2})))
	})
}

func host(t *testing.T) device.Device {
	dev := cpu.New(&cpu.Options{Threads: 1})
	t.Cleanup(func() { dev.Close() })
	return dev
}

func numbers(t *testing.T, v *autograd.Variable) []float64 {
	t.Helper()
	x, err := v.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// refused fails the test unless f panics with an error.
func refused(t *testing.T, f func()) {
	t.Helper()
	defer func() {
		t.Helper()
		if _, ok := recover().(error); !ok {
			t.Error("no panic with an error")
		}
	}()
	f()
}
