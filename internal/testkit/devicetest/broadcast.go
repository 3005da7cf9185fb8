package devicetest

import (
	"fmt"
	"math"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

// broadcast is a shape, with shapes that can be broadcast to it.
type broadcast struct {
	big   device.Shape
	small []device.Shape
}

var broadcasts = []broadcast{
	{device.Shape{}, []device.Shape{{}}},
	{device.Shape{1}, []device.Shape{{}, {1}}},
	{device.Shape{5}, []device.Shape{{5}, {1}, {}}},
	{device.Shape{0, 3}, []device.Shape{{0, 3}, {3}, {0, 1}, {1, 3}, {}}},
	{device.Shape{3, 0}, []device.Shape{{3, 0}, {3, 1}, {0}, {1}}},
	{device.Shape{4, 4}, []device.Shape{{4, 4}, {4}, {1, 4}, {4, 1}, {}, {1}, {1, 1}}},
	{device.Shape{2, 3, 4}, []device.Shape{{2, 3, 4}, {3, 4}, {4}, {2, 1, 4}, {1, 3, 1}, {2, 3, 1}, {3, 1}, {2, 1, 1}, {}}},
	{device.Shape{2, 3, 4, 5}, []device.Shape{{2, 3, 4, 5}, {3, 1, 5}, {2, 1, 4, 1}, {1, 3, 1, 5}, {4, 1}, {2, 1, 1, 5}}},
	{device.Shape{7, 1, 600}, []device.Shape{{7, 1, 600}, {600}, {7, 1, 1}}},
	{device.Shape{130, 601}, []device.Shape{{601}, {130, 1}}},
}

// source returns the index, in an array of shape small, of the element that broadcasting to shape
// big puts at index i.
func source(big, small device.Shape, i int) int {
	at, stride := 0, 1
	for ax := 1; ax <= len(big); ax++ {
		n := big[len(big)-ax]
		if ax <= len(small) {
			if s := small[len(small)-ax]; s != 1 {
				at += i % n * stride
				stride *= s
			}
		}
		i /= n
	}
	return at
}

var binaries = map[kernels.BinaryOp]func(x, y float64) float64{
	kernels.Add: func(x, y float64) float64 { return x + y },
	kernels.Sub: func(x, y float64) float64 { return x - y },
	kernels.Mul: func(x, y float64) float64 { return x * y },
	kernels.Div: func(x, y float64) float64 { return x / y },
}

func checkBinary(r *rig) {
	each(r, broadcasts, func(b broadcast) {
		for _, xs := range b.small {
			for _, ys := range b.small {
				x, y := r.random(-2, 2, xs...), r.random(0.5, 2, ys...)
				px, py := r.put(x), r.put(y)
				for op := kernels.Add; op <= kernels.Div; op++ {
					want := value{array: newArray(b.big...), scale: make([]float64, b.big.Len()), c: 8}
					for i := range want.v {
						vx, vy := x.v[source(b.big, xs, i)], y.v[source(b.big, ys, i)]
						want.v[i] = binaries[op](vx, vy)
						want.scale[i] = max(math.Abs(want.v[i]), 1e-3*(math.Abs(vx)+math.Abs(vy)))
					}
					label := fmt.Sprintf("%v of %v and %v", op, xs, ys)
					r.result(label, want, func(dst device.Tensor) error { return r.k.Binary(r.s, op, dst, px.Tensor, py.Tensor) })
					if xs.Equal(b.big) {
						r.from(label+" over x", x, want, func(dst device.Tensor) error { return r.k.Binary(r.s, op, dst, dst, py.Tensor) })
					}
					if ys.Equal(b.big) {
						r.from(label+" over y", y, want, func(dst device.Tensor) error { return r.k.Binary(r.s, op, dst, px.Tensor, dst) })
					}
				}
				r.clean()
			}
		}
		square := r.random(-2, 2, b.big...)
		want := value{array: mapped(func(v ...float64) float64 { return v[0] * v[0] }, square), c: 8}
		r.from("Mul with itself in place", square, want, func(dst device.Tensor) error {
			return r.k.Binary(r.s, kernels.Mul, dst, dst, dst)
		})
	})
}

// reduction is a sum of a tensor of shape src to shape dst.
type reduction struct{ src, dst device.Shape }

// reductions has sizes that are divided among threads: long, wide and narrow ones, and sums over an
// axis between others.
var reductions = []reduction{
	{device.Shape{large}, device.Shape{}},
	{device.Shape{260, 300}, device.Shape{1, 1}},
	{device.Shape{20001, 3}, device.Shape{3}},
	{device.Shape{20001, 3}, device.Shape{20001, 1}},
	{device.Shape{65, 1030}, device.Shape{1030}},
	{device.Shape{65, 1030}, device.Shape{65, 1}},
	{device.Shape{37, 64, 33}, device.Shape{64, 1}},
	{device.Shape{37, 64, 33}, device.Shape{37, 1, 33}},
	{device.Shape{37, 64, 33}, device.Shape{1, 64, 33}},
	{device.Shape{5, 0, 3}, device.Shape{5, 1, 3}},
	{device.Shape{5, 0, 3}, device.Shape{3}},
	{device.Shape{0}, device.Shape{}},
}

func checkSum(r *rig) {
	one := func(src, dst device.Shape, lo, hi float64) {
		x := r.random(lo, hi, src...)
		px := r.put(x)
		r.accumulates(fmt.Sprintf("Sum of %v", src), summed(x, dst), func(dst device.Tensor, acc device.Accum) error {
			return r.k.Sum(r.s, dst, acc, px.Tensor)
		})
		r.clean()
	}
	each(r, broadcasts, func(b broadcast) {
		for _, small := range b.small {
			one(b.big, small, -2, 2)
		}
	})
	each(r, reductions, func(s reduction) {
		if !r.quick || r.skew == 0 {
			one(s.src, s.dst, -2, 2)
		}
	})
	none := r.put(newArray(2, 0, 3))
	r.result("Mean of no elements", value{array: nan(device.Shape{2, 1, 3})}, func(dst device.Tensor) error {
		return r.k.Sum(r.s, dst, device.Accum{Alpha: math.Inf(1)}, none.Tensor)
	})
	if r.dt.Size() >= 4 {
		x := r.put(array{device.Shape{2}, []float64{round(r.dt, 3e38), round(r.dt, 3e38)}})
		r.result("Mean of numbers whose sum is infinite", value{array: array{scalar, []float64{round(r.dt, 3e38)}}, c: 1}, func(dst device.Tensor) error {
			return r.k.Sum(r.s, dst, device.Accum{Alpha: 0.5}, x.Tensor)
		})
		// All numbers have one sign, so the error of a naive sum exceeds the bound.
		if r.quick {
			x := r.random(0.1, 0.2, 300007)
			px := r.put(x)
			r.result("Sum of many numbers", summed(x, scalar), func(dst device.Tensor) error { return r.k.Sum(r.s, dst, device.Store, px.Tensor) })
			return
		}
		one(device.Shape{300007}, device.Shape{}, 0.1, 0.2)
		one(device.Shape{large, 3}, device.Shape{3}, 0.1, 0.2)
	}
}

// summed returns the sum of x to a shape that can be broadcast to x's. It uses Neumaier's
// compensated summation.
func summed(x array, shape device.Shape) value {
	w := value{newArray(shape...), make([]float64, shape.Len()), 16}
	lost := make([]float64, shape.Len())
	for i, v := range x.v {
		j := source(x.shape, shape, i)
		s := w.v[j]
		t := s + v
		if math.Abs(s) >= math.Abs(v) {
			lost[j] += s - t + v
		} else {
			lost[j] += v - t + s
		}
		w.v[j] = t
		w.scale[j] += math.Abs(v)
	}
	for j := range w.v {
		w.v[j] += lost[j]
	}
	return w
}
