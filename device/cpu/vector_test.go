//go:build cgo && unix && (amd64 || arm64)

package cpu

import (
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

// specials returns numbers of all exponents and signs, zeros, infinities and NaN.
func specials() []float32 {
	rnd := rand.New(rand.NewPCG(1, 2))
	xs := []float32{float32(math.NaN())}
	for exponent := range uint32(256) {
		for _, mantissa := range []uint32{0, 1, 1<<23 - 1, rnd.Uint32N(1 << 23), rnd.Uint32N(1 << 23)} {
			for _, sign := range []uint32{0, 1 << 31} {
				xs = append(xs, math.Float32frombits(sign|exponent<<23|mantissa))
			}
		}
	}
	for range 3000 {
		xs = append(xs, float32(rnd.NormFloat64()*20))
	}
	return xs
}

// near reports whether got is at most one unit in the last place from want.
func near(got, want float32) bool {
	if got == want || got != got && want != want {
		return true
	}
	return got == math.Nextafter32(want, got)
}

// eachLanes runs the test with each size of vectors that the processor has.
func eachLanes(t *testing.T, test func(t *testing.T)) {
	has := vectorLanes
	if has == 0 {
		t.Skip("needs AVX2")
	}
	defer func() { vectorLanes = has }()
	for vectorLanes = 4; vectorLanes <= has; vectorLanes *= 2 {
		t.Run(fmt.Sprint(vectorLanes), test)
	}
}

// Vector kernels agree with the plain ones on all numbers. An element's result depends neither on its position nor on the
// size of vectors.
func TestVectorsAgreeWithPlainKernels(t *testing.T) {
	narrow := map[string][]float32{} // the results with the smallest vectors
	eachLanes(t, func(t *testing.T) { agree(t, narrow) })
}

func agree(t *testing.T, narrow map[string][]float32) {
	xs := specials()
	ones := make([]float32, len(xs))
	for i := range ones {
		ones[i] = 1
	}
	type vector struct {
		name  string
		f     func(dst, x, one []float32) bool
		plain func(x float64) float64
	}
	silu := function(kernels.SiLU)
	all := []vector{
		{"SwiGLU", func(dst, x, one []float32) bool { return vectorSwiGLU(dst, x, one) }, silu},
		{"SwiGLU's gate", func(dst, x, one []float32) bool { return vectorSwiGLUGate(dst, one, x, one) }, derivative(kernels.SiLU)},
	}
	for _, op := range []kernels.UnaryOp{kernels.Exp, kernels.Tanh, kernels.Sigmoid, kernels.SiLU, kernels.GELU, kernels.GELUTanh} {
		all = append(all, vector{op.String(), func(dst, x, _ []float32) bool { return vectorUnary(op.Func, dst, x) }, function(op)})
		if op != kernels.Exp {
			all = append(all, vector{op.String() + "'s derivative", func(dst, x, one []float32) bool { return vectorUnaryGrad(op.Func, dst, one, x) }, derivative(op)})
		}
	}
	for _, v := range all {
		got := make([]float32, len(xs))
		if !v.f(got, xs, ones) {
			t.Fatalf("%s has no vector kernel", v.name)
		}
		if narrow[v.name] == nil {
			narrow[v.name] = got
		}
		for i, x := range xs {
			if want := float32(v.plain(float64(x))); !near(got[i], want) {
				t.Errorf("%s of %g is %g, want %g", v.name, x, got[i], want)
			}
			if want := narrow[v.name][i]; got[i] != want && (got[i] == got[i] || want == want) {
				t.Errorf("%s of %g is %g, with smaller vectors %g", v.name, x, got[i], want)
			}
		}
		for n := 1; n < 18; n++ {
			part := append([]float32(nil), xs[len(xs)-n:]...)
			v.f(part, part, ones[:n])
			for i, y := range part {
				if at := len(xs) - n + i; y != got[at] {
					t.Errorf("%s of %g is %g as element %d of %d, want %g", v.name, xs[at], y, i, n, got[at])
				}
			}
		}
	}
}

// Sums, also of exponentials, and the largest element agree with the plain ones for all lengths, NaN and infinities included.
func TestVectorReductions(t *testing.T) {
	sums := map[string]float64{} // with the smallest vectors
	eachLanes(t, func(t *testing.T) { reduce(t, sums) })
}

func reduce(t *testing.T, sums map[string]float64) {
	for n := range 200 {
		var want float64
		x := random(n)
		for _, v := range x {
			want += float64(v)
		}
		if got := addRun(x); math.Abs(got-want) > 1e-13 {
			t.Errorf("the sum of %d numbers is %v, want %v", n, got, want)
		}
	}
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	for n := 1; n < 40; n++ {
		for _, odd := range []float32{0, nan, inf, -inf} {
			for at := range n {
				x := random(n)
				if odd != 0 {
					x[at] = odd
				}
				var want struct {
					top float32
					sum float64
				}
				want.top = -inf
				e := make([]float64, n)
				for i, v := range x {
					want.top = max(want.top, v)
					e[i] = math.Exp(float64(v) - 0.25)
					want.sum += e[i]
				}
				name := fmt.Sprintf("%d numbers, %v at %d", n, odd, at)
				if got := largest(x); !near(got, want.top) {
					t.Errorf("%s: the largest is %v, want %v", name, got, want.top)
				}
				got := exps(nil, x, 0.25)
				if !near(float32(got), float32(want.sum)) {
					t.Errorf("%s: the sum is %v, want %v", name, got, want.sum)
				}
				if narrow, ok := sums[name]; ok && got != narrow && got == got {
					t.Errorf("%s: the sum is %v, with smaller vectors %v", name, got, narrow)
				}
				sums[name] = got
				y := make([]float32, n+1)
				exps(y[:n], x, 0.25)
				for i, want := range e {
					if !near(y[i], float32(want)) {
						t.Errorf("%s: exponential %d is %v, want %v", name, i, y[i], want)
					}
				}
				if y[n] != 0 {
					t.Errorf("%s: wrote %v behind the end", name, y[n])
				}
			}
		}
	}
}

// AdamW's vector kernel computes the bits of the plain one on amd64: else replicas on different processors would diverge.
func TestVectorAdamW(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("the compilers contract products and sums differently")
	}
	n := newAdamWRule[float32]([11]float64{1e-3, 1.01, 0.9999, 0.5, 0, 0.9, 0.1, 0.999, 0.001, 1e-8, 0}, [2]bool{})
	for _, size := range []int{1, 7, 8, 1000} {
		var got, want [4][]float32
		for i := range got {
			all := random(4 * size)[i*size:][:size]
			if i == 3 {
				for j, v := range all {
					all[j] = v * v
				}
			}
			got[i], want[i] = all, slices.Clone(all)
		}
		n(got[0], got[1], [3][]float32{got[2], got[3]})
		most := make([]float32, size) // with AMSGrad's maxima, which are 0, the plain kernel runs
		n(want[0], want[1], [3][]float32{want[2], want[3], most})
		for i := range got {
			for j, v := range got[i] {
				if v != want[i][j] {
					t.Fatalf("%d numbers: number %d of operand %d is %v, want %v", size, j, i, v, want[i][j])
				}
			}
		}
	}
}

