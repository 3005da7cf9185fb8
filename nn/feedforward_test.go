package nn_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/cpu"
	"github.com/goddp/goddp/internal/testkit"
	"github.com/goddp/goddp/internal/torchtest"
	"github.com/goddp/goddp/nn"
)

// Two Linears with a GELU between them run as one operation, compute the same, and keep the results of
// their parts as they are told to.
func TestFeedForwardIsFused(t *testing.T) {
	const batch, in, hidden, out = 64, 32, 128, 32
	dev := newDevice(t, cpu.Options{})
	f64 := nn.LinearOptions{DType: device.Float64}
	first, second := nn.Linear(in, hidden, f64), nn.Linear(hidden, out, f64)
	x := autograd.Zeros(dev, device.Float64, batch, in)
	for i := range device.Elements[float64](x.Tensor()) {
		device.Elements[float64](x.Tensor())[i] = float64(i%17)/4 - 2
	}
	for name, c := range map[string]struct {
		act   nn.Module
		kept  int64 // the number of tensors [batch hidden]
		parts func(*autograd.Variable) *autograd.Variable
	}{
		"GELU":                {nn.GELU(), 2, autograd.GELU},
		"GELUTanh":            {nn.GELUTanh(), 2, autograd.GELUTanh},
		"checkpointed":        {nn.Checkpoint(nn.GELUTanh()), 1, autograd.GELUTanh},
		"another, not fused":  {nn.SiLU(), 2, autograd.SiLU},
		"another, in between": {nn.Checkpoint(nn.SiLU()), 2, autograd.SiLU},
	} {
		net := nn.Sequential(first, c.act, second, nn.ReLU())
		if err := nn.Place(net, dev, 3); err != nil {
			t.Fatal(err)
		}
		gradients := func(y *autograd.Variable) []float64 {
			if err := autograd.Sum(autograd.Mul(y, y)).Backward(); err != nil {
				t.Fatal(err)
			}
			all := read(t, y)
			for _, p := range net.Parameters() {
				all = append(all, read(t, p.Grad())...)
				p.Var().ZeroGrad()
			}
			return all
		}
		separate := gradients(autograd.ReLU(second.Forward(c.parts(first.Forward(x)))))
		if fused := gradients(net.Forward(x)); !slices.Equal(fused, separate) {
			t.Errorf("%s: a Sequential computes other numbers than its parts", name)
		}
		if called := gradients(autograd.ReLU(nn.FeedForward(x, first, c.act, second))); !slices.Equal(called, separate) {
			t.Errorf("%s: FeedForward computes other numbers than its parts", name)
		}
		autograd.Scope(dev, func() {
			before := dev.Memory().InUse
			nn.FeedForward(x, first, c.act, second)
			if kept := (dev.Memory().InUse - before) / (batch * hidden * 8); kept != c.kept {
				t.Errorf("%s: %d tensors of the hidden size are kept, want %d", name, kept, c.kept)
			}
		})
		autograd.NoGrad(dev, func() {
			before := dev.Memory().InUse
			y := nn.Sequential(first, nn.GELU(), second).Forward(x)
			if used := dev.Memory().InUse - before; used > int64(y.Tensor().Bytes()) {
				t.Errorf("without gradients, %d bytes for a result of %d", used, y.Tensor().Bytes())
			}
		})
	}
	for want, net := range map[string]*nn.Sequence{
		"layer 0: Linear: shapes [64 32] and [128 31] do not fit (parameter 0.weight)":  nn.Sequential(nn.Linear(31, hidden, f64), nn.GELU(), nn.Linear(hidden, out, f64)),
		"layer 2: Linear: shapes [64 128] and [32 127] do not fit (parameter 2.weight)": nn.Sequential(nn.Linear(in, hidden, f64), nn.GELU(), nn.Linear(127, out, f64)),
	} {
		if err := nn.Place(net, dev, 3); err != nil {
			t.Fatal(err)
		}
		func() {
			defer func() {
				if got := fmt.Sprint(recover()); got != want {
					t.Errorf("%s, want %s", got, want)
				}
			}()
			net.Forward(x)
		}()
	}
}

// FeedForward has PyTorch's values and gradients, with and without biases.
func TestFeedForwardIsPyTorchs(t *testing.T) {
	testkit.Long(t)
	wave := func(phase int, shape ...int) torchtest.Input {
		v := make([]float64, device.Shape(shape).Len())
		for i := range v {
			v[i] = float64((i*7+phase*5)%23)/8 - 1.25
		}
		return torchtest.Input{Shape: shape, Numbers: v}
	}
	var cases []torchtest.Case
	for _, dt := range []device.DType{device.Float64, device.Float32} {
		for approximate, o := range map[string]autograd.FeedForwardOptions{"none": {}, "tanh": {Tanh: true, Recompute: true}} {
			cases = append(cases, torchtest.Case{
				Name: "biases, " + approximate, DType: dt, In: []torchtest.Input{wave(0, 2, 3, 8), wave(1, 16, 8), wave(2, 16), wave(3, 5, 16), wave(4, 5)},
				Expr: "F.linear(F.gelu(F.linear(x[0], x[1], x[2]), approximate='" + approximate + "'), x[3], x[4])",
				Go: func(x []*autograd.Variable) *autograd.Variable {
					return autograd.FeedForward(x[0], x[1], x[2], x[3], x[4], o)
				},
			}, torchtest.Case{
				Name: "no biases, " + approximate, DType: dt, In: []torchtest.Input{wave(0, 3, 8), wave(1, 16, 8), wave(3, 5, 16)},
				Expr: "F.linear(F.gelu(F.linear(x[0], x[1]), approximate='" + approximate + "'), x[2])",
				Go: func(x []*autograd.Variable) *autograd.Variable {
					return autograd.FeedForward(x[0], x[1], nil, x[2], nil, o)
				},
			})
		}
	}
	torchtest.Check(t, cases)
}
