package devicetest

import (
	"fmt"
	"math"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

func checkRotate(r *rig) {
	type turning struct {
		shape                device.Shape
		rows, pairs          int // the sizes of the angles
		heads                int
		interleaved, inverse bool // interleaved: the pairs are neighbours; inverse: the angles are subtracted
	}
	each(r, []turning{
		{shape: device.Shape{0, 2, 1, 4}, rows: 2, pairs: 2, heads: 1},
		{shape: device.Shape{2, 0, 1, 4}, rows: 0, pairs: 2, heads: 1},
		{shape: device.Shape{1, 1, 1, 2}, rows: 1, pairs: 1, heads: 1},
		{shape: device.Shape{2, 3, 2, 5}, rows: 4, pairs: 2, heads: 2},
		{shape: device.Shape{2, 3, 4, 8}, rows: 3, pairs: 4, heads: 3, interleaved: true},
		{shape: device.Shape{1, 7, 3, 64}, rows: 9, pairs: 16, heads: 2, inverse: true},
		{shape: device.Shape{2, 5, 3, 16}, rows: 6, pairs: 8, heads: 2},
		{shape: device.Shape{2, 5, 3, 16}, rows: 6, pairs: 8, heads: 3},
		{shape: device.Shape{2, 3, 2, 64}, rows: 3, pairs: 32, heads: 2, inverse: true},
		{shape: device.Shape{3, 5, 2, 6}, rows: 5, pairs: 3, heads: 2, interleaved: true, inverse: true},
	}, func(c turning) {
		x, angles := r.random(-2, 2, c.shape...), r.random(-3, 3, c.rows, c.pairs)
		dt := device.Float32
		if r.dt == device.Float64 {
			dt = device.Float64
		}
		table := func(f func(float64) float64) (values []float64, o operand) {
			for _, a := range angles.v {
				values = append(values, round(dt, f(a)))
			}
			return values, r.place(dt, angles.shape, encode(dt, values))
		}
		cos, pc := table(math.Cos)
		sin, ps := table(math.Sin)
		want := value{newArray(c.shape...), make([]float64, len(x.v)), 8}
		for i, v := range x.v {
			d, head, row := i%c.shape[3], i/c.shape[3]%c.shape[2], i/c.shape[3]/c.shape[2]%c.shape[1]
			want.v[i], want.scale[i] = v, math.Abs(v)
			if head >= c.heads || d >= 2*c.pairs {
				continue
			}
			pair, second, other := d%c.pairs, d >= c.pairs, i+c.pairs
			if c.interleaved {
				pair, second, other = d/2, d%2 == 1, i+1
			}
			s := -sin[row*c.pairs+pair]
			if second {
				other, s = 2*i-other, -s
			}
			if c.inverse {
				s = -s
			}
			want.v[i] = v*cos[row*c.pairs+pair] + x.v[other]*s
			want.scale[i] += math.Abs(x.v[other])
		}
		px := r.put(x)
		r.accumulates(fmt.Sprintf("Rotate %+v", c), want, func(dst device.Tensor, acc device.Accum) error {
			return r.k.Rotate(r.s, dst, acc, px.Tensor, kernels.Rotation{Cos: pc.Tensor, Sin: ps.Tensor, Heads: c.heads, Interleaved: c.interleaved, Inverse: c.inverse})
		})
		if c.heads < c.shape[2] || c.interleaved || c.inverse {
			return
		}
		few := r.random(-2, 2, c.shape[0], c.shape[1], 1, c.shape[3]) // beside x, whose heads may be more
		pfew, beside := r.put(few), r.put(newArray(few.shape...))
		for i := range 2 { // x first, then second
			r.result(fmt.Sprintf("RotateBoth, %d: %+v", i, c), want, func(dst device.Tensor) error {
				dsts, xs := [2]device.Tensor{beside.Tensor, beside.Tensor}, [2]device.Tensor{pfew.Tensor, pfew.Tensor}
				dsts[i], xs[i] = dst, px.Tensor
				return r.k.RotateBoth(r.s, dsts, xs, pc.Tensor, ps.Tensor)
			})
		}
	})
	t := func(shape ...int) device.Tensor {
		return r.place(device.Float32, shape, make([]byte, 4*device.Shape(shape).Len())).Tensor
	}
	if r.dt != device.Float32 {
		return
	}
	for name, call := range map[string]func() error{
		"few rows of angles": func() error {
			return r.k.Rotate(r.s, t(1, 3, 1, 4), device.Store, t(1, 3, 1, 4), kernels.Rotation{Cos: t(2, 2), Sin: t(2, 2), Heads: 1})
		},
		"too many pairs": func() error {
			return r.k.Rotate(r.s, t(1, 3, 1, 4), device.Store, t(1, 3, 1, 4), kernels.Rotation{Cos: t(3, 3), Sin: t(3, 3), Heads: 1})
		},
		"too many heads": func() error {
			return r.k.Rotate(r.s, t(1, 3, 1, 4), device.Store, t(1, 3, 1, 4), kernels.Rotation{Cos: t(3, 2), Sin: t(3, 2), Heads: 2})
		},
	} {
		misfit[*device.ShapeError](r, "Rotate with "+name, call)
	}
}
