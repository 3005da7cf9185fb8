package cpu

import (
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/internal/operand"
)

func (k *kernelSet) Sum(_ device.Stream, dst device.Tensor, acc device.Accum, src device.Tensor) error {
	operands.Sum(dst, src)
	pick(dst, sum[float32], sum[float64])(k, dst, acc, src)
	return nil
}

// sum computes in float64. Each task adds one chunk of the terms of one tile of results. The chunks' sums are
// added in order and rounded once, so the result does not depend on the schedule.
func sum[T float](k *kernelSet, dst device.Tensor, acc device.Accum, src device.Tensor) {
	d, s := device.Elements[T](dst), device.Elements[T](src)
	if len(s) == 0 {
		fold(k, d, acc, nil)
		return
	}
	r := operand.NewReduction(dst.Shape, src.Shape)
	wide := min(r.Width, tile)
	per := max(chunk/wide, 1) // the number of terms in a chunk
	chunks, tiles := (r.N+per-1)/per, (r.Width+tile-1)/tile
	parts := make([]float64, chunks*len(d))
	tasks := len(d) / r.Width * tiles * chunks
	k.each(tasks, len(s)/tasks, func(lo, hi int) {
		for ; lo < hi; lo++ {
			c, out, t := lo%chunks, lo/chunks/tiles, lo/chunks%tiles
			col := t * tile
			at := c*len(d) + out*r.Width + col
			p := parts[at : at+min(tile, r.Width-col)]
			base, _ := operand.Offset(r.Kept, out)
			from, to := c*per, min((c+1)*per, r.N)
			if r.Width == 1 {
				p[0] = addRuns(s[base:], r.Terms, from, to)
			} else {
				addRows(p, s[base+col:], r.Terms, from, to)
			}
		}
	})
	fold(k, d, acc, parts)
}

// fold accumulates into dst the sum of parts; each part has the length of dst. It multiplies the sum by Alpha before it
// rounds. So a mean is rounded only once, and does not become infinite if the sum is too large for the type.
func fold[T float](k *kernelSet, dst []T, acc device.Accum, parts []float64) {
	alpha := acc.Alpha
	acc.Alpha = 1
	tiled(k, dst, acc, func(t []T, lo int) {
		for i := range t {
			var v float64
			for j := lo + i; j < len(parts); j += len(dst) {
				v += parts[j]
			}
			t[i] = T(alpha * v)
		}
	})
}

// addRuns returns the sum of the terms with the indices `from` to to-1. If the innermost axis is contiguous, the terms
// form runs.
func addRuns[T float](s []T, terms []operand.Axis, from, to int) (v float64) {
	if len(terms) == 0 {
		return float64(s[0])
	}
	for run := terms[0].N; from < to; {
		i := from % run
		at, _ := operand.Offset(terms[1:], from/run)
		n := min(run-i, to-from)
		v += addRun(s[at+i : at+i+n])
		from += n
	}
	return v
}

// addRun sums in four lanes, for instruction-level parallelism.
func addRun[T float](x []T) float64 {
	if sum, ok := vectorSum(float32s(x)); ok {
		return sum
	}
	var a, b, c, d float64
	for ; len(x) >= 4; x = x[4:] {
		a += float64(x[0])
		b += float64(x[1])
		c += float64(x[2])
		d += float64(x[3])
	}
	for _, v := range x {
		a += float64(v)
	}
	return (a + b) + (c + d)
}

// addRows adds the rows of s with the indices `from` to to-1 to dst. The rows are as long as dst.
func addRows[T float](dst []float64, s []T, terms []operand.Axis, from, to int) {
	for ; from < to; from++ {
		at, _ := operand.Offset(terms, from)
		if len(terms) == 1 && vectorAddRows(dst, float32s(s[at:]), terms[0].X, to-from) {
			return
		}
		row := s[at : at+len(dst)]
		for i, v := range row {
			dst[i] += float64(v)
		}
	}
}
