// Package ulptest measures the functions, losses and reductions of packages autograd and nn against float64, in units
// in the last place (ulp) of float32, over all exponents of float32, subnormal numbers and both tails included.
package ulptest

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
)

// A function is one operation on each element of an array.
type function struct {
	name string
	f    func(x *autograd.Variable) *autograd.Variable
	y    func(x float64) float64
	dy   func(x float64) float64
	// yScale and scale return the magnitude of the terms of y and dy that cancel each other. Errors count in ulp of that,
	// if it is larger than the result. nil: nothing cancels.
	yScale, scale func(x float64) float64
	// single says that f takes one number.
	single bool
	// in reports whether the function is measured at x; nil: everywhere.
	in func(x float64) bool
	// bound and gradBound are the largest errors that are allowed: on the CPU, which computes most functions in float64,
	// and on GPUs, which compute in float32. 0: 1 and 4 for y, 2 and 8 for dy.
	bound, gradBound [2]float64
	// drops reports whether the gradient at x is 0 whatever the gradient from above is, as in PyTorch; nil: nowhere.
	drops func(x float64) bool
}

// A row is a line of the table of errors.
type row struct {
	name       string
	err, grad  float64 // the largest errors, in ulp
	at, gradAt float64 // where they are
}

// Check fails the test where an error is larger than allowed, or where a NaN or an infinity becomes a number. It logs
// the table of the largest errors, in Markdown.
func Check(t *testing.T, dev device.Device) {
	onGPU := 0
	if !strings.HasPrefix(dev.String(), "cpu") {
		onGPU = 1
	}
	xs := sample()
	var table strings.Builder
	table.WriteString("\n| operation | error | at | gradient's error | at |\n|---|---|---|---|---|\n")
	for _, f := range functions() {
		r := f.measure(t, dev, xs)
		fmt.Fprintf(&table, "| %s | %.2f | %.4g | %.2f | %.4g |\n", r.name, r.err, r.at, r.grad, r.gradAt)
		bound, gradBound := cmp.Or(f.bound[onGPU], [2]float64{1, 4}[onGPU]), cmp.Or(f.gradBound[onGPU], [2]float64{2, 8}[onGPU])
		if r.err > bound || r.grad > gradBound {
			t.Errorf("%s: an error of %.2f ulp at %g and of %.2f ulp in the gradient at %g, want at most %v and %v",
				f.name, r.err, r.at, r.grad, r.gradAt, bound, gradBound)
		}
		f.checkNonFinite(t, dev)
	}
	for _, r := range reductions {
		got, at := r.measure(t, dev)
		fmt.Fprintf(&table, "| %s | %.2f | %s | | |\n", r.name, got, at)
		if got > r.bound {
			t.Errorf("%s: an error of %.2f ulp for %s, want at most %v", r.name, got, at, r.bound)
		}
	}
	t.Log(table.String())
}

// sample returns numbers of all exponents and of both signs, and both zeros.
func sample() (xs []float32) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for exponent := range uint32(255) {
		for _, mantissa := range []uint32{0, 1, 1<<23 - 1, rnd.Uint32N(1 << 23), rnd.Uint32N(1 << 23), rnd.Uint32N(1 << 23)} {
			for _, sign := range []uint32{0, 1 << 31} {
				xs = append(xs, math.Float32frombits(sign|exponent<<23|mantissa))
			}
		}
	}
	for range 3000 { // where most functions bend
		xs = append(xs, float32(rnd.NormFloat64()*8), float32(110*(2*rnd.Float64()-1)))
	}
	return xs
}

// every returns each n-th number.
func every(xs []float32, n int) (some []float32) {
	for i := 0; i < len(xs); i += n {
		some = append(some, xs[i])
	}
	return some
}

