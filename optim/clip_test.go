package optim_test

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

// All gradients are scaled by one factor. They do not change if their norm is small enough. A
// gradient with two names counts once. A missing gradient is ignored.
func TestClipGradNorm(t *testing.T) {
	for name, c := range map[string]struct {
		a, b   []float64
		max    float64
		norm   float64
		factor float64
	}{
		"too large":     {[]float64{3, 0}, []float64{-4}, 2, 5, 2 / (5 + 1e-6)},
		"at the bound":  {[]float64{3, 0}, []float64{-4}, 5, 5, 5 / (5 + 1e-6)},
		"small":         {[]float64{0.3, 0.1}, []float64{-0.7}, 1e9, math.Sqrt(0.59), 1},
		"nothing":       {[]float64{0, 0}, []float64{0}, 1, 0, 1},
		"one is absent": {[]float64{6, 8}, nil, 1, 10, 1 / (10 + 1e-6)},
	} {
		t.Run(name, func(t *testing.T) {
			dev := newDevice(t)
			a, b := parameter(dev, "a", []float64{1, 1}), parameter(dev, "b", []float64{1})
			again := nn.NewParameter("again", a.Var())
			give(t, a, c.a)
			if c.b != nil {
				give(t, b, c.b)
			}
			norm, err := optim.ClipGradNorm([]*nn.Parameter{a, b, again}, c.max, nil)
			if err != nil {
				t.Fatal(err)
			}
			near(t, "norm", read(t, norm), []float64{c.norm})
			for p, g := range map[*nn.Parameter][]float64{a: c.a, b: c.b} {
				if g == nil {
					continue
				}
				for i, got := range read(t, p.Grad()) {
					if want := g[i] * c.factor; c.factor == 1 && got != want || !(math.Abs(got-want) <= 1e-12) {
						t.Errorf("gradient of %s: element %d is %v, want %v", p.Name(), i, got, want)
					}
				}
			}
		})
	}
}

// The norm of many small Float32 gradients is the correctly rounded float64 result.
func TestClipGradNormOfManyParameters(t *testing.T) {
	const n = 2000
	dev := newDevice(t)
	var params []*nn.Parameter
	var squares float64
	for i := range n {
		p := nn.NewParameter(fmt.Sprint(i), autograd.FromSlice(dev, []float32{1, 1, 1, 1}))
		g := make([]float32, 4)
		for k := range g {
			g[k] = 0.07 // equal terms: in Float32 the rounding errors of a sum would add up
			squares += float64(g[k]) * float64(g[k])
		}
		(&owner{t: device.HostTensor(g, device.Invalid)}).own(p.Var())
		params = append(params, p)
	}
	want := math.Sqrt(squares)
	norm, err := optim.ClipGradNorm(params, want/2, nil)
	if err != nil {
		t.Fatal(err)
	}
	if off := math.Abs(norm.Item()-want) / want; off > 1e-7 {
		t.Errorf("the norm is %v, want %v: off by %.2g", norm.Item(), want, off)
	}
}

// If the norm is not finite, the gradients are those of PyTorch. The norm of large gradients is finite although
// their squares overflow in Float32.
func TestClipGradNormNotFinite(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	for name, c := range map[string]struct {
		grad, want []float32
		norm       float64
	}{
		"NaN":      {[]float32{nan, 1}, []float32{nan, nan}, math.NaN()},
		"infinite": {[]float32{-inf, 1}, []float32{nan, 0}, math.Inf(1)},
		"large":    {[]float32{1e20, 1}, []float32{1, 1e-20}, float64(float32(1e20))},
	} {
		p := nn.NewParameter("p", autograd.FromSlice(newDevice(t), []float32{1, 1}))
		(&owner{t: device.HostTensor(c.grad, device.Invalid)}).own(p.Var())
		norm, err := optim.ClipGradNorm([]*nn.Parameter{p}, 1, nil)
		if err != nil {
			t.Fatal(err)
		}
		if x := norm.Item(); x != c.norm && (x == x || c.norm == c.norm) {
			t.Errorf("%s: the norm is %v, want %v", name, x, c.norm)
		}
		for i, want := range c.want {
			if got := c.grad[i]; got != want && (got == got || want == want) {
				t.Errorf("%s: element %d of the gradient is %v, want %v", name, i, got, want)
			}
		}
	}
}

