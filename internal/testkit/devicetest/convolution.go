package devicetest

import (
	"fmt"
	"math"
	"slices"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

// convCase is a convolution of x [n c h w] to o channels.
type convCase struct {
	n, c, h, w, o int
	kernel        [2]int
	p             kernels.Conv
}

func pair(a, b int) [2]int { return [2]int{a, b} }

func convCases() []convCase {
	one := pair(1, 1)
	plain := kernels.Conv{Stride: one, Dilation: one, Groups: 1}
	return []convCase{
		{2, 3, 5, 6, 4, pair(3, 3), kernels.Conv{Stride: one, Padding: one, Dilation: one, Groups: 1}},
		{1, 1, 1, 1, 1, one, plain}, {3, 4, 3, 5, 7, one, plain}, {0, 2, 4, 4, 3, pair(3, 3), plain},
		{2, 0, 4, 4, 3, one, plain}, {2, 3, 4, 4, 0, one, plain},
		{2, 4, 9, 8, 6, pair(3, 2), kernels.Conv{Stride: pair(2, 1), Padding: pair(1, 2), Dilation: pair(2, 3), Groups: 2}},
		{2, 4, 6, 6, 8, pair(3, 3), kernels.Conv{Stride: pair(1, 2), Padding: one, Dilation: one, Groups: 4}},
		{1, 2, 7, 5, 3, pair(2, 4), kernels.Conv{Stride: pair(3, 3), Padding: pair(0, 3), Dilation: one, Groups: 1}},
		{2, 3, 2, 2, 2, pair(2, 2), kernels.Conv{Stride: pair(4, 4), Padding: pair(3, 3), Dilation: one, Groups: 1}}, // some windows contain only padding
		{1, 2, 1, 2, 2, pair(1, 3), kernels.Conv{Stride: pair(3, 1), Padding: pair(2, 2), Dilation: pair(2, 2), Groups: 1}},
		{2, 3, 9, 11, 17, pair(5, 5), kernels.Conv{Stride: one, Padding: pair(2, 2), Dilation: one, Groups: 1}},
		{5, 3, 17, 19, 33, pair(5, 5), kernels.Conv{Stride: one, Padding: pair(2, 2), Dilation: one, Groups: 1}},
	}
}

// each calls f for every product, with the indices of its operands in x and w and of its element of
// the result. ix is -1 for a product with padding.
func (c convCase) each(out device.Shape, f func(ix, iw, iy int)) {
	per, perOut := c.c/c.p.Groups, c.o/c.p.Groups
	for iy := range out.Len() {
		n, o, y, x := iy/(c.o*out[2]*out[3]), iy/(out[2]*out[3])%c.o, iy/out[3]%out[2], iy%out[3]
		for ch := range per {
			for i := range c.kernel[0] {
				for j := range c.kernel[1] {
					h, w := y*c.p.Stride[0]-c.p.Padding[0]+i*c.p.Dilation[0], x*c.p.Stride[1]-c.p.Padding[1]+j*c.p.Dilation[1]
					ix := -1
					if h >= 0 && h < c.h && w >= 0 && w < c.w {
						ix = ((n*c.c+o/perOut*per+ch)*c.h+h)*c.w + w
					}
					f(ix, ((o*per+ch)*c.kernel[0]+i)*c.kernel[1]+j, iy)
				}
			}
		}
	}
}

// channelsLast returns a [n c h w] as [n h w c].
func channelsLast(a array) array {
	s := a.shape
	b := newArray(s[0], s[2], s[3], s[1])
	for i, v := range a.v {
		n, c, at := i/(s[1]*s[2]*s[3]), i/(s[2]*s[3])%s[1], i%(s[2]*s[3])
		b.v[(n*s[2]*s[3]+at)*s[1]+c] = v
	}
	return b
}

// imageLayout returns how a check brings arrays [n c h w] and expected results into the layout under test.
func imageLayout(last bool) (arrays func(array) array, values func(value) value) {
	if !last {
		return func(a array) array { return a }, func(v value) value { return v }
	}
	return channelsLast, func(v value) value {
		out := value{array: channelsLast(v.array), c: v.c}
		if v.scale != nil {
			out.scale = channelsLast(array{v.shape, v.scale}).v
		}
		return out
	}
}

func checkConv2d(r *rig) {
	cases := convCases()
	if r.quick {
		cases = cases[:len(cases)-1]
	}
	each(r, cases, func(c convCase) {
		x, w, b := r.random(-2, 2, c.n, c.c, c.h, c.w), r.random(-2, 2, c.o, c.c/c.p.Groups, c.kernel[0], c.kernel[1]), r.random(-2, 2, c.o)
		out := c.p.Shape(x.shape, w.shape)
		g := r.random(-2, 2, out...)
		sums := func(shape device.Shape, terms int) value {
			a := newArray(shape...)
			return value{a, make([]float64, len(a.v)), 8 + float64(terms)/8}
		}
		y := sums(out, w.shape.Len()/max(c.o, 1))
		dx, dw := sums(x.shape, c.o*c.kernel[0]*c.kernel[1]), sums(w.shape, c.n*out[2]*out[3])
		add := func(v value, i int, p float64) {
			v.v[i] += p
			v.scale[i] += math.Abs(p)
		}
		c.each(out, func(ix, iw, iy int) {
			if ix >= 0 {
				add(y, iy, x.v[ix]*w.v[iw])
				add(dx, ix, g.v[iy]*w.v[iw])
				add(dw, iw, g.v[iy]*x.v[ix])
			}
		})
		pb := r.put(b)
		biased := value{array{y.shape, slices.Clone(y.v)}, slices.Clone(y.scale), y.c}
		for i := range biased.v {
			add(biased, i, b.v[i/(out[2]*out[3])%c.o])
		}
		for _, last := range []bool{false, true} {
			in, want := imageLayout(last)
			px, pw, pg, p := r.put(in(x)), r.put(in(w)), r.put(in(g)), c.p
			p.ChannelsLast = last
			label := fmt.Sprintf("of %v by %v, %+v", px.Shape, pw.Shape, p)
			r.ok("PrepareConv2d "+label, r.k.PrepareConv2d(r.s, r.put(nan(in(y.array).shape)).Tensor, px.Tensor, pw.Tensor, p))
			r.result("Conv2d "+label, want(y), func(dst device.Tensor) error {
				return r.k.Conv2d(r.s, dst, px.Tensor, pw.Tensor, device.Tensor{}, p)
			})
			r.result("Conv2d with bias "+label, want(biased), func(dst device.Tensor) error {
				return r.k.Conv2d(r.s, dst, px.Tensor, pw.Tensor, pb.Tensor, p)
			})
			r.accumulates("Conv2dGradInput "+label, want(dx), func(dst device.Tensor, acc device.Accum) error {
				return r.k.Conv2dGradInput(r.s, dst, acc, pg.Tensor, pw.Tensor, p)
			})
			r.accumulates("Conv2dGradWeight "+label, want(dw), func(dst device.Tensor, acc device.Accum) error {
				return r.k.Conv2dGradWeight(r.s, dst, acc, pg.Tensor, px.Tensor, p)
			})
		}
	})
}

// checkConvNaN checks that a NaN in an image, a weight or a gradient reaches all elements that
// depend on it. A NaN in an image must reach no others.
func checkConvNaN(r *rig) {
	c := convCase{2, 2, 5, 5, 3, pair(3, 3), kernels.Conv{Stride: pair(1, 1), Dilation: pair(1, 1), Groups: 1}}
	x, w := r.random(-2, 2, c.n, c.c, c.h, c.w), r.random(1, 2, c.o, c.c, 3, 3)
	out := c.p.Shape(x.shape, w.shape)
	g := r.random(-2, 2, out...)
	for bad := range 3 {
		x, w, g := array{x.shape, append([]float64{}, x.v...)}, array{w.shape, append([]float64{}, w.v...)}, array{g.shape, append([]float64{}, g.v...)}
		for i, a := range []array{x, w, g} {
			if i == bad {
				a.v[len(a.v)/2] = math.NaN()
			}
		}
		y, dx, dw := newArray(out...), newArray(x.shape...), newArray(w.shape...)
		c.each(out, func(ix, iw, iy int) {
			y.v[iy] += x.v[ix] * w.v[iw]
			dx.v[ix] += g.v[iy] * w.v[iw]
			dw.v[iw] += g.v[iy] * x.v[ix]
		})
		px, pw, pg, py, pdx, pdw := r.put(x), r.put(w), r.put(g), r.put(y), r.put(dx), r.put(dw)
		label := fmt.Sprintf("convolution with a NaN in operand %d", bad)
		r.ok(label, r.k.Conv2d(r.s, py.Tensor, px.Tensor, pw.Tensor, device.Tensor{}, c.p))
		r.ok(label, r.k.Conv2dGradInput(r.s, pdx.Tensor, device.Store, pg.Tensor, pw.Tensor, c.p))
		r.ok(label, r.k.Conv2dGradWeight(r.s, pdw.Tensor, device.Store, pg.Tensor, px.Tensor, c.p))
		for i, o := range []operand{py, pdx, pdw} {
			want := []array{y, dx, dw}[i]
			for j, v := range decode(r.dt, r.read(label, o)) {
				if (v != v) != (want.v[j] != want.v[j]) {
					r.fail("%s: element %d of result %d is %v, want %v", label, j, i, v, want.v[j])
				}
			}
		}
		r.clean()
	}
}