// measure returns the largest errors of f.
func (f *function) measure(t *testing.T, dev device.Device, xs []float32) row {
	r := row{name: f.name}
	if f.single {
		xs = every(xs, 41)
	}
	y, dy := f.apply(t, dev, xs, nil)
	for i, x := range xs {
		x := float64(x)
		if f.in != nil && !f.in(x) {
			continue
		}
		if e := ulps(y[i], f.y(x), at(f.yScale, x)); e > r.err {
			r.err, r.at = e, x
		}
		if e := ulps(dy[i], f.dy(x), at(f.scale, x)); e > r.grad {
			r.grad, r.gradAt = e, x
		}
	}
	return r
}

// at returns scale of x, 0 without a scale.
func at(scale func(x float64) float64, x float64) float64 {
	if scale == nil {
		return 0
	}
	return scale(x)
}

// apply returns f of xs, and the gradients of xs. above is the gradient from above; nil means 1.
func (f *function) apply(t *testing.T, dev device.Device, xs, above []float32) (y, dy []float64) {
	t.Helper()
	if f.single && len(xs) > 1 {
		for i := range xs {
			var g []float32
			if above != nil {
				g = above[i : i+1]
			}
			y1, dy1 := f.apply(t, dev, xs[i:i+1], g)
			y, dy = append(y, y1...), append(dy, dy1...)
		}
		return y, dy
	}
	x := autograd.FromSlice(dev, xs, len(xs)).RequireGrad()
	out := f.f(x)
	if above == nil {
		above = make([]float32, len(xs))
		for i := range above {
			above[i] = 1
		}
	}
	y, err := out.Read(context.Background())
	if err == nil {
		err = out.Backward(&autograd.BackwardOptions{Gradient: autograd.FromSlice(dev, above, len(xs))})
	}
	if err == nil {
		dy, err = x.Grad().Read(context.Background())
	}
	if err != nil {
		t.Fatalf("%s: %v", f.name, err)
	}
	return y, dy
}

// checkNonFinite fails where a NaN of x is a number in the result or the gradient, or where a NaN or an infinity of the
// gradient from above is a number in the gradient.
func (f *function) checkNonFinite(t *testing.T, dev device.Device) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	y, dy := f.apply(t, dev, []float32{nan, nan}, []float32{1, 0})
	if !math.IsNaN(y[0]) || !math.IsNaN(dy[0]) || !math.IsNaN(dy[1]) {
		t.Errorf("%s of NaN is %v, its gradient %v and, of 0, %v", f.name, y[0], dy[0], dy[1])
	}
	var xs, above []float32
	for _, x := range []float32{-1e30, -3, -0.4, 0, 0.3, 0.75, 3, 1e30} {
		for _, g := range []float32{nan, inf, -inf} {
			xs, above = append(xs, x), append(above, g)
		}
	}
	_, dy = f.apply(t, dev, xs, above)
	for i, x := range xs {
		x := float64(x)
		if f.in != nil && !f.in(x) {
			continue
		}
		if isFinite := !math.IsNaN(dy[i]) && !math.IsInf(dy[i], 0); isFinite != (f.drops != nil && f.drops(x)) {
			t.Errorf("%s: at %g the gradient from above, %v, becomes %v", f.name, x, above[i], dy[i])
		}
	}
}

// ulps returns |got - want| in units in the last place of float32(want), or of float32(scale) if scale is larger.
// Results that are both NaN, or infinite with one sign, are equal.
func ulps(got, want, scale float64) float64 {
	rounded := float64(float32(want))
	switch {
	case math.IsNaN(want) && math.IsNaN(got), math.IsInf(rounded, 0) && got == rounded:
		return 0
	case math.IsNaN(want) != math.IsNaN(got), math.IsInf(rounded, 0) && math.IsInf(got, 0):
		return math.Inf(1)
	}
	const least, most = 0x1p-149, 0x1p127
	at := min(max(math.Abs(want), scale), most)
	_, exponent := math.Frexp(at)
	return math.Abs(min(max(got, -2*most), 2*most)-min(max(want, -2*most), 2*most)) / max(math.Ldexp(1, exponent-24), least)
}
