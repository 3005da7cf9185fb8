package nn_test

import (
	"bytes"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/cpu"
	"github.com/goddp/goddp/nn"
)

// placedNet returns a small placed net with a buffer.
func placedNet(t *testing.T, dev device.Device, seed uint64, dt device.DType) nn.Module {
	t.Helper()
	net := nn.Sequential(
		nn.Linear(3, 4, &nn.LinearOptions{DType: dt}), nn.ReLU(),
		normed{nn.Linear(4, 2, &nn.LinearOptions{DType: dt, NoBias: true}), nn.NewUnplacedBuffer("count", nn.Constant(float64(seed)), device.Int64, 1)},
	)
	if err := nn.Place(net, dev, seed); err != nil {
		t.Fatal(err)
	}
	return net
}

// LoadState restores a state that was taken on another device, with another floating-point type, or from a
// model with other parts wrapped by nn.Checkpoint.
func TestState(t *testing.T) {
	dev := newDevice(t, cpu.Options{})
	from := placedNet(t, dev, 1, device.Float32)
	names := slices.Sorted(maps.Keys(nn.State(from)))
	if want := []string{"0.bias", "0.weight", "2.count", "2.weight"}; !slices.Equal(names, want) {
		t.Fatalf("the state has %q, want %q", names, want)
	}
	if nn.State(from)["2.weight"] != from.Parameters()[2].Var() {
		t.Error("the state is not of the variables themselves")
	}
	for what, to := range map[string]nn.Module{
		"same device":    placedNet(t, dev, 2, device.Float32),
		"another device": placedNet(t, newDevice(t, cpu.Options{}), 2, device.Float32),
		"another type":   placedNet(t, newDevice(t, cpu.Options{}), 2, device.Float64),
		"wrapped":        nn.Checkpoint(placedNet(t, dev, 2, device.Float32)),
		"itself":         from,
	} {
		if err := nn.LoadState(t.Context(), to, nn.State(from)); err != nil {
			t.Errorf("%s: %v", what, err)
			continue
		}
		for name, v := range nn.State(to) {
			if got, want := read(t, v), read(t, nn.State(from)[name]); !slices.Equal(got, want) {
				t.Errorf("%s: %s is %v, want %v", what, name, got, want)
			}
		}
		if !to.Parameters()[0].Var().RequiresGrad() {
			t.Errorf("%s: loaded, it is trained no more", what)
		}
	}
}

// One error lists all differences, and nothing is changed.
func TestStateThatDoesNotFit(t *testing.T) {
	dev := newDevice(t, cpu.Options{})
	net := placedNet(t, dev, 1, device.Float32)
	before := bytes.Clone(net.Parameters()[1].Var().Tensor().Buf.Host())
	state := nn.State(net)
	delete(state, "0.weight")
	delete(state, "2.count")
	state["module.0.weight"] = autograd.Zeros(dev, device.Float32, 4, 3)
	state["0.bias"] = autograd.Zeros(dev, device.Float32, 4) // fits
	state["2.weight"] = autograd.Zeros(dev, device.Float32, 4, 2)
	err := nn.LoadState(t.Context(), net, state)
	var e *nn.StateError
	if !errors.As(err, &e) {
		t.Fatalf("got %v, want a StateError", err)
	}
	if !slices.Equal(e.Missing, []string{"0.weight", "2.count"}) || !slices.Equal(e.Unexpected, []string{"module.0.weight"}) ||
		!slices.Equal(e.Mismatched, []nn.StateMismatch{{"2.weight", "float32[4 2]", "float32[2 4]"}}) {
		t.Errorf("got %+v", e)
	}
	for _, part := range []string{`lacks ["0.weight" "2.count"]`, `no ["module.0.weight"]`, `"2.weight" is float32[4 2] in the state and float32[2 4] in the module`} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q lacks %q", err, part)
		}
	}
	if !bytes.Equal(before, net.Parameters()[1].Var().Tensor().Buf.Host()) {
		t.Error("what fits was loaded all the same")
	}

	state = nn.State(net)
	state["2.count"] = autograd.FromSlice(dev, []float32{1.5})
	if err := nn.LoadState(t.Context(), net, state); !errors.As(err, &e) || len(e.Mismatched) != 1 {
		t.Errorf("a float for an integer: %v", err)
	}
}

