package cpu

import (
	"math"
	"slices"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/internal/operand"
)

func (k *kernelSet) Softmax(_ device.Stream, dst, x device.Tensor, axis int, log bool) error {
	l := operands.Softmax(dst, x, axis)
	pick(dst, softmaxLines[float32], softmaxLines[float64])(k, l, dst, x, log)
	return nil
}

func (k *kernelSet) SoftmaxGrad(_ device.Stream, dst device.Tensor, acc device.Accum, g, y device.Tensor, axis int, log bool) error {
	l := operands.SoftmaxGrad(dst, g, y, axis)
	pick(dst, softmaxLinesGrad[float32], softmaxLinesGrad[float64])(k, l, dst, acc, g, y, log)
	return nil
}

// eachLines calls f for groups of neighbouring lines, at most a tile of them. The first elements of
// a group's lines are at, at+1, ..., at+width-1.
func (k *kernelSet) eachLines(l operand.Lines, cost int, f func(at, width int)) {
	tiles := (l.Inner + tile - 1) / tile
	k.each(l.Outer*tiles, l.N*min(l.Inner, tile)*cost, func(lo, hi int) {
		for ; lo < hi; lo++ {
			from := lo % tiles * tile
			f(lo/tiles*l.N*l.Inner+from, min(tile, l.Inner-from))
		}
	})
}

func softmaxLines[T float](k *kernelSet, l operand.Lines, dst, x device.Tensor, log bool) {
	d, v := device.Elements[T](dst), device.Elements[T](x)
	if len(d) == 0 {
		return
	}
	if l.Inner == 1 {
		k.each(l.Outer, 8*l.N, func(lo, hi int) {
			for ; lo < hi; lo++ {
				row, out := v[lo*l.N:(lo+1)*l.N], d[lo*l.N:(lo+1)*l.N]
				if log {
					top, rest := logSumExp(row)
					for i, x := range row {
						out[i] = T(float64(x) - top - rest)
					}
				} else {
					softmax(out, row)
				}
			}
		})
		return
	}
	k.eachLines(l, 8, func(at, width int) {
		var tops, sums [tile]float64 // sums excludes the term of the top, which is 1
		var where [tile]int
		for i, x := range v[at : at+width] {
			tops[i] = float64(x)
		}
		for j := 1; j < l.N; j++ {
			for i, x := range v[at+j*l.Inner:][:width] {
				if x := float64(x); x > tops[i] || x != x {
					tops[i], where[i] = x, j
				}
			}
		}
		for i := range width {
			sums[i] = tops[i] - tops[i] // NaN if the top is infinite
		}
		for j := range l.N {
			for i, x := range v[at+j*l.Inner:][:width] {
				if j != where[i] {
					sums[i] += math.Exp(float64(x) - tops[i])
				}
			}
		}
		for i := range width {
			if log {
				sums[i] = math.Log1p(sums[i])
			} else {
				sums[i]++
			}
		}
		for j := range l.N {
			out := d[at+j*l.Inner:][:width]
			for i, x := range v[at+j*l.Inner:][:width] {
				if log {
					out[i] = T(float64(x) - tops[i] - sums[i])
				} else {
					out[i] = T(math.Exp(float64(x)-tops[i]) / sums[i])
				}
			}
		}
	})
}

// softmax writes the softmax of x to p, which may be x. The largest element is subtracted first, so that no
// exponential overflows.
func softmax[T float](p, x []T) {
	s := exps(p, x, float64(largest(x)))
	for i, e := range p {
		p[i] = T(float64(e) / s)
	}
}

// logSumExp returns log Σ exp(x) as the sum of the largest element and of the rest. The rest is accurate near 0,
// because it excludes the largest element's term, which is 1.
func logSumExp[T float](x []T) (top, rest float64) {
	most := largest(x)
	top = float64(most)
	if math.IsNaN(top) || math.IsInf(top, 0) {
		return top, math.NaN()
	}
	at := slices.Index(x, most)
	return top, math.Log1p(exps(nil, x[:at], top) + exps(nil, x[at+1:], top))
}

// largest returns the largest element, or a NaN, or -Inf of none.
func largest[T float](x []T) T {
	if most, ok := vectorLargest(float32s(x)); ok {
		return T(most)
	}
	most := T(math.Inf(-1))
	for _, v := range x {
		most = max(most, v)
	}
	return most
}

// exps writes the exponentials of x minus shift to dst unless it is nil, and returns their sum.
func exps[T float](dst, x []T, shift float64) (sum float64) {
	if sum, ok := vectorExps(float32s(dst), float32s(x), shift); ok {
		return sum
	}
	for i, v := range x {
		e := math.Exp(float64(v) - shift)
		sum += e
		if dst != nil {
			dst[i] = T(e)
		}
	}
	return sum
}

// softmaxLinesGrad computes the gradient y·(g - d), where d is the sum of g·y along the line. The gradient of
// the logarithm is g - e^y·d, where d is the sum of g.
func softmaxLinesGrad[T float](k *kernelSet, l operand.Lines, dst device.Tensor, acc device.Accum, g, y device.Tensor, log bool) {
	d, gs, ys := device.Elements[T](dst), device.Elements[T](g), device.Elements[T](y)
	if len(d) == 0 {
		return
	}
	cost := 2
	if log {
		cost = 8
	}
	if l.Inner == 1 { // the elements of a contiguous line are processed in tiles
		k.each(l.Outer, cost*l.N, func(lo, hi int) {
			for ; lo < hi; lo++ {
				g, y := gs[lo*l.N:(lo+1)*l.N], ys[lo*l.N:(lo+1)*l.N]
				var sum float64
				for i, v := range g {
					if log {
						sum += float64(v)
					} else {
						sum += float64(v) * float64(y[i])
					}
				}
				softmaxGradOf(d[lo*l.N:(lo+1)*l.N], acc, g, y, func(int) float64 { return sum }, log)
			}
		})
		return
	}
	k.eachLines(l, cost, func(at, width int) {
		var sums [tile]float64
		for j := range l.N {
			from := at + j*l.Inner
			y := ys[from : from+width]
			for i, v := range gs[from : from+width] {
				if log {
					sums[i] += float64(v)
				} else {
					sums[i] += float64(v) * float64(y[i])
				}
			}
		}
		for j := range l.N {
			from := at + j*l.Inner
			softmaxGradOf(d[from:from+width], acc, gs[from:from+width], ys[from:from+width], func(i int) float64 { return sums[i] }, log)
		}
	})
}

// softmaxGradOf accumulates the gradients of some elements. sum(i) returns the sum along the line of element i.
func softmaxGradOf[T float](dst []T, acc device.Accum, g, y []T, sum func(i int) float64, log bool) {
	var buf [tile]T
	for lo := 0; lo < len(dst); lo += tile {
		t := buf[:min(tile, len(dst)-lo)]
		for i := range t {
			g, y := float64(g[lo+i]), float64(y[lo+i])
			switch d := sum(lo + i); {
			case !log:
				t[i] = T(y * (g - d))
			case y > -0.5: // e^y may be close to 1, and g close to d: g - e^y·d would lose digits
				m := math.Expm1(y)
				t[i] = T(-m*g - (m+1)*(d-g))
			default:
				t[i] = T(g - math.Exp(y)*d)
			}
		}
		accumulate(dst[lo:lo+len(t)], acc, t)
	}
}
