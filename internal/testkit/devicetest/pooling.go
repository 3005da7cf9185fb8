package devicetest

import (
	"fmt"
	"math"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

// poolCase describes a pooling of x [n c h w].
type poolCase struct {
	n, c, h, w int
	window     kernels.Window
}

func poolCases() []poolCase {
	one := pair(1, 1)
	return []poolCase{
		{2, 3, 6, 8, kernels.Window{Kernel: pair(2, 2), Stride: pair(2, 2), Dilation: one}},
		{1, 1, 1, 1, kernels.Window{Kernel: one, Stride: one, Dilation: one}},
		{2, 0, 4, 4, kernels.Window{Kernel: one, Stride: one, Dilation: one}},
		{1, 2, 7, 7, kernels.Window{Kernel: pair(3, 3), Stride: pair(2, 2), Padding: one, Dilation: one}},
		{2, 2, 7, 10, kernels.Window{Kernel: pair(3, 2), Stride: pair(1, 3), Padding: one, Dilation: one, Ceil: true}},
		{1, 3, 9, 9, kernels.Window{Kernel: pair(3, 3), Stride: one, Padding: one, Dilation: pair(2, 3)}},
		{1, 2, 1, 3, kernels.Window{Kernel: pair(2, 2), Stride: one, Padding: one, Dilation: pair(2, 2)}}, // some windows contain no elements
		{2, 16, 7, 9, kernels.Window{Kernel: pair(3, 3), Stride: pair(2, 2), Padding: one, Dilation: pair(2, 1)}},
		{3, 40, 14, 14, kernels.Window{Kernel: pair(3, 3), Stride: pair(2, 2), Padding: one, Dilation: one, Ceil: true}},
	}
}

func (c poolCase) out() device.Shape {
	return device.Shape{c.n, c.c, c.window.Out(0, c.h), c.window.Out(1, c.w)}
}

func checkMaxPool(r *rig) {
	each(r, poolCases(), func(c poolCase) {
		x := r.random(-2, 2, c.n, c.c, c.h, c.w)
		for i := range x.v { // many numbers are equal
			x.v[i] = math.Floor(x.v[i])
		}
		if len(x.v) > 8 {
			x.v[len(x.v)/2], x.v[0] = math.NaN(), math.Inf(-1)
		}
		out := c.out()
		y, where := newArray(out...), newArray(out...)
		w := c.window
		for i := range y.v {
			plane, oy, ox := i/(out[2]*out[3]), i/out[3]%out[2], i%out[3]
			best := -1
			for a := range w.Kernel[0] {
				for b := range w.Kernel[1] {
					h, v := oy*w.Stride[0]-w.Padding[0]+a*w.Dilation[0], ox*w.Stride[1]-w.Padding[1]+b*w.Dilation[1]
					if h < 0 || h >= c.h || v < 0 || v >= c.w {
						continue
					}
					at := h*c.w + v
					e := x.v[plane*c.h*c.w+at]
					if best < 0 || e > y.v[i] || e != e && y.v[i] == y.v[i] {
						best, y.v[i] = at, e
					}
				}
			}
			if where.v[i] = float64(best); best < 0 {
				y.v[i] = math.Inf(-1)
			}
		}
		g := r.random(-2, 2, out...)
		dx := value{newArray(x.shape...), make([]float64, len(x.v)), 8}
		for i, at := range where.v {
			if at < 0 {
				continue
			}
			j := i/(out[2]*out[3])*c.h*c.w + int(at)
			dx.v[j] += g.v[i]
			dx.scale[j] += math.Abs(g.v[i])
		}
		for _, last := range []bool{false, true} {
			in, want := imageLayout(last)
			w.ChannelsLast = last
			px, pg, at := r.put(in(x)), r.put(in(g)), in(where)
			index := r.place(device.Int32, at.shape, make([]byte, 4*out.Len()))
			label := fmt.Sprintf("MaxPool2d of %v, %+v", px.Shape, w)
			r.result(label, want(value{array: y}), func(dst device.Tensor) error {
				return r.k.MaxPool2d(r.s, dst, index.Tensor, px.Tensor, w)
			})
			r.same(label+": index", index, value{array: at})
			r.accumulates(label+": gradient", want(dx), func(dst device.Tensor, acc device.Accum) error {
				return r.k.MaxPool2dGrad(r.s, dst, acc, pg.Tensor, index.Tensor, w)
			})
		}
	})
}

func checkAvgPool(r *rig) {
	check := func(c poolCase, p kernels.AvgPool, out device.Shape) {
		x, g := r.random(-2, 2, c.n, c.c, c.h, c.w), r.random(-2, 2, out...)
		y := value{newArray(out...), make([]float64, out.Len()), 8}
		dx := value{newArray(x.shape...), make([]float64, len(x.v)), 8 + float64(out[2]*out[3])/8}
		for i := range y.v {
			plane, oy, ox := i/(out[2]*out[3]), i/out[3]%out[2], i%out[3]
			top, bottom, high := p.Region(0, oy, c.h, out[2])
			left, right, wide := p.Region(1, ox, c.w, out[3])
			for h := top; h < bottom; h++ {
				for w := left; w < right; w++ {
					j := (plane*c.h+h)*c.w + w
					y.v[i] += x.v[j] / float64(high*wide)
					y.scale[i] += math.Abs(x.v[j]) / float64(high*wide)
					dx.v[j] += g.v[i] / float64(high*wide)
					dx.scale[j] += math.Abs(g.v[i]) / float64(high*wide)
				}
			}
		}
		for _, last := range []bool{false, true} {
			in, want := imageLayout(last)
			p.ChannelsLast = last
			px, pg := r.put(in(x)), r.put(in(g))
			label := fmt.Sprintf("AvgPool2d of %v to %v, %+v", px.Shape, out, p)
			r.result(label, want(y), func(dst device.Tensor) error { return r.k.AvgPool2d(r.s, dst, px.Tensor, p) })
			r.accumulates(label+": gradient", want(dx), func(dst device.Tensor, acc device.Accum) error {
				return r.k.AvgPool2dGrad(r.s, dst, acc, pg.Tensor, p)
			})
		}
	}
	each(r, poolCases(), func(c poolCase) {
		for _, out := range []device.Shape{{c.n, c.c, 1, 1}, {c.n, c.c, 3, 2}, {c.n, c.c, 10, 11}, {c.n, c.c, 0, 4}} {
			check(c, kernels.AvgPool{Adaptive: true}, out)
			r.clean()
		}
		if c.window.Dilation == pair(1, 1) {
			for _, exclude := range []bool{false, true} {
				check(c, kernels.AvgPool{Window: c.window, ExcludePadding: exclude}, c.out())
				r.clean()
			}
		}
	})
}