func TestStateOfEqualNames(t *testing.T) {
	dev := newDevice(t, cpu.Options{})
	v := autograd.Scalar(dev, 1)
	m := normed{&nn.LinearLayer{Weight: nn.NewParameter("w", v), Bias: nn.NewParameter("w", v)}, nn.NewBuffer("b", autograd.Scalar(dev, 2))}
	if s := nn.State(m); len(s) != 2 {
		t.Errorf("a variable that is there twice by one name makes a state of %d", len(s))
	}
	m.mean = nn.NewBuffer("w", autograd.Scalar(dev, 2))
	if e, ok := thrown(func() { nn.State(m) }).(*nn.DuplicateNameError); !ok || e.Name != "w" {
		t.Errorf("panic with %v, want a DuplicateNameError of w", e)
	}
}

// A parameter may be frozen before it is placed, and after.
func TestFreeze(t *testing.T) {
	dev := newDevice(t, cpu.Options{})
	l := nn.Linear(2, 2, nil)
	l.Weight.Freeze()
	for range 2 {
		if err := nn.Place(l, dev, 1); err != nil {
			t.Fatal(err)
		}
		if !l.Weight.Frozen() || l.Weight.Var().RequiresGrad() || l.Bias.Frozen() || !l.Bias.Var().RequiresGrad() {
			t.Fatal("placing it did not leave the weight frozen and the bias not")
		}
	}
	x := autograd.FromSlice(dev, []float32{1, 2}, 1, 2)
	if err := autograd.Sum(l.Forward(x)).Backward(nil); err != nil || l.Weight.Grad() != nil || l.Bias.Grad() == nil {
		t.Errorf("gradients %v and %v, %v", l.Weight.Grad(), l.Bias.Grad(), err)
	}
	l.Weight.Unfreeze()
	l.Bias.Var().Freeze() // does the same
	if err := nn.Place(l, dev, 1); err != nil {
		t.Fatal(err)
	}
	if l.Bias.Grad() != nil || !l.Bias.Frozen() || l.Weight.Frozen() {
		t.Error("the bias is not frozen, or the weight still is")
	}
	if err := autograd.Sum(l.Forward(x)).Backward(nil); err != nil || l.Weight.Grad() == nil || l.Bias.Grad() != nil {
		t.Errorf("gradients %v and %v, %v", l.Weight.Grad(), l.Bias.Grad(), err)
	}
}

// A checkpointed module has the module's parameters and buffers, by the same names.
func TestCheckpoint(t *testing.T) {
	dev := newDevice(t, cpu.Options{})
	net := placedNet(t, dev, 1, device.Float32)
	again := nn.Checkpoint(net)
	if !slices.Equal(describe(again.Parameters()), describe(net.Parameters())) || !slices.Equal(describe(nn.Buffers(again)), describe(nn.Buffers(net))) {
		t.Errorf("parameters %v and buffers %v", again.Parameters(), nn.Buffers(again))
	}
	if nn.Buffers(nn.Checkpoint(nn.Linear(1, 1, nil))) != nil {
		t.Error("buffers where there are none")
	}
	x := autograd.FromSlice(dev, []float32{1, -2, 3}, 1, 3)
	var grads [2][]float64
	for i, m := range []nn.Module{net, again} {
		net.Parameters()[0].Var().ZeroGrad()
		before := dev.Memory().InUse
		y := m.Forward(x)
		if used := dev.Memory().InUse - before; i == 1 && used > device.Align {
			t.Errorf("%d bytes for a result of %d", used, y.Tensor().Bytes())
		}
		if err := autograd.Sum(y).Backward(nil); err != nil {
			t.Fatal(err)
		}
		grads[i] = read(t, net.Parameters()[0].Grad())
	}
	if !slices.Equal(grads[0], grads[1]) {
		t.Errorf("gradients %v with a checkpoint, %v without", grads[1], grads[0])
	}
}
