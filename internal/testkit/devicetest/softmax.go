package devicetest

import (
	"fmt"
	"math"

	"github.com/goddp/goddp/device"
)

// softmaxCase is a shape, the axis along which it is normalised, and the magnitude of the numbers.
type softmaxCase struct {
	shape device.Shape
	axis  int
	size  float64
}

// softmaxes has one whose exponentials overflow unless they are shifted.
var softmaxes = []softmaxCase{
	{device.Shape{}, 0, 2}, {device.Shape{0}, 0, 2}, {device.Shape{1}, 0, 2}, {device.Shape{7}, 0, 4}, {device.Shape{0, 3}, 1, 4}, {device.Shape{3, 0}, 1, 4},
	{device.Shape{0, 3}, 0, 4}, {device.Shape{3, 5}, 0, 4}, {device.Shape{3, 5}, 1, 4}, {device.Shape{2, 2}, 1, 8000}, {device.Shape{2, 3, 4}, 0, 4},
	{device.Shape{2, 3, 4}, 1, 4}, {device.Shape{2, 3, 4}, 2, 4}, {device.Shape{5, 257}, 1, 4}, {device.Shape{300, 16}, 1, 4}, {device.Shape{3, 1025}, 1, 4},
	{device.Shape{2, 4096}, 1, 4}, {device.Shape{2, 40, 33}, 1, 4}, {device.Shape{2, 5, 300}, 1, 4}, {device.Shape{1025, 3}, 0, 4},
}

// line returns the indices of the elements of the line that begins at element i, or nil if no line
// begins there.
func line(shape device.Shape, axis, i int) (at []int) {
	n, inner := 1, 1
	if len(shape) > 0 {
		n, inner = shape[axis], device.Shape(shape[axis+1:]).Len()
	}
	first := i/(n*inner)*(n*inner) + i%inner
	if first != i {
		return nil
	}
	for j := range n {
		at = append(at, i+j*inner)
	}
	return at
}

// softmaxOf is the reference. It returns the softmax along an axis, and its logarithm.
func softmaxOf(x array, axis int) (p, log array) {
	p, log = newArray(x.shape...), newArray(x.shape...)
	for i := range x.v {
		at := line(x.shape, axis, i)
		top, s := math.Inf(-1), 0.
		for _, j := range at {
			top = max(top, x.v[j])
		}
		for _, j := range at {
			s += math.Exp(x.v[j] - top)
		}
		for _, j := range at {
			p.v[j], log.v[j] = math.Exp(x.v[j]-top)/s, x.v[j]-top-math.Log(s)
		}
	}
	return p, log
}

func checkSoftmax(r *rig) {
	each(r, softmaxes, func(c softmaxCase) {
		x := r.random(-c.size, c.size, c.shape...)
		r.softmax(fmt.Sprintf("of %v along axis %d", c.shape, c.axis), x, c.axis, c.size)
	})
}

// softmax checks the softmax of x and its logarithm, each also in place.
func (r *rig) softmax(what string, x array, axis int, size float64) {
	px := r.put(x)
	p, log := softmaxOf(x, axis)
	// An absolute error in a difference is a relative error of its exponential.
	wants := []value{
		{p, mapped(func(v ...float64) float64 { return v[0] * (1 + size) }, p).v, 8},
		{log, mapped(func(v ...float64) float64 { return math.Abs(v[0]) + math.Abs(v[1]) + 1 }, log, x).v, 8},
	}
	for i, isLog := range []bool{false, true} {
		label := fmt.Sprintf("Softmax (logarithm: %v) %s", isLog, what)
		r.result(label, wants[i], func(dst device.Tensor) error { return r.k.Softmax(r.s, dst, px.Tensor, axis, isLog) })
		r.from(label+", in place", x, wants[i], func(dst device.Tensor) error { return r.k.Softmax(r.s, dst, dst, axis, isLog) })
	}
}

func checkSoftmaxGrad(r *rig) {
	each(r, softmaxes, func(c softmaxCase) {
		size := min(c.size, 4)
		x, g := r.random(-size, size, c.shape...), r.random(-2, 2, c.shape...)
		p, log := softmaxOf(x, c.axis)
		pg := r.put(g)
		for _, isLog := range []bool{false, true} {
			y := p
			if isLog {
				y = log
			}
			y = mapped(func(v ...float64) float64 { return round(r.dt, v[0]) }, y)
			py := r.put(y)
			want := value{newArray(c.shape...), make([]float64, len(y.v)), 16}
			for first := range y.v {
				at := line(c.shape, c.axis, first)
				var sum, scale float64
				for _, i := range at {
					v := g.v[i]
					if !isLog {
						v *= y.v[i]
					}
					sum += v
					scale += math.Abs(v)
				}
				for _, i := range at {
					if isLog {
						want.v[i] = g.v[i] - math.Exp(y.v[i])*sum
						want.scale[i] = math.Abs(g.v[i]) + math.Exp(y.v[i])*scale*(1+math.Abs(y.v[i]))
					} else {
						want.v[i] = y.v[i] * (g.v[i] - sum)
						want.scale[i] = y.v[i] * (math.Abs(g.v[i]) + scale)
					}
				}
			}
			label := fmt.Sprintf("SoftmaxGrad (logarithm: %v) of %v along axis %d", isLog, c.shape, c.axis)
			r.accumulates(label, want, func(dst device.Tensor, acc device.Accum) error {
				return r.k.SoftmaxGrad(r.s, dst, acc, pg.Tensor, py.Tensor, c.axis, isLog)
			})
			r.from(label+", over g", g, want, func(dst device.Tensor) error {
				return r.k.SoftmaxGrad(r.s, dst, device.Store, dst, py.Tensor, c.axis, isLog)
			})
		}
	})
}

// nanSoftmax checks four lines: one with a NaN, one with +Inf and one of -Inf alone become NaN; one
// with some -Inf has probability 0 there, and logarithm -Inf.
func nanSoftmax(r *rig) {
	for _, n := range []int{3, 64, 1100} {
		for _, axis := range []int{0, 1} {
			for _, at := range []int{0, n / 2, n - 1} {
				x := r.random(-4, 4, 5, n)
				if axis == 0 {
					x.shape = device.Shape{n, 5}
				}
				set := func(line, i int, v float64) {
					if axis == 1 {
						x.v[line*n+i] = v
					} else {
						x.v[i*5+line] = v
					}
				}
				set(0, at, math.NaN())
				set(1, at, math.Inf(1))
				for i := range n {
					set(2, i, math.Inf(-1))
					if i != at {
						set(3, i, math.Inf(-1))
					}
				}
				r.softmax(fmt.Sprintf("of %v along axis %d with what is not finite at %d", x.shape, axis, at), x, axis, 4)
				r.clean()
			}
		}
	}
}
