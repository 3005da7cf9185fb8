package devicetest

import (
	"fmt"
	"math"
	"slices"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

// products lists m, k and n of products.
var products = [][3]int{
	{0, 3, 4}, {3, 0, 4}, {3, 4, 0}, {1, 1, 1}, {1, 7, 1}, {2, 3, 4}, {5, 1, 9}, {8, 8, 8}, {16, 32, 16},
	{17, 33, 65}, {64, 64, 64}, {65, 129, 31}, {1, 256, 300}, {300, 1, 2}, {300, 2, 1}, {66, 300, 35}, {1, 2056, 9}, {1, 8208, 3},
}

// product is the reference for op(x)·op(y).
func product(x array, tx bool, y array, ty bool, m, k, n int) value {
	strides := func(a array, t bool) (row, col int) {
		if t {
			return 1, a.shape[1]
		}
		return a.shape[1], 1
	}
	xi, xl := strides(x, tx)
	yl, yj := strides(y, ty)
	w := value{newArray(m, n), make([]float64, m*n), 8 + float64(k)/8}
	for i := range m {
		for j := range n {
			var sum, scale float64
			for l := range k {
				p := x.v[i*xi+l*xl] * y.v[l*yl+j*yj]
				sum += p
				scale += math.Abs(p)
			}
			w.v[i*n+j], w.scale[i*n+j] = sum, scale
		}
	}
	return w
}

// stored returns a random matrix [rows cols], or its transpose if t is set.
func (r *rig) stored(rows, cols int, t bool) array {
	if t {
		rows, cols = cols, rows
	}
	return r.random(-2, 2, rows, cols)
}

func checkMatMul(r *rig) {
	each(r, products, func(p [3]int) {
		m, k, n := p[0], p[1], p[2]
		for _, tx := range []bool{false, true} {
			for _, ty := range []bool{false, true} {
				x, y := r.stored(m, k, tx), r.stored(k, n, ty)
				px, py := r.put(x), r.put(y)
				label := fmt.Sprintf("MatMul of %v (transposed: %v) and %v (%v)", x.shape, tx, y.shape, ty)
				r.accumulates(label, product(x, tx, y, ty, m, k, n), func(dst device.Tensor, acc device.Accum) error {
					return r.k.MatMul(r.s, dst, acc, px.Tensor, tx, py.Tensor, ty)
				})
				r.clean()
			}
		}
	})
}

// batchedProducts lists the leading axes of x, y and dst.
var batchedProducts = [][3]device.Shape{
	{{3}, {3}, {3}}, {{3}, {}, {3}}, {{1}, {3}, {3}}, {{2, 3}, {2, 3}, {2, 3}}, {{2, 1}, {3}, {2, 3}}, {{2, 1, 2}, {3, 1}, {2, 3, 2}},
	{{0}, {0}, {0}}, {{1, 1}, {1}, {1, 1}}, {{}, {}, {2}}, {{17}, {17}, {17}},
}

func checkBatchedMatMul(r *rig) {
	sizes := [][3]int{{1, 1, 1}, {3, 5, 2}, {2, 0, 3}, {0, 2, 3}, {17, 9, 33}, {64, 80, 72}}
	if r.quick {
		sizes = sizes[:5] // the reference of the last one takes most of the time
	}
	for _, p := range sizes {
		each(r, batchedProducts, func(b [3]device.Shape) {
			m, k, n := p[0], p[1], p[2]
			for i := range 4 {
				tx, ty := i%2 == 1, i/2 == 1
				matrices := func(lead device.Shape, rows, cols int, t bool) array {
					if t {
						rows, cols = cols, rows
					}
					return r.random(-2, 2, append(append(device.Shape{}, lead...), rows, cols)...)
				}
				x, y := matrices(b[0], m, k, tx), matrices(b[1], k, n, ty)
				want := value{array: newArray(append(append(device.Shape{}, b[2]...), m, n)...), c: 8 + float64(k)/8}
				want.scale = make([]float64, len(want.v))
				for j := range b[2].Len() {
					one := func(a array, lead device.Shape) array {
						size := a.shape[len(lead)] * a.shape[len(lead)+1]
						return array{a.shape[len(lead):], a.v[source(b[2], lead, j)*size:][:size]}
					}
					w := product(one(x, b[0]), tx, one(y, b[1]), ty, m, k, n)
					copy(want.v[j*m*n:], w.v)
					copy(want.scale[j*m*n:], w.scale)
				}
				px, py := r.put(x), r.put(y)
				label := fmt.Sprintf("MatMul of %v (transposed: %v) and %v (%v)", x.shape, tx, y.shape, ty)
				r.accumulates(label, want, func(dst device.Tensor, acc device.Accum) error {
					return r.k.MatMul(r.s, dst, acc, px.Tensor, tx, py.Tensor, ty)
				})
				r.clean()
			}
		})
	}
}

func checkLinear(r *rig) {
	each(r, products, func(p [3]int) {
		m, k, n := p[0], p[1], p[2]
		x, w, b := r.stored(m, k, false), r.stored(k, n, true), r.random(-3, 3, n)
		px, pw, pb := r.put(x), r.put(w), r.put(b)
		for _, bias := range []device.Tensor{{}, pb.Tensor} {
			for _, act := range []kernels.Activation{kernels.NoActivation, kernels.ActReLU} {
				want := product(x, false, w, true, m, k, n)
				for i := range want.v {
					if !bias.IsZero() {
						want.v[i] += b.v[i%n]
						want.scale[i] += math.Abs(b.v[i%n])
					}
					if act == kernels.ActReLU {
						want.v[i] = max(want.v[i], 0)
					}
				}
				label := fmt.Sprintf("Linear of %v and %v with bias %v, activation %d", x.shape, w.shape, bias.Shape, act)
				r.result(label, want, func(dst device.Tensor) error {
					return r.k.Linear(r.s, dst, px.Tensor, pw.Tensor, bias, act)
				})
			}
		}
	})
	x := r.put(array{device.Shape{1, 1}, []float64{math.NaN()}})
	one := r.put(array{device.Shape{1, 1}, []float64{1}})
	r.result("Linear with ReLU of NaN", value{array: nan(device.Shape{1, 1})}, func(dst device.Tensor) error {
		return r.k.Linear(r.s, dst, x.Tensor, one.Tensor, device.Tensor{}, kernels.ActReLU)
	})
}

func checkLinears(r *rig) {
	each(r, products, func(p [3]int) {
		m, k, n := p[0], p[1], p[2]
		x := r.random(-2, 2, m, k)
		px := r.put(x)
		var of []kernels.Projection
		var wants []value
		for i, n := range []int{n, 2*n + 1, 1} {
			w, b := r.random(-2, 2, n, k), r.random(-3, 3, n)
			want := product(x, false, w, true, m, k, n)
			p := kernels.Projection{Dst: r.put(newArray(m, n)).Tensor, W: r.put(w).Tensor}
			if i != 1 {
				p.Bias = r.put(b).Tensor
				for j := range want.v {
					want.v[j] += b.v[j%n]
					want.scale[j] += math.Abs(b.v[j%n])
				}
			}
			of, wants = append(of, p), append(wants, want)
		}
		for i, want := range wants {
			r.result(fmt.Sprintf("Linears of %v: %v", x.shape, of[i].W.Shape), want, func(dst device.Tensor) error {
				all := slices.Clone(of)
				all[i].Dst = dst
				return r.k.Linears(r.s, px.Tensor, all)
			})
		}
	})
}

func checkLinearGrad(r *rig) {
	each(r, products, func(p [3]int) {
		m, k, n := p[0], p[1], p[2]
		g, x, w, ones := r.random(-2, 2, m, n), r.random(-2, 2, m, k), r.random(-2, 2, n, k), newArray(m, 1)
		for i := range ones.v {
			ones.v[i] = 1
		}
		pg, px, pw := r.put(g), r.put(x), r.put(w)
		wantW := product(g, true, x, false, n, m, k)
		wantB := product(g, true, ones, false, n, m, 1)
		wantB.shape = device.Shape{n}
		label := fmt.Sprintf("LinearGrad of %v and %v", g.shape, x.shape)
		r.ok(label, r.k.PrepareLinearGrad(r.s, pg.Tensor, px.Tensor, pw.Tensor, r.put(r.random(-2, 2, n)).Tensor))
		besideW, besideB := r.put(newArray(n, k)), r.put(newArray(n))
		r.accumulates(label+": dw", wantW, func(dw device.Tensor, acc device.Accum) error {
			return r.k.LinearGrad(r.s, dw, acc, besideB.Tensor, device.Store, pg.Tensor, px.Tensor)
		})
		r.accumulates(label+": db", wantB, func(db device.Tensor, acc device.Accum) error {
			return r.k.LinearGrad(r.s, besideW.Tensor, device.Accum{Alpha: 1. / 3, Beta: 1. / 3}, db, acc, pg.Tensor, px.Tensor)
		})
	})
}
