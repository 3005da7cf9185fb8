package nn_test

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/cpu"
	"github.com/goddp/goddp/nn"
)

// rounded returns numbers rounded to a type.
func rounded(t *testing.T, dev device.Device, dt device.DType, data []float64) []float64 {
	t.Helper()
	return read(t, autograd.Cast(autograd.FromSlice(dev, data), dt))
}

// A cast model starts with the values of the float32 model, rounded, whether Cast comes before or after
// Place. Excluded parameters, buffers, names and frozen parameters stay as they are.
func TestCast(t *testing.T) {
	type model struct {
		*nn.Sequence
		kept *nn.LinearLayer
	}
	build := func() model {
		kept := nn.Linear(4, 5, nil)
		m := model{nn.Sequential(nn.Linear(3, 4, nil), normed{kept, nn.NewUnplacedBuffer("mean", nn.Constant(7), device.Float32, 2)}), kept}
		m.Parameters()[1].Freeze()
		return m
	}
	dev := newDevice(t, cpu.Options{})
	place := func(m nn.Module) {
		t.Helper()
		if err := nn.Place(m, dev, 1); err != nil {
			t.Fatal(err)
		}
	}
	plain := build()
	place(plain)
	for _, dt := range []device.DType{device.BFloat16, device.Float16, device.Float32} {
		before, after := build(), build()
		place(after)
		if err := errors.Join(nn.Cast(before, dt, &nn.CastOptions{Keep: []nn.Model{before.kept}}), nn.Cast(after, dt, &nn.CastOptions{Keep: []nn.Model{after.kept}})); err != nil {
			t.Fatal(err)
		}
		place(before)
		for _, m := range []model{before, after} {
			for i, p := range m.Parameters() {
				ref, want := plain.Parameters()[i], dt
				if i >= 2 {
					want = device.Float32
				}
				if p.DType() != want || p.Var().DType() != want || p.Frozen() != ref.Frozen() || p.Name() != p.Var().Name() {
					t.Errorf("cast to %v: %v, frozen %v, of the variable %v", dt, p, p.Frozen(), p.Var())
				}
				if !slices.Equal(read(t, p.Var()), rounded(t, dev, want, read(t, ref.Var()))) {
					t.Errorf("cast to %v: %v does not begin as the float32 one, rounded", dt, p)
				}
			}
			if b := nn.Buffers(m)[0]; b.Var().DType() != device.Float32 {
				t.Errorf("the buffer became %v", b)
			}
		}
	}
	if err := thrown(func() { nn.Cast(plain, device.Int32, nil) }); !errors.As(err, new(*device.DTypeError)) {
		t.Errorf("cast to integers: %v, want a DTypeError", err)
	}
}

// A device that does not compute in 16 bits panics with the types that it computes in.
func TestCastOnTheCPU(t *testing.T) {
	dev := newDevice(t, cpu.Options{})
	net := nn.Linear(2, 2, nil)
	if err := errors.Join(nn.Cast(net, device.BFloat16, nil), nn.Place(net, dev, 1)); err != nil {
		t.Fatal(err)
	}
	err := thrown(func() { net.Forward(autograd.Zeros(dev, device.Float32, 1, 2)) })
	if !errors.As(err, new(*device.DTypeError)) || !strings.Contains(err.Error(), "got bfloat16, but the device computes only in [float32 float64]") {
		t.Errorf("got %v, want what the device computes in", err)
	}
}

// A Linear converts its input and its parameters to its compute type, and the gradients back.
func TestLinearComputesInItsType(t *testing.T) {
	dev := newDevice(t, cpu.Options{})
	x := []float64{1, -2, 3, 0.5, 0.25, -4}
	half := nn.Linear(3, 4, &nn.LinearOptions{DType: device.BFloat16, Compute: device.Float32})
	full := nn.Linear(3, 4, nil)
	if err := errors.Join(nn.Place(half, dev, 5), nn.Place(full, dev, 5)); err != nil {
		t.Fatal(err)
	}
	for i, p := range full.Parameters() {
		if err := dev.Kernels().Copy(dev.Compute(), p.Var().Tensor(), half.Parameters()[i].Var().Tensor()); err != nil {
			t.Fatal(err)
		}
	}
	y, want := half.Forward(autograd.FromSlice(dev, x, 2, 3)), full.Forward(autograd.Cast(autograd.FromSlice(dev, x, 2, 3), device.Float32))
	if y.DType() != device.Float32 || !slices.Equal(read(t, y), read(t, want)) {
		t.Errorf("%v %v, want %v", y, read(t, y), read(t, want))
	}
	if err := errors.Join(autograd.Mean(autograd.Mul(y, y)).Backward(nil), autograd.Mean(autograd.Mul(want, want)).Backward(nil)); err != nil {
		t.Fatal(err)
	}
	for i, p := range half.Parameters() {
		g := p.Grad()
		if g.DType() != device.BFloat16 || !slices.Equal(read(t, g), rounded(t, dev, device.BFloat16, read(t, full.Parameters()[i].Grad()))) {
			t.Errorf("gradient of %v: %v is not the float32 one, rounded", p, g)
		}
	}
}

