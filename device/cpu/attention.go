package cpu

import (
	"math"
	"sort"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/internal/operand"
	"github.com/goddp/goddp/internal/kernels"
)

func (k *kernelSet) Attention(_ device.Stream, o kernels.Heads, lse device.Tensor, a kernels.Attend) error {
	operands.Attention(o, lse, a)
	if lse.DType == device.Float32 {
		newAttention[float32](k, a).forward(o, lse)
	} else {
		newAttention[float64](k, a).forward(o, lse)
	}
	return nil
}

func (k *kernelSet) AttentionGrad(_ device.Stream, to kernels.AttentionGrads, g, o kernels.Heads, lse device.Tensor, a kernels.Attend) error {
	operands.AttentionGrad(to, g, o, lse, a)
	if lse.DType == device.Float32 {
		newAttention[float32](k, a).gradients(to, g, o, lse)
	} else {
		newAttention[float64](k, a).gradients(to, g, o, lse)
	}
	return nil
}

// PrepareAttention only checks its operands, because the CPU loads no kernels.
func (k *kernelSet) PrepareAttention(_ device.Stream, o kernels.Heads, a kernels.Attend) error {
	operands.PrepareAttention(o, a)
	return nil
}

// heads is a kernels.Heads in host memory.
type heads[T float] struct {
	kernels.Heads
	v []T
}

func newHeads[T float](h kernels.Heads) heads[T] { return heads[T]{h, device.Elements[T](h.Data)} }

// row returns the elements of row i of a head.
func (h heads[T]) row(b, head, i int) []T {
	at := b*h.BatchStride + head*h.HeadStride + i*h.RowStride
	return h.v[at : at+h.D]
}

// rows returns the memory of the rows from i to to-1 of a head. RowStride is the distance between the starts of two
// rows.
func (h heads[T]) rows(b, head, i, to int) []T {
	at := b*h.BatchStride + head*h.HeadStride
	return h.v[at+i*h.RowStride : at+(to-1)*h.RowStride+h.D]
}

// attention holds the operands and parameters shared by the attention kernels.
type attention[T float] struct {
	kernels *kernelSet
	q, k, v heads[T]
	allowed []uint8 // the mask is in this field or in the next one, by its type; both are nil without a mask
	added   []T
	strides [4]int // the strides of the mask
	causal  bool
	window  int     // 0 means none
	starts  []int64 // the first key of each query, nil for none
	scale   T
	group   int // the number of heads of q for each head of k
	tile    int // the number of rows and of columns of a tile
}

func newAttention[T float](k *kernelSet, a kernels.Attend) *attention[T] {
	at := &attention[T]{
		kernels: k, q: newHeads[T](a.Q), k: newHeads[T](a.K), v: newHeads[T](a.V),
		causal: a.Causal, window: a.Window, scale: T(a.Scale), group: a.Q.H / max(a.K.H, 1), tile: 64,
	}
	if !a.Starts.IsZero() {
		at.starts = device.Elements[int64](a.Starts)
		checkStarts(at.starts, a.Q.T)
	}
	if !a.Mask.IsZero() {
		at.strides = operand.MaskStrides(a.Mask.Shape)
		if a.Mask.DType == device.Uint8 {
			at.allowed = device.Elements[uint8](a.Mask)
		} else {
			at.added = device.Elements[T](a.Mask)
		}
	}
	return at
}

// checkStarts panics unless each row of t starts rises, and none is after its query.
func checkStarts(starts []int64, t int) {
	for i, v := range starts {
		if v < 0 || v > int64(i%t) || i%t > 0 && v < starts[i-1] {
			panic(&device.IndexError{Op: "Attention, Starts", At: i, Index: v, Limit: i%t + 1})
		}
	}
}

// block is a tile of queries i to iTo-1 and keys j to jTo-1 of one head.
type block struct{ b, head, i, iTo, j, jTo int }

func (t block) queries() int { return t.iTo - t.i }
func (t block) keys() int    { return t.jTo - t.j }

