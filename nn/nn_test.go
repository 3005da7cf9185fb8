package nn_test

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/cpu"
	"github.com/goddp/goddp/nn"
)

// randomCases returns how many random cases a comparison with PyTorch has.
func randomCases() int { return 100 }

func newDevice(t *testing.T, opts cpu.Options) device.Device {
	opts.Threads = 1
	dev := cpu.New(&opts)
	t.Cleanup(func() { dev.Close() })
	return dev
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

// thrown returns the error with which f panics.
func thrown(f func()) (err error) {
	defer func() { err, _ = recover().(error) }()
	f()
	return nil
}

func describe[T fmt.Stringer](list []T) (names []string) {
	for _, x := range list {
		names = append(names, x.String())
	}
	return names
}

// normed is a module with a buffer.
type normed struct {
	*nn.LinearLayer
	mean *nn.Buffer
}

func (n normed) Buffers() []*nn.Buffer { return []*nn.Buffer{n.mean} }

func TestNames(t *testing.T) {
	shared := nn.Linear(4, 4, nil)
	inner := nn.Sequential(nn.Linear(4, 4, &nn.LinearOptions{NoBias: true}), shared)
	net := nn.Sequential(
		nn.Linear(3, 4, nil), nn.ReLU(),
		inner,
		shared, // this parameter keeps the name that it has in inner
		normed{nn.Linear(4, 2, nil), nn.NewUnplacedBuffer("mean", nn.Constant(7), device.Float64, 2)},
	)
	want := []string{
		"0.weight float32[4 3]", "0.bias float32[4]",
		"2.0.weight float32[4 4]", "2.1.weight float32[4 4]", "2.1.bias float32[4]",
		"4.weight float32[2 4]", "4.bias float32[2]",
	}
	if got := describe(net.Parameters()); !slices.Equal(got, want) {
		t.Errorf("parameters %q, want %q", got, want)
	}
	if got, want := describe(net.Buffers()), []string{"4.mean float64[2]"}; !slices.Equal(got, want) {
		t.Errorf("buffers %q, want %q", got, want)
	}
	if got := inner.Parameters()[1].Name(); got != "1.weight" {
		t.Errorf("within its own module the parameter is called %s, want 1.weight", got)
	}
	if nn.Buffers(inner) != nil || nn.Buffers(shared) != nil {
		t.Error("buffers where there are none")
	}

	dev := newDevice(t, cpu.Options{})
	if err := nn.Place(net, dev, 0); err != nil {
		t.Fatal(err)
	}
	if got := read(t, net.Buffers()[0].Var()); !slices.Equal(got, []float64{7, 7}) {
		t.Errorf("the buffer begins as %v, want 7s", got)
	}
	if net.Buffers()[0].Var().RequiresGrad() || !net.Parameters()[0].Var().RequiresGrad() {
		t.Error("buffers require gradients, or parameters do not")
	}
	if net.Parameters()[3].Var() != shared.Weight.Var() {
		t.Error("the shared layer's weight has two variables")
	}
	if got := shared.Weight.Var().Name(); got != "2.1.weight" {
		t.Errorf("the variable is called %q, want as in the model that was placed", got)
	}
}

// The first values of a model follow PyTorch's distribution, do not depend on the device, and depend on
// the seed. Placing the model again changes nothing.
func TestPlace(t *testing.T) {
	model := func() *nn.Sequence { return nn.Sequential(nn.Linear(100, 50, nil), nn.ReLU(), nn.Linear(50, 10, nil)) }
	place := func(m nn.Module, seed uint64) (values [][]float64) {
		t.Helper()
		if err := nn.Place(m, newDevice(t, cpu.Options{}), seed); err != nil {
			t.Fatal(err)
		}
		for _, p := range m.Parameters() {
			values = append(values, read(t, p.Var()))
		}
		return values
	}
	m := model()
	one := place(m, 1)
	if again, other := place(model(), 1), place(model(), 2); !slices.EqualFunc(one, again, slices.Equal) || slices.Equal(one[0], other[0]) {
		t.Error("equal seeds give different numbers, or different ones equal")
	}
	for i, bound := range []float64{0.1, 0.1, 1 / math.Sqrt(50), 1 / math.Sqrt(50)} {
		sum := 0.0
		for _, x := range one[i] {
			sum += x * x
		}
		// The variance of uniform numbers in ±b is b²/3.
		deviation := math.Sqrt(sum / float64(len(one[i])))
		if slices.Max(one[i]) >= bound || slices.Min(one[i]) < -bound || math.Abs(deviation/bound*math.Sqrt(3)-1) > 0.4 {
			t.Errorf("%v within %v and %v, deviation %v, want uniform within ±%v",
				m.Parameters()[i], slices.Min(one[i]), slices.Max(one[i]), deviation, bound)
		}
	}
	if slices.Equal(one[1][:10], one[3]) || slices.Equal(one[0][:10], one[1][:10]) {
		t.Error("two parameters begin with the same numbers")
	}

	dev := m.Parameters()[0].Var().Device()
	v := m.Parameters()[0].Var()
	if err := nn.Place(m, dev, 5); err != nil || m.Parameters()[0].Var() != v || !slices.Equal(read(t, v), one[0]) {
		t.Errorf("placed again, the parameter has changed; error %v", err)
	}
	if err := thrown(func() { nn.Place(m, newDevice(t, cpu.Options{}), 1) }); !errors.As(err, new(*autograd.DeviceError)) {
		t.Errorf("placed on a second device: %v, want a DeviceError", err)
	}
}

// The bias of a Linear with no inputs starts at zero, as PyTorch's does.
func TestLinearWithoutInputs(t *testing.T) {
	l := nn.Linear(0, 3, nil)
	if err := nn.Place(l, newDevice(t, cpu.Options{}), 1); err != nil {
		t.Fatal(err)
	}
	if got := read(t, l.Bias.Var()); !slices.Equal(got, []float64{0, 0, 0}) {
		t.Errorf("the bias begins as %v", got)
	}
}

func TestPlaceWithoutMemory(t *testing.T) {
	net := nn.Sequential(nn.Linear(10, 10, nil), nn.Linear(1000, 1000, nil))
	err := nn.Place(net, newDevice(t, cpu.Options{MemoryLimit: 1 << 20}), 0)
	if !errors.Is(err, device.ErrOutOfMemory) {
		t.Fatalf("%v, want out of memory", err)
	}
	if p := net.Parameters(); !p[0].Placed() || p[2].Placed() {
		t.Error("what fits has no place, or what does not has one")
	}
	if e, ok := thrown(func() { net.Parameters()[2].Var() }).(*nn.UnplacedError); !ok || e.Name != "1.weight" {
		t.Errorf("used without a place, panic with %v, want an UnplacedError of 1.weight", e)
	}
}
