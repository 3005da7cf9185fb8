package autograd_test

import (
	"math"
	"slices"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/testkit/must"
)

// ones returns a leaf of n ones.
func ones(dev device.Device, n int) *autograd.Variable {
	return autograd.FromSlice(dev, slices.Repeat([]float64{1}, n))
}

// Dropout drops the expected fraction of elements, other elements at each call, and drops the same
// elements of the gradient as of the result.
func TestDropout(t *testing.T) {
	dev := newDevice(t)
	const n, p = 10000, 0.3
	x := ones(dev, n).RequireGrad()
	y := autograd.Dropout(x, p)
	if err := autograd.Sum(y).Backward(nil); err != nil {
		t.Fatal(err)
	}
	got, dropped := read(t, y), 0
	for i, v := range got {
		switch {
		case v == 0:
			dropped++
		case math.Abs(v-1/(1-p)) > 1e-15:
			t.Fatalf("element %d is %v", i, v)
		}
	}
	if d := math.Abs(float64(dropped) - n*p); d > 5*math.Sqrt(n*p*(1-p)) {
		t.Errorf("%d of %d dropped with probability %v", dropped, n, p)
	}
	if !slices.Equal(read(t, x.Grad()), got) { // x is 1: the gradient is the mask, as the result is
		t.Error("the gradient has another mask")
	}
	if slices.Equal(read(t, autograd.Dropout(x, p)), got) {
		t.Error("two draws are equal")
	}
	if y := autograd.Dropout(x, 0); !slices.Equal(read(t, y), read(t, x)) {
		t.Error("a probability of 0 drops")
	}
	if y := read(t, autograd.Dropout(x, 1)); slices.ContainsFunc(y, func(v float64) bool { return v != 0 }) {
		t.Error("a probability of 1 keeps")
	}
	panics[error](t, func() { autograd.Dropout(x, 1.5) })
	panics[error](t, func() { autograd.Generator(dev).SetShard(2, 2) })
}

// A generator continues from a saved state, and ranks draw parts of one mask.
func TestGenerator(t *testing.T) {
	dev := newDevice(t)
	g := autograd.Generator(dev)
	g.Seed(7)
	masks := func(n int) (out []float64) { return read(t, autograd.Dropout(ones(dev, n), 0.5)) }
	masks(5)
	saved := must.New(g.MarshalJSON())
	restore := func() {
		if err := g.UnmarshalJSON(saved); err != nil {
			t.Fatal(err)
		}
	}
	first := masks(24)
	second := masks(12)
	restore()
	if !slices.Equal(masks(24), first) || !slices.Equal(masks(12), second) {
		t.Error("other masks from a saved state")
	}
	for _, ranks := range []int{2, 4} {
		var all, then []float64
		for rank := range ranks {
			restore()
			g.SetShard(rank, ranks)
			all = append(all, masks(24/ranks)...)
			then = append(then, masks(12/ranks)...)
		}
		if !slices.Equal(all, first) || !slices.Equal(then, second) {
			t.Errorf("%d ranks draw other masks than one", ranks)
		}
	}
}

// The second run of a Checkpoint drops the same elements as the first, and numbers drawn after the pass
// are the same as without Checkpoint.
func TestCheckpointDropsTheSame(t *testing.T) {
	dev := newDevice(t)
	g := autograd.Generator(dev)
	run := func(through part) (out [][]float64) {
		g.Seed(11)
		x := ones(dev, 64).RequireGrad()
		f := func(x *autograd.Variable) *autograd.Variable {
			return autograd.Sin(autograd.Dropout(autograd.Cos(autograd.Dropout(x, 0.5)), 0.5))
		}
		y := through(f, x)
		y = autograd.Dropout(through(f, y), 0.5)
		if err := autograd.Sum(y).Backward(nil); err != nil {
			t.Fatal(err)
		}
		return [][]float64{read(t, y), read(t, x.Grad()), read(t, autograd.Dropout(x, 0.5))}
	}
	want := run(plain)
	for i, got := range run(autograd.Checkpoint) {
		if !slices.Equal(got, want[i]) {
			t.Errorf("%s differs", []string{"the result", "the gradient", "the next draw"}[i])
		}
	}
}