// firstKey returns the first key to which query i of a batch may attend. It is not less than that of an earlier query.
func (a *attention[T]) firstKey(b, i int) (first int) {
	if a.window > 0 {
		first = max(i-a.window+1, 0)
	}
	if a.starts != nil {
		first = max(first, int(a.starts[b*a.q.T+i]))
	}
	return first
}

// keysOf returns the range of tiles, from the key first on and without the key end, that holds the keys to which the
// queries i to iTo-1 of a batch may attend.
func (a *attention[T]) keysOf(b, i, iTo int) (first, end int) {
	end = a.k.T
	if a.causal {
		end = min(iTo, end)
	}
	return a.firstKey(b, i) / a.tile * a.tile, end
}

// products computes x·yᵀ for a tile. The rows of x are along the queries, the rows of y along the
// keys.
func (a *attention[T]) products(dst []T, t block, scale T, x, y heads[T]) {
	if x.D == 0 {
		clear(dst[:t.queries()*t.keys()])
		return
	}
	p := product{ty: true, m: t.queries(), n: t.keys(), k: x.D, ldx: x.RowStride, ldy: y.RowStride, ldd: t.keys()}
	gemm(a.kernels.blas, p, scale, x.rows(t.b, t.head, t.i, t.iTo), y.rows(t.b, t.head/a.group, t.j, t.jTo), 0, dst)
}

// scores computes the tile's scores: the scaled products plus the mask, -Inf where a key is masked.
func (a *attention[T]) scores(dst []T, t block) {
	a.products(dst, t, a.scale, a.q, a.k)
	none, n := T(math.Inf(-1)), t.keys()
	for i := t.i; i < t.iTo; i++ {
		row := dst[(i-t.i)*n:][:n]
		at := t.b*a.strides[0] + t.head*a.strides[1] + i*a.strides[2] + t.j*a.strides[3]
		switch {
		case a.allowed != nil:
			for j := range row {
				if a.allowed[at+j*a.strides[3]] == 0 {
					row[j] = none
				}
			}
		case a.added != nil:
			for j := range row {
				row[j] += a.added[at+j*a.strides[3]]
			}
		}
		if a.causal {
			for j := max(i+1-t.j, 0); j < n; j++ {
				row[j] = none
			}
		}
		for j := range min(max(a.firstKey(t.b, i)-t.j, 0), n) {
			row[j] = none
		}
	}
}

// eachTile calls f for all tiles of rows of h, on several threads, or for those of a head on one thread, in order. Each
// thread passes its own scratch memory w to f.
func (a *attention[T]) eachTile(h heads[T], inOrder bool, columns, work int, f func(w []T, b, head, i, to int)) {
	tiles := (h.T + a.tile - 1) / a.tile
	tasks, per := h.B*h.H*tiles, 1 // per: the tiles of a task
	if inOrder {
		tasks, per = h.B*h.H, tiles
	}
	a.kernels.each(tasks, per*a.tile*max(columns, 1)*max(h.D/8, 1), func(lo, hi int) {
		w := make([]T, work)
		for n := lo * per; n < hi*per; n++ {
			at, i := n/tiles, n%tiles*a.tile
			f(w, at/h.H, at%h.H, i, min(i+a.tile, h.T))
		}
	})
}

