package devicetest

import (
	"fmt"
	"math"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

// between returns the references of the functions that may stand between two Linears.
func between() (list []unary) {
	for _, u := range unaries {
		if u.op == kernels.GELU || u.op == kernels.GELUTanh || u.op == kernels.SiLU {
			list = append(list, u)
		}
	}
	return list
}

func checkLinearUnary(r *rig) {
	each(r, products, func(p [3]int) {
		m, k, n := p[0], p[1], p[2]
		x, w, b := r.random(-2, 2, m, k), r.random(-1, 1, n, k), r.random(-1, 1, n)
		px, pw, pb := r.put(x), r.put(w), r.put(b)
		for _, u := range between() {
			for _, bias := range []device.Tensor{{}, pb.Tensor} {
				pre := product(x, false, w, true, m, k, n)
				if !bias.IsZero() {
					for i := range pre.v {
						pre.v[i] += b.v[i%n]
						pre.scale[i] += math.Abs(b.v[i%n])
					}
				}
				hidden := value{mapped(func(v ...float64) float64 { return u.f(v[0]) }, pre.array), pre.scale, pre.c + 8} // the slope of each function is at most 1.2
				label := fmt.Sprintf("LinearUnary %v of %v and %v with bias %v", u, x.shape, w.shape, bias.Shape)
				beside := r.put(newArray(m, n))
				r.result(label, hidden, func(dst device.Tensor) error {
					return r.k.LinearUnary(r.s, u.op, dst, beside.Tensor, px.Tensor, pw.Tensor, bias)
				})
				r.result(label+" alone", hidden, func(dst device.Tensor) error {
					return r.k.LinearUnary(r.s, u.op, dst, device.Tensor{}, px.Tensor, pw.Tensor, bias)
				})
				r.result(label+": pre", pre, func(dst device.Tensor) error {
					return r.k.LinearUnary(r.s, u.op, beside.Tensor, dst, px.Tensor, pw.Tensor, bias)
				})
			}
		}
	})
}

func checkLinearUnaryGrad(r *rig) {
	each(r, products, func(p [3]int) {
		m, n, h := p[0], p[1], p[2]
		g, w, pre := r.random(-2, 2, m, n), r.random(-1, 1, n, h), r.random(-4, 4, m, h)
		pg, pw, ppre := r.put(g), r.put(w), r.put(pre)
		for _, u := range between() {
			want := product(g, false, w, false, m, n, h)
			sums := value{newArray(h), make([]float64, h), want.c + 24}
			for i := range want.v {
				want.v[i] *= u.df(pre.v[i], u.f(pre.v[i]))
				want.scale[i] *= 1.2 // a bound of the slopes
				sums.v[i%h] += want.v[i]
				sums.scale[i%h] += want.scale[i]
			}
			want.c += 16
			label := fmt.Sprintf("LinearUnaryGrad %v of %v and %v", u, g.shape, w.shape)
			y, x, w1, b1 := r.put(newArray(m, n)), r.put(newArray(m, 2)), r.put(newArray(h, 2)), r.put(newArray(h))
			for _, bias := range []device.Tensor{{}, b1.Tensor} {
				r.ok(label, r.k.PrepareFeedForwardGrad(r.s, u.op, y.Tensor, ppre.Tensor, x.Tensor, w1.Tensor, bias, pw.Tensor))
			}
			dpre, db := r.put(newArray(m, h)), r.put(newArray(h))
			r.result(label, want, func(dst device.Tensor) error {
				return r.k.LinearUnaryGrad(r.s, u.op, dst, db.Tensor, pg.Tensor, pw.Tensor, ppre.Tensor)
			})
			r.result(label+" alone", want, func(dst device.Tensor) error {
				return r.k.LinearUnaryGrad(r.s, u.op, dst, device.Tensor{}, pg.Tensor, pw.Tensor, ppre.Tensor)
			})
			r.result(label+": db", sums, func(dst device.Tensor) error {
				return r.k.LinearUnaryGrad(r.s, u.op, dpre.Tensor, dst, pg.Tensor, pw.Tensor, ppre.Tensor)
			})
		}
	})
}

// nanFeedForward puts a NaN into each operand of a LinearUnary and a LinearUnaryGrad. Libraries use
// different kernels for the sizes.
func nanFeedForward(r *rig) {
	for _, p := range [][3]int{{1, 1, 1}, {8, 8, 8}, {17, 33, 65}, {64, 64, 64}, {128, 256, 128}} {
		m, k, h := p[0], p[1], p[2]
		row, col := m/2, h/2
		for _, u := range between() {
			for _, in := range []string{"x", "w", "bias or pre"} {
				x, w, wt, b, pre := r.random(-2, 2, m, k), r.random(-2, 2, h, k), r.random(-2, 2, k, h), r.random(-2, 2, h), r.random(-2, 2, m, h)
				inColumn, alone := func(i, j int) bool { return j == col }, func(i, j int) bool { return i == row && j == col }
				forward, backward := inColumn, inColumn
				switch in {
				case "x":
					x.v[row*k+k/2] = math.NaN()
					forward = func(i, j int) bool { return i == row }
					backward = forward
				case "w":
					w.v[col*k+k/2], wt.v[k/2*h+col] = math.NaN(), math.NaN()
				default:
					b.v[col], pre.v[row*h+col] = math.NaN(), math.NaN()
					backward = alone
				}
				label := fmt.Sprintf("%v between Linears [%d %d %d], with NaN in %s", u, m, k, h, in)
				check := func(dst operand, depends func(i, j int) bool) {
					for at, v := range decode(r.dt, r.read(label, dst)) {
						if i, j := at/h, at%h; (v != v) != depends(i, j) {
							r.fail("%s: element [%d %d] is %v; that it is NaN should be %t", label, i, j, v, depends(i, j))
						}
					}
				}
				hidden, beside, db := r.put(newArray(m, h)), r.put(newArray(m, h)), r.put(newArray(h))
				r.ok(label, r.k.LinearUnary(r.s, u.op, hidden.Tensor, beside.Tensor, r.put(x).Tensor, r.put(w).Tensor, r.put(b).Tensor))
				check(hidden, forward)
				check(beside, forward)
				r.ok(label, r.k.LinearUnaryGrad(r.s, u.op, hidden.Tensor, db.Tensor, r.put(x).Tensor, r.put(wt).Tensor, r.put(pre).Tensor))
				check(hidden, backward)
				for j, v := range decode(r.dt, r.read(label, db)) {
					if in != "x" && (v != v) != (j == col) || in == "x" && v == v {
						r.fail("%s: the sum of column %d is %v", label, j, v)
					}
				}
				r.clean()
			}
		}
	}
}
