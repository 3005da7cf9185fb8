package nn_test

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/cpu"
	"github.com/goddp/goddp/nn"
)

// Two Linears with a GELU between them run as one operation, compute the same, and keep the results of
// their parts as they are told to.
func TestFeedForwardIsFused(t *testing.T) {
	const batch, in, hidden, out = 64, 32, 128, 32
	dev := newDevice(t, cpu.Options{})
	f64 := nn.LinearOptions{DType: device.Float64}
	first, second := nn.Linear(in, hidden, &f64), nn.Linear(hidden, out, &f64)
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
			if err := autograd.Sum(autograd.Mul(y, y)).Backward(nil); err != nil {
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
		"layer 0: Linear: shapes [64 32] and [128 31] do not fit (parameter 0.weight)":  nn.Sequential(nn.Linear(31, hidden, &f64), nn.GELU(), nn.Linear(hidden, out, &f64)),
		"layer 2: Linear: shapes [64 128] and [32 127] do not fit (parameter 2.weight)": nn.Sequential(nn.Linear(in, hidden, &f64), nn.GELU(), nn.Linear(127, out, &f64)),
	} {
		if err := nn.Place(net, dev, 3); err != nil {
			t.Fatal(err)
		}
		if got := thrown(func() { net.Forward(x) }); fmt.Sprint(got) != want {
			t.Errorf("%v, want %s", got, want)
		}
	}
}

// A Linear and a BatchNorm that a ReLU follows run as one operation, and compute the same bits.
func TestReLUIsFused(t *testing.T) {
	const batch, width = 64, 16
	dev := newDevice(t, cpu.Options{})
	numbers := make([]float64, batch*width)
	for i := range numbers {
		numbers[i] = math.Sin(float64(i * i))
	}
	for _, dt := range []device.DType{device.Float32, device.Float64} {
		for name, l := range map[string]nn.Module{
			"Linear": nn.Linear(width, width, &nn.LinearOptions{DType: dt}), "BatchNorm": nn.BatchNorm1d(width, &nn.NormOptions{DType: dt}),
		} {
			net := nn.Sequential(l, nn.ReLU(), nn.ReLU())
			if err := nn.Place(net, dev, 3); err != nil {
				t.Fatal(err)
			}
			x := autograd.Cast(autograd.FromSlice(dev, numbers, batch, width), dt).Detach().RequireGrad()
			gradients := func(y *autograd.Variable) []float64 {
				if err := autograd.Sum(autograd.Mul(y, y)).Backward(nil); err != nil {
					t.Fatal(err)
				}
				all := read(t, y)
				for _, v := range []*autograd.Variable{x, l.Parameters()[0].Var(), l.Parameters()[1].Var()} {
					all = append(all, read(t, v.Grad())...)
					v.ZeroGrad()
				}
				return all
			}
			fused, separate := gradients(net.Forward(x)), gradients(autograd.ReLU(l.Forward(x)))
			if !slices.Equal(fused, separate) || !slices.Contains(fused[:batch*width], 0) || slices.Max(fused[:batch*width]) == 0 {
				t.Errorf("%s of %v: fused %v, apart %v", name, dt, fused, separate)
			}
			nn.Eval(net)
			autograd.NoGrad(dev, func() {
				before := dev.Memory().InUse
				y := nn.Sequential(l, nn.ReLU()).Forward(x)
				if used := dev.Memory().InUse - before; used >= int64(2*y.Tensor().Bytes()) {
					t.Errorf("%s of %v: %d bytes for a result of %d: not one operation", name, dt, used, y.Tensor().Bytes())
				}
			})
		}
	}
}

// A ReLU before a MaxPool2d runs after it, on fewer elements, and the results and gradients are equal. If windows may
// contain no element, whose result is -Inf, the order stays.
func TestReLURunsAfterMaxPool(t *testing.T) {
	dev := newDevice(t, cpu.Options{})
	for _, c := range []struct {
		opts nn.PoolOptions
		h, w int
	}{
		{nn.PoolOptions{}, 12, 12},
		{nn.PoolOptions{Stride: 1, Padding: 1, CeilMode: true}, 9, 11},
		{nn.PoolOptions{Stride: 1, Padding: 1, Dilation: 2}, 1, 3},
	} {
		numbers := make([]float32, 3*2*c.h*c.w)
		for i := range numbers {
			numbers[i] = float32(math.Floor(5*math.Sin(float64(i*i)))) - 2 // many are equal, and many windows have no positive one
		}
		numbers[1], numbers[2] = float32(math.NaN()), float32(math.Copysign(0, -1))
		x := autograd.FromSlice(dev, numbers, 3, 2, c.h, c.w).RequireGrad()
		bits := func(y *autograd.Variable) (all []uint64) {
			if err := autograd.Sum(autograd.Mul(y, y)).Backward(nil); err != nil {
				t.Fatal(err)
			}
			for _, v := range append(read(t, y), read(t, x.Grad())...) {
				all = append(all, math.Float64bits(v))
			}
			x.ZeroGrad()
			return all
		}
		relu, pool := nn.ReLU(), nn.MaxPool2d(2, &c.opts)
		if got, want := bits(nn.Sequential(relu, pool).Forward(x)), bits(pool.Forward(relu.Forward(x))); !slices.Equal(got, want) {
			t.Errorf("%+v: %v, in the order of the layers %v", c.opts, got, want)
		}
	}
	x := autograd.Zeros(dev, device.Float32, 1, 1, 64, 64)
	autograd.NoGrad(dev, func() {
		before := dev.Memory().InUse
		nn.Sequential(nn.ReLU(), nn.MaxPool2d(2, nil)).Forward(x)
		if used := dev.Memory().InUse - before; used >= int64(x.Tensor().Bytes()) {
			t.Errorf("%d bytes for images of %d: the ReLU ran first", used, x.Tensor().Bytes())
		}
	})
}
