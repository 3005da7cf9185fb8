package devicetest

import (
	"fmt"
	"math"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

// nanAt has positions in an array of nanLen elements: the first, the last, one within a pack, one
// in the second tile, and one behind the last whole pack.
var nanAt = []int{0, 5, 130, 600, nanLen - 1}

const nanLen = 601

// withNaN returns a with NaN at the positions nanAt that a has.
func withNaN(a array) array {
	for _, i := range nanAt {
		if i < len(a.v) {
			a.v[i] = math.NaN()
		}
	}
	return a
}

// checkNaN checks that a NaN among finite operands passes through every kernel that computes
// floats, to all elements that depend on it and to no others.
func checkNaN(r *rig) {
	each(r, []func(*rig){
		nanUnary, nanBinary, nanSum, nanLinear, nanFeedForward, nanZeroTimes, nanMSE, nanCrossEntropy, nanStrided, nanSoftmax, nanScatter,
	}, func(check func(*rig)) { check(r) })
}

func nanUnary(r *rig) {
	for _, u := range unaries {
		x := withNaN(r.random(max(u.lo, -2), 2, nanLen))
		px := r.put(x)
		y := mapped(func(v ...float64) float64 { return u.f(v[0]) }, x)
		want := value{array: y, c: 8, scale: mapped(func(v ...float64) float64 { return math.Abs(v[0]) + math.Abs(v[1]) }, x, y).v}
		label := fmt.Sprintf("%v of NaN among numbers", u)
		r.result(label, want, func(dst device.Tensor) error { return r.k.Unary(r.s, u.op, dst, px.Tensor) })

		var tx, ty device.Tensor
		y = mapped(func(v ...float64) float64 { return round(r.dt, v[0]) }, y)
		g := r.random(-2, 2, nanLen)
		switch u.op.Given() {
		case kernels.GivenX:
			tx = px.Tensor
		case kernels.GivenY:
			ty = r.put(y).Tensor
		default: // the derivative is constant
			g = withNaN(g)
		}
		pg := r.put(g)
		slope := mapped(func(v ...float64) float64 { return v[2] * u.df(v[0], v[1]) }, x, y, g)
		want = value{array: slope, c: 16, scale: mapped(func(v ...float64) float64 { return math.Abs(v[0]) + math.Abs(v[1]) }, slope, g).v}
		for _, acc := range []device.Accum{device.Store, {Alpha: 1. / 2, Beta: 1}} {
			before, w := newArray(nanLen), want
			w.array = mapped(func(v ...float64) float64 { return acc.Alpha * v[0] }, want.array)
			r.from(fmt.Sprintf("gradient of %v at NaN %+v", u, acc), before, w, func(dst device.Tensor) error {
				return r.k.UnaryGrad(r.s, u.op, dst, acc, pg.Tensor, tx, ty)
			})
		}
		if u.op.Given() == kernels.GivenY {
			r.from(fmt.Sprintf("gradient of %v at NaN, over g", u), g, want, func(dst device.Tensor) error {
				return r.k.UnaryGrad(r.s, u.op, dst, device.Store, dst, tx, ty)
			})
		}
	}
}

func nanBinary(r *rig) {
	x, y := withNaN(r.random(-2, 2, nanLen)), r.random(0.5, 2, nanLen)
	y.v[17] = math.NaN()
	px, py := r.put(x), r.put(y)
	for op, f := range binaries {
		want := value{array: mapped(func(v ...float64) float64 { return f(v[0], v[1]) }, x, y), c: 8, scale: mapped(func(v ...float64) float64 {
			return math.Abs(f(v[0], v[1])) + math.Abs(v[0]) + math.Abs(v[1])
		}, x, y).v}
		r.result(fmt.Sprintf("%v of NaN", op), want, func(dst device.Tensor) error { return r.k.Binary(r.s, op, dst, px.Tensor, py.Tensor) })
	}
}

// nanSum checks sums of rows and of columns, some of which contain a NaN.
func nanSum(r *rig) {
	const rows, cols = 5, 301
	x := newArray(rows, cols)
	bad := map[int]bool{0: true, 3*cols + 299: true}
	for i := range x.v {
		if x.v[i] = 1; bad[i] {
			x.v[i] = math.NaN()
		}
	}
	px := r.put(x)
	for _, to := range []device.Shape{{rows, 1}, {cols}, {}} {
		want := newArray(to...)
		for i, v := range x.v {
			want.v[source(x.shape, to, i)] += v
		}
		r.result(fmt.Sprintf("Sum of NaN to %v", to), value{array: want, c: 16}, func(dst device.Tensor) error {
			return r.k.Sum(r.s, dst, device.Store, px.Tensor)
		})
	}
}

// nanLinear puts a NaN into each operand of a Linear. A NaN in x reaches a row of the result, a NaN
// in another operand a column. Libraries use different kernels for the sizes.
func nanLinear(r *rig) {
	for _, p := range [][3]int{{1, 1, 1}, {8, 8, 8}, {17, 33, 65}, {64, 64, 64}, {128, 256, 128}} {
		m, k, n := p[0], p[1], p[2]
		for _, operand := range []string{"x", "w", "bias"} {
			x, w, b := r.random(-2, 2, m, k), r.random(-2, 2, n, k), r.random(-2, 2, n)
			row, col := m/2, n/2
			depends := func(i, j int) bool { return j == col }
			switch operand {
			case "x":
				x.v[row*k+k/2] = math.NaN()
				depends = func(i, j int) bool { return i == row }
			case "w":
				w.v[col*k+k/2] = math.NaN()
			case "bias":
				b.v[col] = math.NaN()
			}
			px, pw, pb := r.put(x), r.put(w), r.put(b)
			for _, act := range []kernels.Activation{kernels.NoActivation, kernels.ActReLU} {
				biases := map[string]device.Tensor{"": {}, " and bias": pb.Tensor}
				if operand == "bias" {
					delete(biases, "")
				}
				for with, bias := range biases {
					label := fmt.Sprintf("Linear [%d %d %d]%s, activation %d, with NaN in %s", m, k, n, with, act, operand)
					dst := r.put(newArray(m, n))
					r.ok(label, r.k.Linear(r.s, dst.Tensor, px.Tensor, pw.Tensor, bias, act))
					for at, v := range decode(r.dt, r.read(label, dst)) {
						if i, j := at/n, at%n; (v != v) != depends(i, j) {
							r.fail("%s: element [%d %d] is %v; that it is NaN should be %t", label, i, j, v, depends(i, j))
						}
					}
				}
			}
			r.clean()
		}
	}
}

// nanZeroTimes multiplies zeros by a NaN, so that a kernel that skips zeros fails.
func nanZeroTimes(r *rig) {
	for _, p := range [][3]int{{1, 1, 1}, {3, 5, 7}, {64, 64, 64}, {70, 130, 66}} {
		m, k, n := p[0], p[1], p[2]
		for _, tx := range []bool{false, true} {
			for _, ty := range []bool{false, true} {
				for _, nanInX := range []bool{false, true} {
					x, y := r.stored(m, k, tx), r.stored(k, n, ty)
					clear(x.v)
					clear(y.v)
					bad := y
					if nanInX {
						bad = x
					}
					bad.v[0] = math.NaN()
					px, py := r.put(x), r.put(y)
					label := fmt.Sprintf("MatMul of zeros and NaN, %v (transposed: %v) and %v (%v), in x: %v", x.shape, tx, y.shape, ty, nanInX)
					dst := r.put(newArray(m, n))
					r.ok(label, r.k.MatMul(r.s, dst.Tensor, device.Store, px.Tensor, tx, py.Tensor, ty))
					for at, v := range decode(r.dt, r.read(label, dst)) {
						depends := at%n == 0
						if nanInX {
							depends = at/n == 0
						}
						if (v != v) != depends {
							r.fail("%s: element [%d %d] is %v; that it is NaN should be %t", label, at/n, at%n, v, depends)
						}
					}
					r.clean()
				}
			}
		}
	}
}

func nanMSE(r *rig) {
	x, y := withNaN(r.random(-2, 2, nanLen)), r.random(-2, 2, nanLen)
	px, py, one := r.put(x), r.put(y), r.put(array{scalar, []float64{1}})
	r.result("MSE of NaN", value{array: nan(scalar)}, func(dst device.Tensor) error { return r.k.MSE(r.s, dst, px.Tensor, py.Tensor) })
	want := value{array: mapped(func(v ...float64) float64 { return 2 * (v[0] - v[1]) / nanLen }, x, y), c: 8}
	want.scale = mapped(func(v ...float64) float64 { return 2 * (math.Abs(v[0]) + math.Abs(v[1])) / nanLen }, x, y).v
	r.result("MSEGrad of NaN", want, func(dst device.Tensor) error {
		return r.k.MSEGrad(r.s, dst, device.Store, one.Tensor, px.Tensor, py.Tensor)
	})
}

// nanCrossEntropy puts a NaN into one row, at the largest logit, before it, or behind it. The sum and
// the gradient of that row become NaN, and no others.
func nanCrossEntropy(r *rig) {
	const rows, row = 3, 1
	for _, cols := range []int{3, 257, 1000} {
		for _, col := range []int{0, cols / 2, cols - 1} {
			x := r.random(-4, 4, rows, cols)
			x.v[row*cols+cols/2] = 5
			x.v[row*cols+col] = math.NaN()
			px, loss, sums := r.put(x), r.placed(r.sums(), newArray()), r.placed(device.Float64, newArray(2, rows))
			_, labels := r.labels(rows, cols)
			label := fmt.Sprintf("CrossEntropy of %d classes with NaN in class %d", cols, col)
			r.ok(label, r.k.CrossEntropy(r.s, loss.Tensor, sums.Tensor, px.Tensor, labels.Tensor))
			r.same(label, loss, value{array: nan(scalar)})
			one, grad := r.placed(r.sums(), array{scalar, []float64{1}}), r.put(newArray(rows, cols))
			r.ok(label, r.k.CrossEntropyGrad(r.s, grad.Tensor, device.Store, one.Tensor, sums.Tensor, px.Tensor, labels.Tensor))
			for i, v := range decode(r.dt, r.read(label, grad)) {
				if (v != v) != (i/cols == row) {
					r.fail("%s: the gradient at [%d %d] is %v", label, i/cols, i%cols, v)
				}
			}
			for i, v := range decode(device.Float64, r.read(label, sums)) {
				if (v != v) != (i%rows == row) {
					r.fail("%s: a sum of row %d is %v", label, i%rows, v)
				}
			}
			r.clean()
		}
	}
}

// checkNaNCopy checks that a NaN of any sign and payload stays a NaN in every conversion between
// floating-point types, even if the narrower type cannot hold the payload's set bits, and that it
// becomes 0 in integer types.
func checkNaNCopy(r *rig) {
	for _, from := range []device.DType{device.Float32, device.Float64, device.Float16, device.BFloat16} {
		f := formats[from]
		var images [][]byte
		for _, payload := range []uint64{1, 1 << (f.fraction - 1), 1<<f.fraction - 1} {
			for _, sign := range []uint64{0, 1} {
				bits := sign<<(f.exponent+f.fraction) | (1<<f.exponent-1)<<f.fraction | payload
				var image []byte
				for i := range from.Size() {
					image = append(image, byte(bits>>(8*i))) // all hosts that run the test are little-endian
				}
				images = append(images, image)
			}
		}
		for _, to := range everyType {
			each(r, []int{1, 4, 19}, func(n int) {
				for _, image := range images {
					var mem []byte
					for range n {
						mem = append(mem, image...)
					}
					src, dst := r.place(from, device.Shape{n}, mem), r.place(to, device.Shape{n}, make([]byte, n*to.Size()))
					label := fmt.Sprintf("Copy of NaN % x from %v to %v", image, from, to)
					r.ok(label, r.k.Copy(r.s, dst.Tensor, src.Tensor))
					for i, v := range decode(to, r.read(label, dst)) {
						if to.IsFloat() && v == v || !to.IsFloat() && v != 0 {
							r.fail("%s: element %d of %d is %v", label, i, n, v)
						}
					}
				}
			})
		}
	}
}

// checkNaNUpdates checks that an update with a NaN in the gradient makes that element of the
// parameter NaN, and no other. An optimizer must not hide a gradient that is not finite.
func checkNaNUpdates(r *rig) {
	kinds := []sgdKind{{grad: r.dt, state: r.dt}}
	if r.dt.Size() == 2 {
		kinds = append(kinds, sgdKind{grad: device.Float32, state: device.Float32, master: true})
	}
	for _, kind := range kinds {
		each(r, []string{"SGD", "AdamW", "RMSProp"}, func(label string) {
			g := newArray(nanLen)
			for i := range g.v {
				g.v[i] = 1
			}
			g = withNaN(g)
			zeros := func(dt device.DType) operand { return r.place(dt, g.shape, make([]byte, nanLen*dt.Size())) }
			param, grad := zeros(r.dt), r.place(kind.grad, g.shape, encode(kind.grad, g.v))
			var master device.Tensor
			if kind.master {
				master = zeros(kind.state).Tensor
			}
			mean, variance := zeros(kind.state), zeros(kind.state)
			var err error
			switch label {
			case "AdamW":
				err = r.k.AdamW(r.s, kernels.AdamWStep{
					Param: param.Tensor, Grad: grad.Tensor, Mean: mean.Tensor, Variance: variance.Tensor, Master: master,
					LR: 0.1, Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, Step: 1,
				})
			case "RMSProp":
				err = r.k.RMSProp(r.s, kernels.RMSPropStep{
					Param: param.Tensor, Grad: grad.Tensor, Square: mean.Tensor, Velocity: variance.Tensor, Master: master,
					LR: 0.1, Alpha: 0.99, Eps: 1e-8, Momentum: 0.9,
				})
			default:
				err = r.k.SGD(r.s, kernels.SGDStep{Param: param.Tensor, Grad: grad.Tensor, Velocity: mean.Tensor, Master: master, LR: 0.1, Momentum: 0.9, First: true})
			}
			label = fmt.Sprintf("%s of %v by gradients of NaN in %v", label, r.dt, kind.grad)
			r.ok(label, err)
			for i, v := range decode(r.dt, r.read(label, param)) {
				if (v != v) != (g.v[i] != g.v[i]) {
					r.fail("%s: element %d is %v, its gradient %v", label, i, v, g.v[i])
				}
			}
		})
	}
}
