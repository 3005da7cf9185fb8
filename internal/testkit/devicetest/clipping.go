package devicetest

import (
	"fmt"
	"math"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

// norms are the powers of the norms that are checked.
var norms = []float64{1, 2, 3, math.Inf(1)}

// clipped places arrays of many sizes of the type under test, and one of another type. It returns their
// elements too.
func (r *rig) clipped(lengths ...int) (xs []operand, all [][]float64) {
	for i, n := range append(lengths, 5) {
		a := r.random(-2, 2, n)
		if i == len(lengths) {
			xs, all = append(xs, r.placed(device.Float64, a)), append(all, a.v)
		} else {
			xs, all = append(xs, r.put(a)), append(all, a.v)
		}
	}
	return xs, all
}

func tensors(xs []operand) (ts []device.Tensor) {
	for _, x := range xs {
		ts = append(ts, x.Tensor)
	}
	return ts
}

// powerSum is the reference of PowerSum.
func powerSum(p float64, all ...[]float64) (sum float64) {
	for _, x := range all {
		for _, v := range x {
			if v = math.Abs(v); math.IsInf(p, 1) {
				sum = max(sum, v)
			} else {
				sum += math.Pow(v, p)
			}
		}
	}
	return sum
}

func checkPowerSum(r *rig) {
	many := make([]int, 100) // more than one kernel takes
	for i := range many {
		many[i] = i % 7
	}
	each(r, [][]int{{}, {0}, {1}, {1000, 0, 33}, many, {large, 7}}, func(lengths []int) {
		xs, all := r.clipped(lengths...)
		for _, p := range norms {
			label := fmt.Sprintf("PowerSum to the power %v of %d arrays of %v", p, len(xs), r.dt)
			sum := func(label string, want float64) {
				dst := r.placed(device.Float64, nan(scalar))
				var first []byte
				for range 2 {
					r.ok(label, r.k.PowerSum(r.s, dst.Tensor, p, tensors(xs)...))
					r.same(label, dst, value{array{scalar, []float64{want}}, nil, 1 << 10})
					if got := r.read(label, dst); first != nil && string(got) != string(first) {
						r.fail("%s: run twice, the bits differ", label)
					} else {
						first = got
					}
				}
			}
			sum(label, powerSum(p, all...))
			if n := xs[0].Len(); n > 1 { // one NaN among larger numbers
				bad := array{xs[0].Shape, append([]float64{}, all[0]...)}
				bad.v[n/2] = math.NaN()
				r.fill(xs[0], encode(xs[0].DType, bad.v))
				sum(label+" with a NaN", math.NaN())
				r.fill(xs[0], encode(xs[0].DType, all[0]))
			}
		}
	})
}

func checkScaleToNorm(r *rig) {
	each(r, [][]int{{}, {1}, {1000, 0, 33}, {large, 7}}, func(lengths []int) {
		for _, p := range norms {
			if r.quick && p != 2 && len(lengths) == 2 {
				continue
			}
			for _, c := range []struct{ norm, limit float64 }{{4, 3}, {4, 4}, {4, 5}, {0, 1}, {math.Inf(1), 1}, {math.NaN(), 1}} {
				xs, all := r.clipped(lengths...)
				total := c.norm
				if !math.IsInf(p, 1) {
					total = math.Pow(total, p)
				}
				label := fmt.Sprintf("ScaleToNorm of %d arrays of %v from %v to %v by p %v", len(xs), r.dt, c.norm, c.limit, p)
				sum := r.placed(device.Float64, array{scalar, []float64{total}})
				factor := kernels.NormFactor(c.norm, c.limit)
				for _, dt := range []device.DType{device.Float32, device.Float64} {
					norm := r.placed(dt, nan(scalar))
					for i, x := range xs {
						r.fill(x, encode(x.DType, all[i]))
					}
					r.ok(label, r.k.ScaleToNorm(r.s, norm.Tensor, sum.Tensor, p, c.limit, tensors(xs)...))
					r.same(label+": the norm", norm, value{array{scalar, []float64{c.norm}}, nil, 8})
					for i, x := range xs {
						want := value{array{x.Shape, make([]float64, len(all[i]))}, nil, 8}
						if factor == 1 {
							want.c = 0
						}
						for j, v := range all[i] {
							want.v[j] = v * factor
						}
						r.same(fmt.Sprintf("%s: array %d", label, i), x, want)
					}
				}
				r.clean()
			}
		}
	})
}