// forward computes attention tile by tile (Dao, "FlashAttention-2", 2023). For each query of a tile
// it keeps the largest score so far, the sum of the weights exp(score - largest), and the sum of the values
// times their weights. When it finds a larger score, it scales both sums down.
func (a *attention[T]) forward(out kernels.Heads, lse device.Tensor) {
	o, l, size := newHeads[T](out), device.Elements[T](lse), a.tile*a.tile
	a.eachTile(a.q, false, a.k.T, size+a.tile*(a.q.D+2), func(w []T, b, head, i, to int) {
		s, sum, w := w[:size], w[size:size+a.tile*a.q.D], w[size+a.tile*a.q.D:]
		top, total := w[:a.tile], w[a.tile:]
		clear(sum)
		for r := range top {
			top[r], total[r] = T(math.Inf(-1)), 0
		}
		first, keys := a.keysOf(b, i, to)
		for j := first; j < keys; j += a.tile {
			t := block{b, head, i, to, j, min(j+a.tile, keys)}
			a.scores(s, t)
			n := t.keys()
			for r := range t.queries() {
				row, before := s[r*n:(r+1)*n], top[r]
				top[r] = max(before, largest(row))
				shift := top[r]
				if math.IsInf(float64(shift), -1) {
					shift = 0
				}
				smaller := T(math.Exp(float64(before - shift)))
				total[r] = total[r]*smaller + T(exps(row, row, float64(shift)))
				if smaller != 1 {
					for d := range sum[r*a.q.D : (r+1)*a.q.D] {
						sum[r*a.q.D+d] *= smaller
					}
				}
			}
			a.addRows(sum, s, false, t, a.v, head/a.group, t.j, t.jTo)
		}
		for r := range to - i {
			at := (b*a.q.H+head)*a.q.T + i + r
			inverse := 1 / total[r]
			if l[at] = top[r] + T(math.Log(float64(total[r]))); total[r] == 0 {
				inverse, l[at] = 0, T(math.Inf(1))
			}
			row := o.row(b, head, i+r)
			for d, v := range sum[r*a.q.D : (r+1)*a.q.D] {
				row[d] = v * inverse
			}
		}
	})
}

// addRows adds a matrix product to sum. Its factors are the tile's numbers, or their transpose, and the rows of h with
// the indices `from` to to-1.
func (a *attention[T]) addRows(sum, numbers []T, transpose bool, t block, h heads[T], head, from, to int) {
	if h.D == 0 {
		return
	}
	p := product{tx: transpose, m: t.queries(), n: h.D, k: to - from, ldx: t.keys(), ldy: h.RowStride, ldd: h.D}
	if transpose {
		p.m = t.keys()
	}
	gemm(a.kernels.blas, p, 1, numbers, h.rows(t.b, head, from, to), 1, sum)
}

// gradients computes those of the gradients of q, k and v that have a destination in to.
func (a *attention[T]) gradients(to kernels.AttentionGrads, gs, os kernels.Heads, lse device.Tensor) {
	g, l := newHeads[T](gs), device.Elements[T](lse)
	delta := a.deltas(g, newHeads[T](os))
	needsQ, needsKV := !to.Q.Data.IsZero(), !to.K.Data.IsZero() || !to.V.Data.IsZero()
	together := needsQ && needsKV && a.k.T > 0 && a.k.B*a.k.H >= a.kernels.threads
	if needsQ && !together {
		a.queryGrad(newHeads[T](to.Q), to.AccQ, g, l, delta)
	}
	if needsKV {
		a.keyValueGrad(to, g, l, delta, together)
	}
}

// deltas returns the sums of the rows of g·o.
func (a *attention[T]) deltas(g, o heads[T]) []T {
	d := make([]T, g.B*g.H*g.T)
	a.kernels.each(len(d), g.D, func(lo, hi int) {
		for ; lo < hi; lo++ {
			at, i := lo/g.T, lo%g.T
			y := o.row(at/g.H, at%g.H, i)
			var sum T
			for j, v := range g.row(at/g.H, at%g.H, i) {
				sum += v * y[j]
			}
			d[lo] = sum
		}
	})
	return d
}

// derive computes the tile's probabilities p and the gradients ds with respect to the products of
// queries and keys. g is the gradient with respect to the result.
func (a *attention[T]) derive(p, ds []T, t block, g heads[T], lse, delta []T) {
	a.scores(p, t)
	a.products(ds, t, 1, g, a.v)
	n := t.keys()
	for i := t.i; i < t.iTo; i++ {
		at := (t.b*a.q.H+t.head)*a.q.T + i
		row, d := p[(i-t.i)*n:][:n], ds[(i-t.i)*n:][:n]
		exps(row, row, float64(lse[at]))
		for j, p := range row {
			d[j] = p * a.scale * (d[j] - delta[at])
		}
	}
}