// The kernels that select and multiply, and those that add in a fixed order, compute the bits of the plain ones.
func TestExactVectors(t *testing.T) {
	eachLanes(t, func(t *testing.T) {
		k := &kernelSet{threads: 2}
		for name, run := range exactKernels(k) {
			got := run()
			lanes := vectorLanes
			vectorLanes = 0
			want := run()
			vectorLanes = lanes
			for i, v := range want {
				if w := got[i]; math.Float64bits(v) != math.Float64bits(w) && (v == v || w == w) {
					t.Errorf("%s: number %d is %v, without vectors %v", name, i, w, v)
					break
				}
			}
		}
	})
}

// exactKernels returns functions that return all results of a kernel.
func exactKernels(k *kernelSet) map[string]func() []float64 {
	xs, gs := specials(), random(len(specials()))
	tensor := func(v []float32, shape ...int) device.Tensor {
		return device.HostTensor(slices.Clone(v), device.Invalid, shape...)
	}
	all := map[string]func() []float64{
		"sum of columns": func() (out []float64) {
			for _, width := range []int{1, 15, 16, 70, 300} {
				sums := make([]float32, width)
				k.Sum(nil, device.HostTensor(sums, device.Invalid), device.Store, tensor(gs[:3000/width*width], 3000/width, width))
				out = append(out, wide(sums)...)
			}
			return out
		},
	}
	for n := range 20 {
		x, g := xs[n*50:len(xs)-n*3], gs[:len(xs)-n*53]
		all[fmt.Sprint("ReLU ", n)] = func() []float64 {
			y, dx := make([]float32, len(x)), make([]float32, len(x))
			relu(y, x)
			reluGrad(dx, g, x)
			return wide(append(y, dx...))
		}
		all[fmt.Sprint("dropout ", n)] = func() []float64 {
			y := make([]float32, len(x))
			at := kernels.Position{Seed: 5 << 40, Offset: 1<<34 - 100 + uint64(n)}
			k.Dropout(nil, device.HostTensor(y, device.Invalid), device.Store, tensor(x, len(x)), []float64{0, 0.3, 1}[n%3], at)
			return wide(y)
		}
	}
	one, two := [2]int{1, 1}, [2]int{2, 2}
	for _, w := range []kernels.Window{
		{Kernel: two, Stride: two, Dilation: one},
		{Kernel: [2]int{3, 3}, Stride: two, Padding: one, Dilation: one, Ceil: true},
		{Kernel: [2]int{3, 3}, Stride: one, Padding: one, Dilation: two},
		{Kernel: [2]int{2, 1}, Stride: two, Dilation: one},
		{Kernel: two, Stride: [2]int{1, 3}, Padding: one, Dilation: two}, // some windows contain no elements
	} {
		for _, shape := range []device.Shape{{3, 2, 14, 14}, {2, 5, 8, 31}, {2, 9, 2, 10}, {1, 1, 3, 70}, {2, 6, 9, 16}} {
			for _, w.ChannelsLast = range []bool{false, true} {
				all[fmt.Sprint("max pooling of ", shape, w)] = func() []float64 {
					x := tensor(xs[:shape.Len()], shape...)
					for i := range x.Len() / 2 {
						device.Elements[float32](x)[2*i] = float32(math.Floor(rand.New(rand.NewPCG(1, uint64(i))).NormFloat64())) // many are equal
					}
					out := slices.Clone(shape)
					_, rows, columns := kernels.ImageAxes(w.ChannelsLast)
					out[rows], out[columns] = w.Out(0, shape[rows]), w.Out(1, shape[columns])
					y, at := make([]float32, out.Len()), make([]int32, out.Len())
					k.MaxPool2d(nil, device.HostTensor(y, device.Invalid, out...), device.HostTensor(at, device.Invalid, out...), x, w)
					return append(wide(y), wide(at)...)
				}
			}
		}
	}
	return all
}

func wide[T float32 | int32](x []T) []float64 {
	out := make([]float64, len(x))
	for i, v := range x {
		out[i] = float64(v)
	}
	return out
}
