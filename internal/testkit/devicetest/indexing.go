package devicetest

import (
	"bytes"
	"fmt"
	"math"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

// indexed describes a Gather: dst is [outer m inner], src [outer n inner]; each says whether every
// element has its own index.
type indexed struct {
	outer, m, n, inner int
	each               bool
}

// rows has indices into few and into many rows; rows that are selected once, often, and by all
// indices; and rows that are whole packs, and others.
var rows = []indexed{
	{1, 1, 1, 1, false}, {1, 0, 3, 4, false}, {2, 3, 4, 0, false}, {0, 2, 3, 4, false}, {1, 5, 7, 1, false}, {1, 33, 7, 16, false},
	{1, 700, 3, 5, false}, {1, 3000, 1, 8, false}, {3, 100, 50, 24, false}, {2, 40, 5, 3, false}, {1, 2500, 3000, 64, false},
	{1, 1, 1, 1, true}, {2, 0, 3, 4, true}, {3, 5, 4, 1, true}, {2, 7, 40, 9, true}, {1, 3000, 5, 1, true}, {50, 1, 300, 1, true},
}

// index draws an index. It returns the index, its numbers, and a function that returns the element
// of src for each element of dst.
func (r *rig) index(c indexed) (index operand, at []int64, place func(i int) int) {
	shape := device.Shape{c.m}
	if c.each {
		shape = device.Shape{c.outer, c.m, c.inner}
	}
	at = make([]int64, shape.Len())
	for i := range at {
		at[i] = r.rnd.Int64N(int64(c.n))
	}
	place = func(i int) int {
		v := i
		if !c.each {
			v = i / c.inner % c.m
		}
		return (i/c.inner/c.m*c.n+int(at[v]))*c.inner + i%c.inner
	}
	return r.place(device.Int64, shape, bytesOf(at)), at, place
}

func checkGather(r *rig) {
	each(r, rows, func(c indexed) {
		src := r.random(-2, 2, c.outer, c.n, c.inner)
		withNaN(src)
		placed := r.put(src)
		index, _, place := r.index(c)
		want := newArray(c.outer, c.m, c.inner)
		for i := range want.v {
			want.v[i] = src.v[place(i)]
		}
		r.result(fmt.Sprintf("Gather %+v", c), value{array: want}, func(dst device.Tensor) error {
			return r.k.Gather(r.s, dst, placed.Tensor, index.Tensor)
		})
	})
}

func checkScatterAdd(r *rig) {
	each(r, rows, func(c indexed) {
		src := r.random(-2, 2, c.outer, c.m, c.inner)
		placed := r.put(src)
		index, at, place := r.index(c)
		for _, skip := range []int{-1, c.n / 2} {
			want := value{newArray(c.outer, c.n, c.inner), make([]float64, c.outer*c.n*c.inner), 8}
			terms := make([]float64, len(want.v))
			for i, v := range src.v {
				item := i
				if !c.each {
					item = i / c.inner % c.m
				}
				if at[item] == int64(skip) {
					continue
				}
				to := place(i)
				want.v[to] += v
				want.scale[to] += math.Abs(v)
				terms[to]++
				want.c = max(want.c, 8+terms[to]) // every term may add one rounding
			}
			r.accumulates(fmt.Sprintf("ScatterAdd %+v without %d", c, skip), want, func(dst device.Tensor, acc device.Accum) error {
				return r.k.ScatterAdd(r.s, dst, acc, placed.Tensor, index.Tensor, skip)
			})
		}
	})
}

// nanScatter checks that a NaN among the terms of one row affects only that row.
func nanScatter(r *rig) {
	const m, n, inner, bad = 500, 7, 8, 3
	src := r.random(-2, 2, 1, m, inner)
	index, at, _ := r.index(indexed{1, m, n, inner, false})
	for i, v := range at {
		if v == bad {
			src.v[i*inner+5] = math.NaN()
			break
		}
	}
	dst, placed := r.put(newArray(1, n, inner)), r.put(src)
	r.ok("ScatterAdd of NaN", r.k.ScatterAdd(r.s, dst.Tensor, device.Store, placed.Tensor, index.Tensor, -1))
	for i, v := range decode(r.dt, r.read("ScatterAdd of NaN", dst)) {
		if (v != v) != (i == bad*inner+5) {
			r.fail("ScatterAdd of NaN: element %d is %v", i, v)
		}
	}
}

func checkSelectLabels(r *rig) {
	const ignore = -100
	each(r, []struct{ m, rows int }{{0, 0}, {1, 1}, {5, 3}, {5, 5}, {1023, 400}, {1025, 900}, {5000, 5000}}, func(c struct{ m, rows int }) {
		for _, wanted := range []int{c.rows, c.rows / 2, 0, min(c.rows+1, c.m)} {
			labels := make([]int64, c.m)
			for i := range labels {
				labels[i] = ignore
			}
			for _, i := range r.rnd.Perm(c.m)[:wanted] {
				labels[i] = r.rnd.Int64N(9)
			}
			wantIndex, wantLabels := make([]int64, c.rows), make([]int64, c.rows)
			n := 0
			for i, l := range labels {
				if l != ignore && n < c.rows {
					wantIndex[n], wantLabels[n] = int64(i), l
				}
				if l != ignore {
					n++
				}
			}
			for i := n; i < c.rows; i++ {
				wantLabels[i] = kernels.NoLabel
			}
			if n > c.rows && c.rows > 0 {
				wantLabels[0] = -1
			}
			what := fmt.Sprintf("SelectLabels of %d of %d to %d", wanted, c.m, c.rows)
			integers := func(v []int64) operand { return r.place(device.Int64, device.Shape{len(v)}, bytesOf(v)) }
			index, selected, count := integers(make([]int64, c.rows)), integers(make([]int64, c.rows)), r.placed(r.sums(), newArray(2))
			r.ok(what, r.k.SelectLabels(r.s, index.Tensor, selected.Tensor, count.Tensor, integers(labels).Tensor, ignore))
			if got := r.read(what, index); !bytes.Equal(got, bytesOf(wantIndex)) {
				r.fail("%s: the indices are not %v", what, wantIndex)
			}
			if got := r.read(what, selected); !bytes.Equal(got, bytesOf(wantLabels)) {
				r.fail("%s: the labels are not %v", what, wantLabels)
			}
			r.same(what+", count", count, value{array: array{device.Shape{2}, []float64{float64(n), float64(max(n, 1))}}})
		}
	})
}