// The sum over other ranks counts. If the summation fails, the gradients do not change.
func TestClipGradNormTotal(t *testing.T) {
	dev := newDevice(t)
	p := parameter(dev, "p", []float64{1, 1})
	give(t, p, []float64{3, 4})
	lost := errors.New("rank 1 lost")
	if _, err := optim.ClipGradNorm([]*nn.Parameter{p}, 1, &optim.ClipOptions{Total: func(device.Tensor) error { return lost }}); !errors.Is(err, lost) {
		t.Errorf("got %v, want %v", err, lost)
	}
	near(t, "after an error", read(t, p.Grad()), []float64{3, 4})
	norm, err := optim.ClipGradNorm([]*nn.Parameter{p}, 1, &optim.ClipOptions{Total: func(squares device.Tensor) error {
		return dev.Kernels().Axpby(dev.Compute(), squares, device.Accum{Alpha: 4}, squares) // the sum over four equal ranks
	}})
	if err != nil {
		t.Fatal(err)
	}
	near(t, "norm", read(t, norm), []float64{10})
	near(t, "gradient", read(t, p.Grad()), []float64{3 / (10 + 1e-6), 4 / (10 + 1e-6)})
}

// ClipGradNorm's p-norms equal PyTorch's, for a large Float32 gradient together with a Float64 gradient, with and
// without a NaN.
func TestClipGradNormTypes(t *testing.T) {
	const n = 1<<18 + 5
	dev := newDevice(t)
	inf, nan := math.Inf(1), math.NaN()
	for _, c := range []struct {
		p, last, want float64
	}{{1, -8, n - 1 + 8 + 3}, {2, 1, math.Sqrt(n + 9)}, {3, -8, math.Cbrt(n - 1 + 512 + 27)}, {inf, -8, 8}, {inf, 2, 3}, {inf, nan, nan}} {
		ones := slices.Repeat([]float32{1}, n)
		ones[n-1] = float32(c.last)
		large := nn.NewParameter("large", autograd.Zeros(dev, device.Float32, n))
		(&owner{t: device.HostTensor(ones, device.Invalid)}).own(large.Var())
		small := parameter(dev, "small", []float64{1, 1})
		give(t, small, []float64{0, -3})
		norm, err := optim.ClipGradNorm([]*nn.Parameter{large, small}, 1, &optim.ClipOptions{NormType: c.p})
		if err != nil {
			t.Fatal(err)
		}
		if got := norm.Item(); math.Abs(got-c.want) > 1e-9*c.want || (got != got) != (c.want != c.want) {
			t.Errorf("the %v-norm with %v is %v, want %v", c.p, c.last, got, c.want)
		}
		factor := 1 / (c.want + 1e-6)
		if got := read(t, small.Grad())[1]; math.Abs(got+3*factor) > 1e-9 {
			t.Errorf("by the %v-norm a gradient becomes %v, want %v", c.p, got, -3*factor)
		}
		for _, got := range ones[:n-1] {
			if math.Abs(float64(got)/factor-1) > 1e-6 {
				t.Fatalf("by the %v-norm an element of many becomes %v, want %v", c.p, got, factor)
			}
		}
	}
}

// Elements beyond the bound are set to the bound. Others do not change. A NaN stays NaN.
func TestClipGradValue(t *testing.T) {
	dev := newDevice(t)
	p := parameter(dev, "p", make([]float64, 6))
	give(t, p, []float64{3, -3, 0.5, -1e-300, math.Inf(-1), math.NaN()})
	if err := optim.ClipGradValue([]*nn.Parameter{p, nn.NewParameter("again", p.Var()), parameter(dev, "without", []float64{1})}, 1); err != nil {
		t.Fatal(err)
	}
	got := read(t, p.Grad())
	for i, want := range []float64{1, -1, 0.5, -1e-300, -1} {
		if got[i] != want {
			t.Errorf("element %d is %v, want %v", i, got[i], want)
		}
	}
	if got[5] == got[5] {
		t.Errorf("of a NaN came %v", got[5])
	}
}
