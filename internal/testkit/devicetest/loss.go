package devicetest

import (
	"fmt"
	"math"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

var scalar = device.Shape{}

func checkMSE(r *rig) {
	each(r, shapes, func(shape device.Shape) {
		x, y := r.random(-2, 2, shape...), r.random(-2, 2, shape...)
		px, py := r.put(x), r.put(y)
		n := float64(shape.Len())
		squares := mapped(func(v ...float64) float64 { return (v[0] - v[1]) * (v[0] - v[1]) / n }, x, y)
		want := summed(squares, scalar)
		want.scale[0] = summed(mapped(func(v ...float64) float64 {
			return (math.Abs(v[0]) + math.Abs(v[1])) * (math.Abs(v[0]) + math.Abs(v[1])) / n
		}, x, y), scalar).v[0]
		if n == 0 {
			want.v[0] = math.NaN() // the mean of no elements
		}
		r.result("MSE", want, func(dst device.Tensor) error { return r.k.MSE(r.s, dst, px.Tensor, py.Tensor) })
	})
}

func checkMSEGrad(r *rig) {
	each(r, shapes[:len(shapes)-1], func(shape device.Shape) {
		x, y, g := r.random(-2, 2, shape...), r.random(-2, 2, shape...), r.random(0.5, 2)
		px, py, pg := r.put(x), r.put(y), r.put(g)
		f := 2 * g.v[0] / float64(shape.Len())
		want := value{mapped(func(v ...float64) float64 { return f * (v[0] - v[1]) }, x, y),
			mapped(func(v ...float64) float64 { return f * (math.Abs(v[0]) + math.Abs(v[1])) }, x, y).v, 8}
		r.accumulates("MSEGrad", want, func(dst device.Tensor, acc device.Accum) error {
			return r.k.MSEGrad(r.s, dst, acc, pg.Tensor, px.Tensor, py.Tensor)
		})
	})
}

// batch describes logits: the number of rows and classes, and the magnitude of the numbers.
type batch struct {
	m, n int
	size float64
}

// batches has one whose logits overflow an exponential that is not shifted.
var batches = []batch{
	{1, 1, 2}, {1, 10, 4}, {7, 3, 4}, {5, 257, 4}, {33, 1000, 4}, {300, 10, 4}, {2, 2, 8000}, {3000, 33, 4},
}

// labels draws a label for every row. The first and the last class are among them.
func (r *rig) labels(m, n int) ([]int64, operand) {
	l := make([]int64, m)
	for i := range l {
		l[i] = r.rnd.Int64N(int64(n))
	}
	l[0], l[m-1] = 0, int64(n-1)
	return l, r.place(device.Int64, device.Shape{m}, bytesOf(l))
}

// softmax is the reference. It returns the probabilities, and log Σ exp of every row.
func softmax(x array) (p array, lse []float64) {
	m, n := x.shape[0], x.shape[1]
	p, lse = newArray(m, n), make([]float64, m)
	for i := range m {
		row := x.v[i*n : (i+1)*n]
		top := math.Inf(-1)
		for _, v := range row {
			top = max(top, v)
		}
		var s float64
		for _, v := range row {
			s += math.Exp(v - top)
		}
		lse[i] = top + math.Log(s)
		for j, v := range row {
			p.v[i*n+j] = math.Exp(v-top) / s
		}
	}
	return p, lse
}

func checkCrossEntropy(r *rig) {
	each(r, batches, func(c batch) {
		x := r.random(-c.size, c.size, c.m, c.n)
		labels, pl := r.labels(c.m, c.n)
		px := r.put(x)
		_, lse := softmax(x)
		want := value{newArray(), []float64{0}, 16}
		for i, l := range labels {
			v := x.v[i*c.n+int(l)]
			want.v[0] += (lse[i] - v) / float64(c.m)
			want.scale[0] += (math.Abs(lse[i]) + math.Abs(v)) / float64(c.m)
		}
		wantSums := rowSums(x, labels, lse)
		// The kernel computes e^x in the type of sums, and adds in Float64.
		wantSums.c = 8 * epsilon(r.sums()) / epsilon(device.Float64)
		what := fmt.Sprintf("CrossEntropy of %v", x.shape)
		loss, got := r.placed(r.sums(), newArray()), r.placed(device.Float64, newArray(2, c.m))
		r.ok(what, r.k.CrossEntropy(r.s, loss.Tensor, got.Tensor, px.Tensor, pl.Tensor))
		r.same(what, loss, want)
		r.same(what+", sums", got, wantSums)
	})
}

// rowSums returns the second result of CrossEntropy.
func rowSums(x array, labels []int64, lse []float64) value {
	m, n := x.shape[0], x.shape[1]
	sums := value{newArray(2, m), make([]float64, 2*m), 8}
	for i, l := range labels {
		v := x.v[i*n+int(l)]
		sums.v[i], sums.v[m+i] = lse[i]-v, lse[i]
		sums.scale[i], sums.scale[m+i] = 1+math.Abs(lse[i])+math.Abs(v), 1+math.Abs(lse[i])
	}
	return sums
}

// sums returns the type of a loss.
func (r *rig) sums() device.DType {
	if r.dt == device.Float64 {
		return device.Float64
	}
	return device.Float32
}

// placed is put for an operand of another type.
func (r *rig) placed(dt device.DType, a array) operand { return r.place(dt, a.shape, encode(dt, a.v)) }

func checkCrossEntropyInPlace(r *rig) {
	each(r, append(batches[:len(batches):len(batches)], batch{3, 8192, 4}, batch{2, 12008, 4}, batch{2, 33000, 4}), func(c batch) {
		x := r.random(-c.size, c.size, c.m, c.n)
		labels, pl := r.labels(c.m, c.n)
		p, lse := softmax(x)
		loss := value{newArray(c.m), make([]float64, c.m), 8}
		grad := value{p, make([]float64, c.m*c.n), 8}
		for i, v := range p.v {
			grad.scale[i] = v * (1 + c.size + math.Abs(lse[i/c.n]))
		}
		for i, l := range labels {
			if i%4 == 1 { // a row that is skipped
				labels[i] = kernels.NoLabel
				clear(grad.v[i*c.n : (i+1)*c.n])
				continue
			}
			at := i*c.n + int(l)
			loss.v[i] = lse[i] - x.v[at]
			loss.scale[i] = 1 + math.Abs(lse[i]) + math.Abs(x.v[at])
			grad.v[at]--
			grad.scale[at]++
		}
		pl = r.place(device.Int64, pl.Shape, bytesOf(labels))
		what, got := fmt.Sprintf("CrossEntropyInPlace of %v", x.shape), r.placed(r.sums(), newArray(c.m))
		r.from(what, x, grad, func(logits device.Tensor) error {
			return r.k.CrossEntropyInPlace(r.s, got.Tensor, logits, pl.Tensor)
		})
		r.same(what+", losses", got, loss)
	})
}

func checkCrossEntropyGrad(r *rig) {
	each(r, batches[:len(batches)-1], func(c batch) {
		x := r.random(-c.size, c.size, c.m, c.n)
		p, lse := softmax(x)
		labels, pl := r.labels(c.m, c.n)
		g := r.random(0.5, 2)
		g.v[0] = round(device.BFloat16, g.v[0])
		px, pg, psums := r.put(x), r.placed(r.sums(), g), r.placed(device.Float64, rowSums(x, labels, lse).array)
		want := value{newArray(c.m, c.n), make([]float64, c.m*c.n), 8}
		for i := range want.v {
			var hit float64
			if int64(i%c.n) == labels[i/c.n] {
				hit = 1
			}
			want.v[i] = g.v[0] * (p.v[i] - hit) / float64(c.m)
			// An absolute error in a difference of logits is a relative error of its exponential.
			want.scale[i] = g.v[0] * (p.v[i]*(1+c.size) + hit) / float64(c.m)
		}
		r.accumulates("CrossEntropyGrad", want, func(dst device.Tensor, acc device.Accum) error {
			return r.k.CrossEntropyGrad(r.s, dst, acc, pg.Tensor, psums.Tensor, px.Tensor, pl.Tensor)
		})
	})
}
