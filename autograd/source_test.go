package autograd_test

import (
	"errors"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/gradsink"
)

// supplier is a gradsink.Source that counts its calls.
type supplier struct {
	uses, reads int
	err         error
}

func (s *supplier) Use(uint64, bool) error { s.uses++; return s.err }
func (s *supplier) Read(string)            { s.reads++ }

// An operation uses the Source of the memory that it reads, also through views: in the forward pass, in the second run of
// a Checkpoint, and in the backward pass if it saves the variable. The Source's error becomes the operation's.
func TestSource(t *testing.T) {
	dev := newDevice(t)
	w := autograd.FromSlice(dev, []float64{1, 2, 3, 4}, 2, 2).SetName("w").RequireGrad()
	x := autograd.FromSlice(dev, []float64{1, 1, 1, 1}, 2, 2)
	s := &supplier{}
	gradsink.SetSource(w, s)
	expect := func(what string, uses, reads int) {
		t.Helper()
		if s.uses != uses || s.reads != reads {
			t.Errorf("%s: %d uses and %d reads, want %d and %d", what, s.uses, s.reads, uses, reads)
		}
		s.uses, s.reads = 0, 0
	}
	view := autograd.Slice(autograd.Reshape(w.Detach(), 4), 0, 0, 2, 1)
	expect("views", 0, 0)
	autograd.Neg(view)
	expect("an operation on a view", 1, 0)
	sum := autograd.Sum(autograd.Add(w, x))
	expect("Add", 1, 0)
	mustBackward(t, sum)
	expect("the backward of Add, which reads no operand", 0, 0)
	product := autograd.Sum(autograd.Mul(w, autograd.Mul(x, w)))
	expect("two products", 2, 0)
	mustBackward(t, product)
	expect("the backward of two products, one of which does not save w", 1, 0)
	again := autograd.Sum(autograd.Checkpoint(func(x *autograd.Variable) *autograd.Variable { return autograd.Add(w, x) }, x))
	expect("a Checkpoint", 1, 0)
	mustBackward(t, again)
	expect("its second run", 1, 0)
	w.Tensor()
	expect("Tensor", 0, 1)

	last := autograd.Sum(autograd.Mul(w, w))
	s.err = errors.New("no values")
	if err := last.Backward(nil); !errors.Is(err, s.err) {
		t.Errorf("the backward pass returned %v", err)
	}
	if err := autograd.Sum(autograd.Neg(w)).Err(); !errors.Is(err, s.err) {
		t.Errorf("an operation returned %v", err)
	}
}

// filler is a gradsink.Source of memory that it shares with other Sources. It fills the memory before each use.
type filler struct {
	w     *autograd.Variable
	value float64
}

func (f filler) Use(uint64, bool) error {
	dev := f.w.Device()
	return dev.Kernels().Fill(dev.Compute(), f.w.Tensor(), f.value)
}
func (filler) Read(string) {}

// Operations that one kernel may compute together read each operand before its memory gets the values of another one.
func TestJointOperationsOfSources(t *testing.T) {
	dev := newDevice(t)
	of := func(value float64, shape ...int) *autograd.Variable {
		return autograd.AddScalar(autograd.Zeros(dev, device.Float64, shape...), value)
	}
	mem := of(0, 2)
	sourced := func(value float64, shape ...int) *autograd.Variable {
		v := of(0, shape...)
		gradsink.Rebind(v, mem.Tensor())
		gradsink.SetSource(v, filler{v, value})
		return v
	}
	expect := func(what string, v *autograd.Variable, want float64) {
		t.Helper()
		if got := read(t, v)[0]; got != want {
			t.Errorf("%s is %v, want %v", what, got, want)
		}
	}
	products := autograd.Linears(of(1, 1, 2), []*autograd.Variable{sourced(1, 1, 2), sourced(2, 1, 2)}, make([]*autograd.Variable, 2))
	expect("the first product", products[0], 2)
	expect("the second product", products[1], 4)
	sum, normed := autograd.AddRMSNorm(of(1, 2), sourced(2, 2), []int{2}, sourced(5, 2), 0)
	expect("the sum", sum, 3)
	expect("the normalized sum", normed, 5)
	x, y := autograd.RotaryBoth(sourced(3, 1, 1, 1, 2), sourced(4, 1, 1, 1, 2), of(1, 1, 1), of(0, 1, 1))
	expect("the first rotated operand", x, 3)
	expect("the second rotated operand", y, 4)
}
