package devicetest

import (
	"fmt"
	"math"
	"slices"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

func checkWriteRows(r *rig) {
	type writing struct {
		b, s, t, n int
		first      []int64
	}
	each(r, []writing{
		{0, 3, 1, 4, nil}, {2, 3, 0, 4, []int64{1, 0}}, {1, 1, 1, 1, []int64{0}}, {3, 5, 1, 7, []int64{4, 0, 2}}, {2, 9, 4, 64, []int64{5, 1}}, {1, 2, 1, 2048, []int64{1}},
	}, func(c writing) {
		before, x := r.random(-2, 2, c.b, c.s, c.n), r.random(-2, 2, c.b, c.t, c.n)
		want := value{newArray(c.b, c.s, c.n), make([]float64, len(before.v)), 0}
		copy(want.v, before.v)
		for b, at := range c.first {
			copy(want.v[(b*c.s+int(at))*c.n:], x.v[b*c.t*c.n:(b+1)*c.t*c.n])
		}
		first := r.place(device.Int64, device.Shape{c.b}, bytesOf(c.first))
		px := r.put(x)
		r.from(fmt.Sprintf("WriteRows %+v", c), before, want, func(dst device.Tensor) error {
			return r.k.WriteRows(r.s, dst, px.Tensor, first.Tensor)
		})
	})
}

func checkAttendLast(r *rig) {
	type attending struct {
		heads, keyHeads, d, s int
		last                  []int64
		window                int
	}
	each(r, []attending{
		{1, 1, 1, 1, []int64{0}, 0}, {2, 1, 4, 5, []int64{4, 0}, 0}, {4, 4, 64, 300, []int64{299, 255, 256}, 0}, {9, 1, 80, 40, []int64{39, 7}, 0},
		{12, 2, 33, 17, []int64{16}, 0}, {4, 2, 128, 700, []int64{699, 3, 510}, 0}, {6, 3, 256, 9, []int64{8}, 0}, {4, 2, 16, 600, []int64{599, 300, 514}, 5},
		{6, 1, 8, 600, []int64{599, 100}, 0},
	}, func(c attending) {
		b, group := len(c.last), c.heads/c.keyHeads
		// The cache lacks the last position, which k and v have.
		q, keys, values := r.random(-2, 2, b, c.heads, c.d), r.random(-2, 2, b, c.s, c.keyHeads, c.d), r.random(-2, 2, b, c.s, c.keyHeads, c.d)
		scale := 1 / math.Sqrt(float64(c.d))
		want := value{newArray(b, c.heads, c.d), make([]float64, len(q.v)), 64}
		for i := range b * c.heads {
			row, head := i/c.heads, i%c.heads/group
			at := func(p int) int { return ((row*c.s+p)*c.keyHeads + head) * c.d }
			from, to := 0, int(c.last[row])+1
			if c.window > 0 {
				from = max(0, to-c.window)
			}
			weights, top := make([]float64, c.s), math.Inf(-1)
			for p := from; p < to; p++ {
				for j := range c.d {
					weights[p] += scale * q.v[i*c.d+j] * keys.v[at(p)+j]
				}
				top = max(top, weights[p])
			}
			sum := 0.0
			for p := from; p < to; p++ {
				weights[p] = math.Exp(weights[p] - top)
				sum += weights[p]
			}
			for p := from; p < to; p++ {
				for j := range c.d {
					term := weights[p] / sum * values.v[at(p)+j]
					want.v[i*c.d+j] += term
					want.scale[i*c.d+j] += math.Abs(term)
				}
			}
		}
		last := r.place(device.Int64, device.Shape{b}, bytesOf(c.last))
		split := func(all array) (cache, row operand) {
			n := c.keyHeads * c.d
			lacking, lasts := array{all.shape, slices.Clone(all.v)}, newArray(b, c.keyHeads, c.d)
			for i, at := range c.last {
				from := lacking.v[(i*c.s+int(at))*n:][:n]
				copy(lasts.v[i*n:], from)
				clear(from)
			}
			return r.put(lacking), r.put(lasts)
		}
		pq := r.put(q)
		pk, k := split(keys)
		pv, v := split(values)
		label := fmt.Sprintf("AttendLast %+v", c)
		arrived := r.place(device.Int32, device.Shape{b, c.keyHeads}, make([]byte, 4*b*c.keyHeads))
		r.result(label, want, func(dst device.Tensor) error {
			return r.k.AttendLast(r.s, dst, kernels.Last{
				Q: pq.Tensor, K: k.Tensor, V: v.Tensor, Keys: pk.Tensor, Values: pv.Tensor, Last: last.Tensor, Arrived: arrived.Tensor, Scale: scale, Window: c.window,
			})
		})
		r.same(label+", the keys", pk, value{keys, make([]float64, len(keys.v)), 0})
		r.same(label+", the values", pv, value{values, make([]float64, len(values.v)), 0})
	})
}