// queryGrad visits all keys for each tile of queries.
func (a *attention[T]) queryGrad(dq heads[T], acc device.Accum, g heads[T], lse, delta []T) {
	size := a.tile * a.tile
	a.eachTile(a.q, false, 2*a.k.T, 2*size+a.tile*a.q.D, func(w []T, b, head, i, to int) {
		p, ds, sum := w[:size], w[size:2*size], w[2*size:]
		clear(sum)
		first, keys := a.keysOf(b, i, to)
		for j := first; j < keys; j += a.tile {
			t := block{b, head, i, to, j, min(j+a.tile, keys)}
			a.derive(p, ds, t, g, lse, delta)
			a.addRows(sum, ds, false, t, a.k, head/a.group, t.j, t.jTo)
		}
		for r := range to - i {
			accumulate(dq.row(b, head, i+r), acc, sum[r*a.q.D:(r+1)*a.q.D])
		}
	})
}

// keyValueGrad visits, for each tile of keys, all queries of the heads that use these keys. If withQ is set, it also computes
// the gradient of q, and each tile's products only once. Then a thread visits all keys of a head in order.
func (a *attention[T]) keyValueGrad(to kernels.AttentionGrads, g heads[T], lse, delta []T, withQ bool) {
	size := a.tile * a.tile
	var dq, dk, dv heads[T]
	if withQ {
		dq = newHeads[T](to.Q)
	}
	if !to.K.Data.IsZero() {
		dk = newHeads[T](to.K)
	}
	if !to.V.Data.IsZero() {
		dv = newHeads[T](to.V)
	}
	a.eachTile(a.k, withQ, 2*a.q.T*a.group, 2*(size+a.tile*a.q.D), func(w []T, b, keyHead, j, jTo int) {
		p, ds, sums := w[:size], w[size:2*size], w[2*size:]
		sumK, sumV := sums[:a.tile*a.q.D], sums[a.tile*a.q.D:]
		clear(sums)
		first := 0
		if a.causal {
			first = j / a.tile * a.tile
		}
		end := sort.Search(a.q.T, func(i int) bool { return a.firstKey(b, i) >= jTo })
		for head := keyHead * a.group; head < (keyHead+1)*a.group; head++ {
			for i := 0; withQ && j == 0 && i < a.q.T; i++ {
				row := dq.row(b, head, i)
				if to.AccQ.Beta == 0 {
					clear(row)
				} else {
					accumulate(row, device.Accum{Alpha: to.AccQ.Beta}, row)
				}
			}
			for i := first; i < end; i += a.tile {
				t := block{b, head, i, min(i+a.tile, end), j, jTo}
				a.derive(p, ds, t, g, lse, delta)
				a.addRows(sumV, p, true, t, g, head, t.i, t.iTo)
				a.addRows(sumK, ds, true, t, a.q, head, t.i, t.iTo)
				if withQ && a.q.D > 0 {
					p := product{m: t.queries(), n: a.q.D, k: t.keys(), ldx: t.keys(), ldy: a.k.RowStride, ldd: dq.RowStride}
					gemm(a.kernels.blas, p, T(to.AccQ.Alpha), ds, a.k.rows(b, keyHead, j, jTo), 1, dq.rows(b, head, t.i, t.iTo))
				}
			}
		}
		for r := range jTo - j {
			if dk.v != nil {
				accumulate(dk.row(b, keyHead, j+r), to.AccK, sumK[r*a.q.D:(r+1)*a.q.D])
			}
			if dv.v != nil {
				accumulate(dv.row(b, keyHead, j+r), to.AccV, sumV[r*a.q.D:(r+1)*a.q.D])
			}
		}
	})
}
