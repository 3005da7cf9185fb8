package devicetest

import (
	"fmt"
	"math"
	"slices"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

// attending is the description of an attention to check.
type attending struct {
	b, h, hkv, t, s, d int
	causal             bool
	window             int
	documents          []int        // the lengths of the documents of each row, which begins with another one; nil for none
	mask               device.Shape // broadcasts to [b h t s]; nil for no mask
	added              bool         // whether the mask is added, rather than a boolean
	packed             bool         // whether q, k and v lie in one buffer, and also their gradients
}

func (c attending) String() string {
	return fmt.Sprintf("attention of q [%d %d %d %d] and k [%d %d %d %d], causal %t, window %d, documents %v, mask %v, added %t, packed %t",
		c.b, c.h, c.t, c.d, c.b, c.hkv, c.s, c.d, c.causal, c.window, c.documents, c.mask, c.added, c.packed)
}

// attendings has head sizes at and next to those that tensor cores support, and lengths at and next
// to the bounds of tiles.
var attendings = []attending{
	{b: 0, h: 1, hkv: 1, t: 2, s: 2, d: 2},
	{b: 1, h: 2, hkv: 1, t: 0, s: 3, d: 4},
	{b: 1, h: 2, hkv: 1, t: 3, s: 0, d: 4},
	{b: 1, h: 1, hkv: 1, t: 1, s: 1, d: 1},
	{b: 1, h: 1, hkv: 1, t: 1, s: 1, d: 64, causal: true, packed: true},
	{b: 2, h: 2, hkv: 2, t: 5, s: 7, d: 3, mask: device.Shape{7}},
	{b: 2, h: 4, hkv: 2, t: 19, s: 19, d: 16, causal: true, packed: true},
	{b: 2, h: 2, hkv: 1, t: 33, s: 40, d: 32, mask: device.Shape{2, 1, 33, 40}},
	{b: 2, h: 2, hkv: 2, t: 34, s: 66, d: 24, mask: device.Shape{2, 34, 66}, added: true},
	{b: 1, h: 2, hkv: 1, t: 63, s: 65, d: 64, causal: true, mask: device.Shape{1, 65}},
	{b: 1, h: 1, hkv: 1, t: 65, s: 63, d: 80, causal: true},
	{b: 1, h: 2, hkv: 2, t: 130, s: 130, d: 64, causal: true, packed: true},
	{b: 1, h: 2, hkv: 1, t: 130, s: 70, d: 64, causal: true},
	{b: 1, h: 1, hkv: 1, t: 40, s: 100, d: 128, mask: device.Shape{40, 1}, added: true},
	{b: 1, h: 1, hkv: 1, t: 20, s: 20, d: 128, causal: true},
	{b: 1, h: 1, hkv: 1, t: 9, s: 33, d: 256},
	{b: 1, h: 2, hkv: 1, t: 130, s: 130, d: 64, causal: true, window: 1, packed: true},
	{b: 2, h: 2, hkv: 1, t: 150, s: 150, d: 32, causal: true, window: 33},
	{b: 1, h: 2, hkv: 2, t: 200, s: 200, d: 64, causal: true, window: 70, packed: true},
	{b: 1, h: 1, hkv: 1, t: 140, s: 90, d: 24, window: 20},
	{b: 1, h: 1, hkv: 1, t: 90, s: 90, d: 128, causal: true, window: 40, mask: device.Shape{90}},
	{b: 3, h: 2, hkv: 1, t: 9, s: 9, d: 8, causal: true, documents: []int{1, 4, 3}},
	{b: 2, h: 2, hkv: 1, t: 210, s: 210, d: 32, causal: true, documents: []int{1, 31, 130, 2}, packed: true},
	{b: 2, h: 2, hkv: 2, t: 200, s: 200, d: 64, causal: true, documents: []int{64, 64, 40}},
	{b: 1, h: 1, hkv: 1, t: 150, s: 150, d: 128, causal: true, window: 30, documents: []int{70, 3, 50}},
	{b: 1, h: 1, hkv: 1, t: 70, s: 70, d: 80, causal: true, documents: []int{33, 5, 20}, mask: device.Shape{70}},
}

// starts returns the starts of the documents of c's rows.
func (c attending) starts() []int64 {
	starts := make([]int64, 0, c.b*c.t)
	for b := range c.b {
		start, left, next := 0, 0, b
		for i := range c.t {
			if left == 0 {
				start, left = i, c.documents[next%len(c.documents)]
				next++
			}
			starts = append(starts, int64(start))
			left--
		}
	}
	return starts
}

// attentionOperands returns q, k, v, the gradient with respect to the result, and the mask.
func (r *rig) attentionOperands(c attending) (q, k, v, g, mask array) {
	q, k = r.random(-1, 1, c.b, c.h, c.t, c.d), r.random(-1, 1, c.b, c.hkv, c.s, c.d)
	v, g = r.random(-1, 1, c.b, c.hkv, c.s, c.d), r.random(-1, 1, c.b, c.h, c.t, c.d)
	if c.mask == nil {
		return q, k, v, g, mask
	}
	mask = r.random(-2, 2, c.mask...)
	n := c.mask[len(c.mask)-1]
	for i := range mask.v {
		hide := r.rnd.IntN(4) == 0 || i/n == 1 && i%n < n // the mask hides all keys from the second row
		switch {
		case c.added && hide:
			mask.v[i] = math.Inf(-1)
		case !c.added && hide:
			mask.v[i] = 0
		case !c.added:
			mask.v[i] = 1 + float64(i%255)
		}
	}
	return q, k, v, g, mask
}

// attended holds the results of the reference.
type attended struct{ o, lse, dq, dk, dv value }

func attend(c attending, q, k, v, g, mask array, scale float64) (w attended) {
	long := 16 + float64(max(c.s, c.t*c.h/max(c.hkv, 1))+c.d)/8
	zeros := func(shape ...int) value {
		a := newArray(shape...)
		return value{a, make([]float64, len(a.v)), long}
	}
	w.o, w.dq = zeros(c.b, c.h, c.t, c.d), zeros(c.b, c.h, c.t, c.d)
	w.dk, w.dv, w.lse = zeros(c.b, c.hkv, c.s, c.d), zeros(c.b, c.hkv, c.s, c.d), zeros(c.b, c.h, c.t)
	full := device.Shape{c.b, c.h, c.t, c.s}
	var starts []int64
	if c.documents != nil {
		starts = c.starts()
	}
	for row := range c.b * c.h * c.t {
		bh, i := row/c.t, row%c.t
		bk := bh/c.h*c.hkv + bh%c.h/(c.h/c.hkv)
		at := func(a array, head, rows, i, d int) *float64 { return &a.v[(head*rows+i)*c.d+d] }
		scores, top, most := make([]float64, c.s), math.Inf(-1), 0.0 // most: the sum of the magnitudes of a score's terms
		for j := range scores {
			var s, size float64
			for d := range c.d {
				x := scale * *at(q, bh, c.t, i, d) * *at(k, bk, c.s, j, d)
				s += x
				size += math.Abs(x)
			}
			if c.causal && j > i || c.window > 0 && j <= i-c.window || starts != nil && int64(j) < starts[row/c.t/c.h*c.t+i] {
				s = math.Inf(-1)
			}
			if c.mask != nil {
				m := mask.v[source(full, c.mask, row*c.s+j)]
				switch {
				case c.added:
					s += m
					if !math.IsInf(m, 0) {
						size += math.Abs(m)
					}
				case m == 0:
					s = math.Inf(-1)
				}
			}
			scores[j], top, most = s, max(top, s), max(most, size)
		}
		if math.IsInf(top, -1) {
			w.lse.v[row] = math.Inf(1)
			continue
		}
		var sum float64
		for _, s := range scores {
			sum += math.Exp(s - top)
		}
		w.lse.v[row] = top + math.Log(sum)
		w.lse.scale[row] = 1 + most + math.Abs(w.lse.v[row])
		p, dp, dpSize := make([]float64, c.s), make([]float64, c.s), make([]float64, c.s)
		var delta, deltaSize float64
		for j, s := range scores {
			p[j] = math.Exp(s - w.lse.v[row])
			for d := range c.d {
				x, y := *at(v, bk, c.s, j, d), *at(g, bh, c.t, i, d)
				*at(w.o.array, bh, c.t, i, d) += p[j] * x
				w.o.scale[(bh*c.t+i)*c.d+d] += p[j] * math.Abs(x) * (1 + most)
				*at(w.dv.array, bk, c.s, j, d) += p[j] * y
				w.dv.scale[(bk*c.s+j)*c.d+d] += p[j] * math.Abs(y) * (1 + most)
				dp[j] += x * y
				dpSize[j] += math.Abs(x * y)
			}
			delta += p[j] * dp[j]
			deltaSize += p[j] * dpSize[j]
		}
		for j := range scores {
			ds, size := scale*p[j]*(dp[j]-delta), scale*p[j]*(dpSize[j]+deltaSize)*(1+most)
			for d := range c.d {
				x, y := *at(k, bk, c.s, j, d), *at(q, bh, c.t, i, d)
				*at(w.dq.array, bh, c.t, i, d) += ds * x
				w.dq.scale[(bh*c.t+i)*c.d+d] += size * math.Abs(x)
				*at(w.dk.array, bk, c.s, j, d) += ds * y
				w.dk.scale[(bk*c.s+j)*c.d+d] += size * math.Abs(y)
			}
		}
	}
	return w
}

// rowsFirst returns q [b h t d], k and v [b hkv t d] as one array [b t h+hkv+hkv d].
func rowsFirst(c attending, q, k, v []float64) (out []float64) {
	for row := range c.b * c.t {
		b, i := row/c.t, row%c.t
		for n, heads := range []int{c.h, c.hkv, c.hkv} {
			for h := range heads {
				at := ((b*heads+h)*c.t + i) * c.d
				out = append(out, [][]float64{q, k, v}[n][at:at+c.d]...)
			}
		}
	}
	return out
}

func checkAttention(r *rig) {
	rows := device.Float32 // rows: the type of lse and delta
	if r.dt == device.Float64 {
		rows = device.Float64
	}
	all := attendings
	if r.quick && r.dt.Size() == 2 { // tensor cores are slow to emulate
		all = slices.DeleteFunc(slices.Clone(all), func(c attending) bool { return c.window == 0 || c.d > 32 })
	}
	each(r, all, func(c attending) {
		label := c.String()
		q, k, v, g, mask := r.attentionOperands(c)
		a := kernels.Attend{Causal: c.causal, Window: c.window, Scale: 0.3}
		want := attend(c, q, k, v, g, mask, a.Scale)
		switch {
		case c.mask == nil:
		case c.added:
			a.Mask = r.put(mask).Tensor
		default:
			a.Mask = r.place(device.Uint8, c.mask, encode(device.Uint8, mask.v)).Tensor
		}
		if c.documents != nil {
			a.Starts = r.place(device.Int64, device.Shape{c.b, c.t}, bytesOf(c.starts())).Tensor
		}
		all := c.h + 2*c.hkv
		parts := func(t device.Tensor) (q, k, v kernels.Heads) {
			return kernels.RowsFirst(t, 0, c.h), kernels.RowsFirst(t, c.h, c.hkv), kernels.RowsFirst(t, c.h+c.hkv, c.hkv)
		}
		shape := device.Shape{c.b, c.t, all, c.d}
		if c.packed {
			a.Q, a.K, a.V = parts(r.put(array{shape, rowsFirst(c, q.v, k.v, v.v)}).Tensor)
		} else {
			a.Q, a.K, a.V = kernels.HeadsFirst(r.put(q).Tensor), kernels.HeadsFirst(r.put(k).Tensor), kernels.HeadsFirst(r.put(v).Tensor)
		}
		perRow := func() operand {
			return r.place(rows, device.Shape{c.b, c.h, c.t}, encode(rows, nan(device.Shape{c.b, c.h, c.t}).v))
		}
		lse := perRow()
		var o device.Tensor
		r.result(label, want.o, func(dst device.Tensor) error {
			o = dst
			r.ok(label, r.k.PrepareAttention(r.s, kernels.HeadsFirst(dst), a))
			return r.k.Attention(r.s, kernels.HeadsFirst(dst), lse.Tensor, a)
		})
		r.same(label+", lse", lse, want.lse)
		pg := kernels.HeadsFirst(r.put(g).Tensor)
		po := kernels.HeadsFirst(o)
		gradients := func(to kernels.AttentionGrads) error {
			return r.k.AttentionGrad(r.s, to, pg, po, lse.Tensor, a)
		}
		if c.packed {
			packed := value{array{shape, rowsFirst(c, want.dq.v, want.dk.v, want.dv.v)}, rowsFirst(c, want.dq.scale, want.dk.scale, want.dv.scale), want.dq.c}
			into := func(dst device.Tensor, acc device.Accum) error {
				q, k, v := parts(dst)
				return gradients(kernels.AttentionGrads{Q: q, K: k, V: v, AccQ: acc, AccK: acc, AccV: acc})
			}
			if c.t > 100 { // to save time, long sequences run with one Accum
				r.result(label+", gradients", packed, func(dst device.Tensor) error { return into(dst, device.Store) })
			} else {
				r.accumulates(label+", gradients", packed, into)
			}
			return
		}
		third := device.Accum{Alpha: 1. / 3, Beta: 0}
		r.result(label+", gradient of q", want.dq, func(dst device.Tensor) error {
			return gradients(kernels.AttentionGrads{Q: kernels.HeadsFirst(dst), AccQ: device.Store})
		})
		r.result(label+", gradient of k", want.dk, func(dst device.Tensor) error {
			return gradients(kernels.AttentionGrads{K: kernels.HeadsFirst(dst), AccK: device.Store})
		})
		r.result(label+", gradient of v", want.dv, func(dst device.Tensor) error {
			return gradients(kernels.AttentionGrads{V: kernels.HeadsFirst(dst), AccV: device.Store})
		})
		r.result(label+", gradient of v beside the others", want.dv, func(dst device.Tensor) error {
			return gradients(kernels.AttentionGrads{
				Q: kernels.HeadsFirst(r.put(q).Tensor), AccQ: device.Store,
				K: kernels.HeadsFirst(r.put(v).Tensor), AccK: third,
				V: kernels.HeadsFirst(dst), AccV: device.Store,
			})
		})
		r.result(label+", gradient of q beside the others", want.dq, func(dst device.Tensor) error {
			return gradients(kernels.AttentionGrads{
				Q: kernels.HeadsFirst(dst), AccQ: device.Store,
				K: kernels.HeadsFirst(r.put(k).Tensor), AccK: device.Store,
				V: kernels.HeadsFirst(r.put(v).Tensor), AccV: device.Store,
			})
		})
	})
}

// checkNaNAttention puts a NaN into each operand of an attention without a mask. The elements that
// depend on the operand become NaN, and no others.
func checkNaNAttention(r *rig) {
	const t, s, d, row, col = 37, 70, 32, 20, 5
	for _, where := range []string{"q", "k", "v", "g"} {
		c := attending{b: 1, h: 2, hkv: 2, t: t, s: s, d: d}
		q, k, v, g, _ := r.attentionOperands(c)
		second := func(rows int) int { return (rows+row)*d + col } // second: the index of an element in a row of the second head
		switch where {
		case "q":
			q.v[second(t)] = math.NaN()
		case "k":
			k.v[second(s)] = math.NaN()
		case "v":
			v.v[second(s)] = math.NaN()
		case "g":
			g.v[second(t)] = math.NaN()
		}
		want := attend(c, q, k, v, g, array{}, 0.2)
		a := kernels.Attend{Q: kernels.HeadsFirst(r.put(q).Tensor), K: kernels.HeadsFirst(r.put(k).Tensor), V: kernels.HeadsFirst(r.put(v).Tensor), Scale: 0.2}
		rows := device.Float32
		if r.dt == device.Float64 {
			rows = device.Float64
		}
		perRow := func() device.Tensor {
			return r.place(rows, device.Shape{1, 2, t}, make([]byte, 2*t*rows.Size())).Tensor
		}
		o, dq, dk, dv, pg := r.put(q), r.put(q), r.put(k), r.put(v), kernels.HeadsFirst(r.put(g).Tensor)
		lse := perRow()
		label := "attention with NaN in " + where
		r.ok(label, r.k.PrepareAttention(r.s, kernels.HeadsFirst(o.Tensor), a))
		r.ok(label, r.k.Attention(r.s, kernels.HeadsFirst(o.Tensor), lse, a))
		r.ok(label, r.k.AttentionGrad(r.s, kernels.AttentionGrads{
			Q: kernels.HeadsFirst(dq.Tensor), AccQ: device.Store,
			K: kernels.HeadsFirst(dk.Tensor), AccK: device.Store,
			V: kernels.HeadsFirst(dv.Tensor), AccV: device.Store,
		}, pg, kernels.HeadsFirst(o.Tensor), lse, a))
		for what, got := range map[string]struct {
			operand
			want value
		}{"result": {o, want.o}, "gradient of q": {dq, want.dq}, "gradient of k": {dk, want.dk}, "gradient of v": {dv, want.dv}} {
			for i, x := range decode(r.dt, r.read(label, got.operand)) {
				if w := got.want.v[i]; (x != x) != (w != w) {
					r.fail("%s: the %s at [%d %d] is %v, want %v", label, what, i/d, i%d, x, w)
				}
			}
		}
		r.clean()
	}
}

// checkAttentionMisfits checks that operands that do not fit panic.
func checkAttentionMisfits(r *rig) {
	heads := func(shape ...int) kernels.Heads { return kernels.HeadsFirst(r.put(newArray(shape...)).Tensor) }
	t := func(shape ...int) device.Tensor { return r.put(newArray(shape...)).Tensor }
	q, k := heads(2, 4, 5, 8), heads(2, 2, 6, 8)
	rows := t(2, 4, 5)
	good := kernels.Attend{Q: q, K: k, V: k, Scale: 1}
	with := func(change func(*kernels.Attend)) kernels.Attend {
		a := good
		change(&a)
		return a
	}
	for name, a := range map[string]kernels.Attend{
		"other batches":          with(func(a *kernels.Attend) { a.Q = heads(3, 4, 5, 8) }),
		"other sizes of heads":   with(func(a *kernels.Attend) { a.Q = heads(2, 4, 5, 7) }),
		"other values than keys": with(func(a *kernels.Attend) { a.V = heads(2, 2, 5, 8) }),
		"heads that do not fit":  with(func(a *kernels.Attend) { a.K, a.V = heads(2, 3, 6, 8), heads(2, 3, 6, 8) }),
		"heads too large":        {Q: heads(1, 1, 2, kernels.MaxHeadSize+1), K: heads(1, 1, 2, kernels.MaxHeadSize+1), V: heads(1, 1, 2, kernels.MaxHeadSize+1)},
		"starts of other rows": with(func(a *kernels.Attend) {
			a.Causal, a.Starts = true, r.place(device.Int64, device.Shape{2, 6}, make([]byte, 96)).Tensor
		}),
		"a mask of other keys": with(func(a *kernels.Attend) { a.Mask = t(5, 5) }),
	} {
		misfit[*device.ShapeError](r, "Attention of "+name, func() error { return r.k.Attention(r.s, a.Q, rows, a) })
	}
	misfit[*device.ShapeError](r, "Attention to other rows", func() error { return r.k.Attention(r.s, q, t(2, 4, 6), good) })
	misfit[*device.ShapeError](r, "Attention to another shape", func() error { return r.k.Attention(r.s, heads(2, 4, 6, 8), rows, good) })
	misfit[*device.ShapeError](r, "AttentionGrad of another shape", func() error {
		return r.k.AttentionGrad(r.s, kernels.AttentionGrads{Q: q}, k, q, rows, good)
	})
	for name, to := range map[string]kernels.AttentionGrads{"q": {Q: k}, "k": {K: q}, "v": {V: q}} {
		misfit[*device.ShapeError](r, "AttentionGrad of "+name+" to another shape", func() error {
			return r.k.AttentionGrad(r.s, to, q, q, rows, good)
		})
	}
	double := r.place(device.Float64, device.Shape{2, 4, 5}, make([]byte, 8*40)).Tensor
	misfit[*device.DTypeError](r, "Attention with a mask of doubles", func() error {
		return r.k.Attention(r.s, q, rows, with(func(a *kernels.Attend) { a.Mask = double.Range(0, 30).Reshape(5, 6) }))
	})
	misfit[*device.DTypeError](r, "Attention with doubles for rows", func() error { return r.k.Attention(r.s, q, double, good) })
	short := q
	short.RowStride++
	misfit[error](r, "Attention beyond its memory", func() error { return r.k.Attention(r.s, q, rows, with(func(a *kernels.Attend) { a.Q = short })) })
}
