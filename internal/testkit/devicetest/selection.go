package devicetest

import (
	"fmt"
	"math"
	"slices"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

var comparisons = []func(x, y float64) bool{
	kernels.Equal:        func(x, y float64) bool { return x == y },
	kernels.NotEqual:     func(x, y float64) bool { return x != y },
	kernels.Less:         func(x, y float64) bool { return x < y },
	kernels.LessEqual:    func(x, y float64) bool { return x <= y },
	kernels.Greater:      func(x, y float64) bool { return x > y },
	kernels.GreaterEqual: func(x, y float64) bool { return x >= y },
}

// few returns an array with few different numbers. For floating-point types NaN and an infinity are
// among them.
func (r *rig) few(dt device.DType, shape ...int) array {
	a := newArray(shape...)
	for i := range a.v {
		switch n := r.rnd.IntN(7); {
		case dt.IsFloat() && n == 5:
			a.v[i] = math.NaN()
		case dt.IsFloat() && n == 6:
			a.v[i] = math.Inf(1)
		default:
			a.v[i] = float64(n)
		}
	}
	return a
}

// checkCompare compares numbers of the type under test, and of the integer types.
func checkCompare(r *rig) {
	for _, dt := range []device.DType{r.dt, device.Int32, device.Int64, device.Uint8} {
		each(r, broadcasts, func(b broadcast) {
			for _, small := range b.small {
				x, y := r.few(dt, small...), r.few(dt, b.big...)
				px, py := r.place(dt, small, encode(dt, x.v)), r.place(dt, b.big, encode(dt, y.v))
				for c, holds := range comparisons {
					want := newArray(b.big...)
					for i := range want.v {
						if holds(x.v[source(b.big, small, i)], y.v[i]) {
							want.v[i] = 1
						}
					}
					label := fmt.Sprintf("%v of %v%v and %v", kernels.Comparison(c), dt, small, b.big)
					dst := r.place(device.Uint8, b.big, make([]byte, b.big.Len()))
					r.ok(label, r.k.Compare(r.s, kernels.Comparison(c), dst.Tensor, px.Tensor, py.Tensor))
					r.same(label, dst, value{array: want})
				}
				r.clean()
			}
		})
	}
}

func checkMaskedCopy(r *rig) {
	for _, dt := range everyType {
		each(r, broadcasts, func(b broadcast) {
			for i, small := range b.small {
				masked := b.small[(i+1)%len(b.small)]
				before, x, mask := r.few(dt, b.big...), r.few(dt, small...), r.few(device.Uint8, masked...)
				for i := range mask.v {
					mask.v[i] = max(mask.v[i]-3, 0)
				}
				want := array{b.big, slices.Clone(before.v)}
				for i := range want.v {
					if mask.v[source(b.big, masked, i)] != 0 {
						want.v[i] = x.v[source(b.big, small, i)]
					}
				}
				label := fmt.Sprintf("MaskedCopy of %v%v by %v", dt, small, masked)
				dst := r.place(dt, b.big, encode(dt, before.v))
				px, pm := r.place(dt, small, encode(dt, x.v)), r.place(device.Uint8, masked, encode(device.Uint8, mask.v))
				r.ok(label, r.k.MaskedCopy(r.s, dst.Tensor, pm.Tensor, px.Tensor))
				r.same(label, dst, value{array: want})
				r.clean()
			}
		})
	}
}

func checkFindExtreme(r *rig) {
	each(r, []device.Shape{
		{1, 1, 1}, {3, 5, 1}, {2, 16, 3}, {2, 17, 3}, {7, 300, 2}, {1, 5000, 1}, {40, 257, 1}, {3, 1, 50}, {0, 3, 2}, {2, 3, 0}, {0, 0, 4},
	}, func(shape device.Shape) {
		for _, numbers := range []bool{false, true} { // few different numbers with NaN, or many
			x := r.random(-2, 2, shape...)
			if !numbers {
				x = r.few(r.dt, shape...)
			}
			px := r.put(x)
			for _, e := range []kernels.Extreme{kernels.Largest, kernels.Smallest} {
				n, inner := shape[1], shape[2]
				want, where := newArray(shape[0], inner), newArray(shape[0], inner)
				for o := range want.v {
					at := o/inner*n*inner + o%inner
					want.v[o] = x.v[at]
					for i := 1; i < n; i++ {
						v, best := x.v[at+i*inner], want.v[o]
						if best == best && (v != v || e == kernels.Largest && v > best || e == kernels.Smallest && v < best) {
							want.v[o], where.v[o] = v, float64(i)
						}
					}
				}
				label := fmt.Sprintf("%v of %v", e, shape)
				indices := r.place(device.Int64, where.shape, make([]byte, 8*len(where.v)))
				r.result(label, value{array: want}, func(dst device.Tensor) error {
					return r.k.FindExtreme(r.s, e, dst, indices.Tensor, px.Tensor)
				})
				r.same(label+", where", indices, value{array: where})
				r.result(label+" alone", value{array: want}, func(dst device.Tensor) error {
					return r.k.FindExtreme(r.s, e, dst, device.Tensor{}, px.Tensor)
				})
			}
			r.clean()
		}
	})
}
