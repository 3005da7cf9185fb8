package autograd_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/cpu"
	"github.com/goddp/goddp/internal/gradsink"
	"github.com/goddp/goddp/internal/kernels"
)

func newDevice(t *testing.T) device.Device {
	dev := cpu.New(&cpu.Options{Threads: 1})
	t.Cleanup(func() { dev.Close() })
	return dev
}

// faulty is a device whose n-th allocation or kernel from now fails.
type faulty struct {
	device.Device
	values   kernels.Values
	alloc    int // 0 means none
	kernel   int
	err      error
	kernels  int // the number of kernels run so far
	copies   int // the number of calls of Copy so far, which do not fail
	failures int
}

func newFaulty(t *testing.T, err error) *faulty { return &faulty{Device: newDevice(t), err: err} }

func (f *faulty) Values() *kernels.Values { return &f.values }

func (f *faulty) Kernels() device.Kernels { return &faultyKernels{kernels.Of(f.Device), f} }

func (f *faulty) Alloc(size int) (device.Buffer, error) {
	if err := f.count(&f.alloc); err != nil {
		return device.Buffer{}, err
	}
	return f.Device.Alloc(size)
}

func (f *faulty) count(n *int) error {
	if *n > 0 {
		if *n--; *n == 0 {
			f.failures++
			return f.err
		}
	}
	return nil
}

// faultyKernels counts the kernels that the tests' graphs use.
type faultyKernels struct {
	kernels.Kernels
	f *faulty
}

func (k *faultyKernels) run(kernel func() error) error {
	k.f.kernels++
	if err := k.f.count(&k.f.kernel); err != nil {
		return err
	}
	return kernel()
}

func (k *faultyKernels) Copy(s device.Stream, dst, src device.Tensor) error {
	k.f.copies++
	return k.Kernels.Copy(s, dst, src)
}

func (k *faultyKernels) Fill(s device.Stream, dst device.Tensor, v float64) error {
	return k.run(func() error { return k.Kernels.Fill(s, dst, v) })
}

func (k *faultyKernels) Axpby(s device.Stream, dst device.Tensor, acc device.Accum, x device.Tensor) error {
	return k.run(func() error { return k.Kernels.Axpby(s, dst, acc, x) })
}

func (k *faultyKernels) Binary(s device.Stream, op kernels.BinaryOp, dst, x, y device.Tensor) error {
	return k.run(func() error { return k.Kernels.Binary(s, op, dst, x, y) })
}

func (k *faultyKernels) Sum(s device.Stream, dst device.Tensor, acc device.Accum, src device.Tensor) error {
	return k.run(func() error { return k.Kernels.Sum(s, dst, acc, src) })
}

func (k *faultyKernels) MatMul(s device.Stream, dst device.Tensor, acc device.Accum, x device.Tensor, tx bool, y device.Tensor, ty bool) error {
	return k.run(func() error { return k.Kernels.MatMul(s, dst, acc, x, tx, y, ty) })
}

func (k *faultyKernels) Linear(s device.Stream, dst, x, w, bias device.Tensor, act kernels.Activation) error {
	return k.run(func() error { return k.Kernels.Linear(s, dst, x, w, bias, act) })
}

func (k *faultyKernels) LinearGrad(s device.Stream, dw device.Tensor, accW device.Accum, db device.Tensor, accB device.Accum, g, x device.Tensor) error {
	return k.run(func() error { return k.Kernels.LinearGrad(s, dw, accW, db, accB, g, x) })
}

// sink is a gradsink.Sink that notes its calls.
type sink struct {
	t     device.Tensor
	state gradsink.State
	scale float64
	log   *[]string
	name  string
	err   error

	settled int // the number of calls of Settle
}

// newSink installs a sink for v's gradient, over memory full of NaN.
func newSink(v *autograd.Variable, name string, log *[]string) *sink {
	t := v.Tensor()
	s := &sink{scale: 1, name: name, log: log}
	switch t.DType {
	case device.Float32:
		s.t = device.HostTensor(slices.Repeat([]float32{float32(math.NaN())}, t.Len()), device.Invalid).Reshape(t.Shape...)
	case device.Float64:
		s.t = device.HostTensor(slices.Repeat([]float64{math.NaN()}, t.Len()), device.Invalid).Reshape(t.Shape...)
	default:
		s.t = device.HostTensor(slices.Repeat([]uint16{0x7fff}, t.Len()), t.DType).Reshape(t.Shape...)
	}
	gradsink.Set(v, s, &s.state)
	return s
}

func (s *sink) note(what string) {
	if s.log != nil {
		*s.log = append(*s.log, s.name+" "+what)
	}
}

func (s *sink) Settle() {
	s.note("settle")
	s.settled++
}

func (s *sink) Scale() float64 {
	s.note("scale")
	return s.scale
}

func (s *sink) Ready(e device.Event) {
	if done, err := e.Done(); !done || err != nil {
		panic("not done on a device that runs work inline")
	}
	s.note("ready")
}

func (s *sink) Grad() device.Tensor { return s.t }
func (s *sink) Pending() bool       { return false }
func (s *sink) Err() error          { return s.err }
func (s *sink) Skip() device.Tensor { return device.Tensor{} }

// values returns n different numbers in [lo, hi) that are not near 0.
func values(rng *rand.Rand, n int, lo, hi float64) []float64 {
	x := make([]float64, n)
	for i := range x {
		x[i] = lo + (hi-lo)*rng.Float64()
		if math.Abs(x[i]) < 0.1 { // ReLU and others have no derivative at 0
			x[i] += 0.2
		}
	}
	return x
}

func read(t *testing.T, v *autograd.Variable) []float64 {
	t.Helper()
	x, err := v.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// near fails the test unless got and want agree to tol, relative to the magnitude of numbers above 1.
func near(t *testing.T, what string, got, want []float64, tol float64) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d numbers, want %d", what, len(got), len(want))
	}
	for i := range got {
		if !(math.Abs(got[i]-want[i]) <= tol*max(1, math.Abs(want[i]))) {
			t.Fatalf("%s: element %d is %v, want %v", what, i, got[i], want[i])
		}
	}
}

// panics returns the value that f panics with, which must be a T.
func panics[T error](t *testing.T, f func()) (err T) {
	t.Helper()
	defer func() {
		t.Helper()
		switch e := recover().(type) {
		case nil:
			t.Errorf("no panic, want a %T", err)
		case T:
			err = e
		default:
			t.Errorf("panic with %T %v, want a %T", e, e, err)
		}
	}()
	f()
	return err
}