// A loss of 16-bit values equals the loss of the same numbers in Float32, and its gradient does too,
// except for one rounding: even the gradient of a nearly certain prediction is not lost.
func TestLossesOfHalfTypes(t *testing.T) {
	dev := newDevice(t, cpu.Options{})
	labels := autograd.FromSlice(dev, []int64{0, 1})
	for _, dt := range []device.DType{device.BFloat16, device.Float16} {
		for name, loss := range map[string]func(x *autograd.Variable) *autograd.Variable{
			"cross entropy": func(x *autograd.Variable) *autograd.Variable { return nn.CrossEntropyLoss(x, labels, nil) },
			"MSE": func(x *autograd.Variable) *autograd.Variable {
				return nn.MSELoss(x, autograd.Cast(autograd.FromSlice(dev, []float64{8, 1, 0, 2, 2, 0.5}, 2, 3), x.DType()), nil)
			},
		} {
			logits := autograd.FromSlice(dev, []float32{9, 0, -0.5, 1, 2, 3.1}, 2, 3)
			h := autograd.Cast(logits, dt)
			half := autograd.Cast(h, device.Float32).Detach().RequireGrad()
			full := autograd.Cast(h, device.Float32).Detach().RequireGrad()
			lh, lf := loss(autograd.Cast(half, dt)), loss(full)
			if lh.DType() != device.Float32 || lh.Item() != lf.Item() {
				t.Errorf("%s of %v: %v %v, want %v", name, dt, lh.DType(), lh.Item(), lf.Item())
			}
			if err := errors.Join(lh.Backward(nil), lf.Backward(nil)); err != nil {
				t.Fatal(err)
			}
			got, want := read(t, half.Grad()), read(t, full.Grad())
			if !slices.Equal(got, rounded(t, dev, dt, want)) {
				t.Errorf("%s of %v: the gradient is %v, want %v", name, dt, got, want)
			}
			if name == "cross entropy" && !(math.Abs(got[0]) > 5e-5) {
				t.Errorf("of %v, the answer that is nearly certain has the gradient %v", dt, got[0])
			}
		}
	}
}

// A write to a parameter, or another cast, discards the values from before a rounding, and frees them.
func TestMastersAreDiscarded(t *testing.T) {
	dev := newDevice(t, cpu.Options{})
	for name, discard := range map[string]func(p *nn.Parameter, net nn.Module){
		"write": func(p *nn.Parameter, _ nn.Module) { p.Var().BumpVersion() },
		"write and cast": func(p *nn.Parameter, net nn.Module) {
			p.Var().BumpVersion()
			if err := nn.Cast(net, device.Float16, nil); err != nil {
				t.Fatal(err)
			}
		},
		"SetMaster":  func(p *nn.Parameter, _ nn.Module) { p.SetMaster(nil) },
		"FreezeBase": func(_ *nn.Parameter, net nn.Module) { nn.FreezeBase(net) },
	} {
		net := nn.Linear(64, 64, nil)
		if err := nn.Place(net, dev, 1); err != nil {
			t.Fatal(err)
		}
		p := net.Parameters()[0]
		want := read(t, p.Var())
		if err := nn.Cast(net, device.BFloat16, &nn.CastOptions{Masters: true}); err != nil {
			t.Fatal(err)
		}
		if m := p.Master(); m == nil || !slices.Equal(read(t, m), want) {
			t.Fatalf("%s: the master is %v, want the values from before the cast", name, m)
		}
		before := dev.Memory().InUse
		discard(p, net)
		if m := p.Master(); m != nil || dev.Memory().InUse > before-64*64 { // another cast makes new variables
			t.Errorf("%s: there is the master %v, and %d bytes are in use, before %d", name, m, dev.Memory().InUse, before)
		}
	}
}

// Cast may come before Place: parameters and masters are then the same, except that frozen parameters keep no master.
func TestMastersOfAModelPlacedLater(t *testing.T) {
	dev := newDevice(t, cpu.Options{})
	first, later := nn.Linear(8, 8, nil), nn.Linear(8, 8, nil)
	later.Parameters()[1].Freeze()
	masters := &nn.CastOptions{Masters: true}
	if err := errors.Join(nn.Place(first, dev, 1), nn.Cast(first, device.BFloat16, masters), nn.Cast(later, device.BFloat16, masters), nn.Place(later, dev, 1)); err != nil {
		t.Fatal(err)
	}
	for i, p := range later.Parameters() {
		want := first.Parameters()[i]
		if !slices.Equal(read(t, p.Var()), read(t, want.Var())) {
			t.Errorf("%v differs from that of a model that was placed first", p)
		}
		if m := p.Master(); p.Frozen() != (m == nil) || m != nil && !slices.Equal(read(t, m), read(t, want.Master())) {
			t.Errorf("%v has the master %v", p, m)
		}
	}
}
