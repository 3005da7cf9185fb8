package devicetest

import (
	"fmt"
	"math"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

// normCase describes a normalisation of x [n c l], by groups, or by channel if the number of groups
// is 0.
type normCase struct {
	n, c, l, groups int
	uncentered      bool
}

var normCases = []normCase{
	{n: 3, c: 4, l: 5}, {n: 1, c: 1, l: 2}, {n: 40, c: 3, l: 1}, {n: 70, c: 33, l: 1}, {n: 700, c: 24, l: 1}, {n: 3, c: 264, l: 1}, {n: 2, c: 3, l: 1000}, {n: 5, c: 7, l: 49}, {n: 2, c: 0, l: 3}, {n: 0, c: 3, l: 2},
	{n: 3, c: 4, l: 5, groups: 2}, {n: 1, c: 6, l: 1, groups: 6}, {n: 2, c: 8, l: 49, groups: 4}, {n: 0, c: 4, l: 3, groups: 2}, {n: 2, c: 6, l: 0, groups: 3},
	{n: 5, c: 17, l: 1, groups: 1}, {n: 130, c: 64, l: 1, groups: 1}, {n: 3, c: 1000, l: 1, groups: 1, uncentered: true}, {n: 2, c: 3001, l: 1, groups: 1},
	{n: 70, c: 768, l: 1, groups: 1}, {n: 9, c: 1024, l: 1, groups: 1, uncentered: true}, {n: 37, c: 1608, l: 1, groups: 1}, {n: 3, c: 8192, l: 1, groups: 1, uncentered: true}, {n: 1, c: 8200, l: 1, groups: 1},
}

const normEps = 1e-3

func (c normCase) norm() kernels.Norm {
	return kernels.Norm{Groups: c.groups, Uncentered: c.uncentered, Eps: normEps}
}

// stats returns the number of means.
func (c normCase) stats() int {
	if c.groups == 0 {
		return c.c
	}
	return c.n * c.groups
}

// slack returns the factor of the tolerance, in eps. In Float64 the kernels' own sums, which are in
// Float64 too, add roundings.
func (r *rig) slack(c normCase) float64 {
	if r.dt == device.Float64 {
		return 16 + c.size()/16
	}
	return 16
}

// at returns the group and the channel of element i.
func (c normCase) at(i int) (group, channel int) {
	channel = i / c.l % c.c
	if c.groups == 0 {
		return channel, channel
	}
	return i/(c.l*c.c)*c.groups + channel/(c.c/c.groups), channel
}

// size returns the number of elements in a group.
func (c normCase) size() float64 {
	if c.groups == 0 {
		return float64(c.n * c.l)
	}
	return float64(c.c / c.groups * c.l)
}

// normalised is the reference of a normalisation and of its gradients.
type normalised struct {
	mean, variance []float64
	y, size        []float64 // the normalised x, and the magnitudes of the terms whose difference it is
}

func (c normCase) reference(x []float64) normalised {
	r := normalised{make([]float64, c.stats()), make([]float64, c.stats()), make([]float64, len(x)), make([]float64, len(x))}
	for i, v := range x {
		if g, _ := c.at(i); !c.uncentered {
			r.mean[g] += v / c.size()
		}
	}
	for i, v := range x {
		g, _ := c.at(i)
		r.variance[g] += (v - r.mean[g]) * (v - r.mean[g]) / c.size()
	}
	for i, v := range x {
		g, _ := c.at(i)
		scale := 1 / math.Sqrt(r.variance[g]+normEps)
		r.y[i], r.size[i] = (v-r.mean[g])*scale, (math.Abs(v)+math.Abs(r.mean[g]))*scale
	}
	return r
}

// stat places means or variances, which have a type of their own.
func (r *rig) stat(v []float64, shape ...int) operand {
	dt := kernels.StatType(r.dt)
	return r.place(dt, shape, encode(dt, v))
}

func checkNorm(r *rig) {
	each(r, normCases, func(c normCase) {
		isLarge := c.n*c.c*c.l > 2_000
		if r.quick && (c.n*c.c*c.l > 50_000 || isLarge && r.skew != 0) {
			return
		}
		x := r.random(-1, 3, c.n, c.c, c.l)
		weight, bias, g := r.random(-2, 2, c.c), r.random(-1, 1, c.c), r.random(-2, 2, c.n, c.c, c.l)
		px, pw, pb, pg := r.put(x), r.put(weight), r.put(bias), r.put(g)
		ref := c.reference(x.v)
		label := fmt.Sprintf("normalisation %+v", c)
		mean, variance := r.stat(make([]float64, c.stats()), c.stats()), r.stat(make([]float64, c.stats()), c.stats())
		means := mean.Tensor
		if c.uncentered {
			means = device.Tensor{}
		}
		for _, affine := range []bool{true, false} {
			if r.quick && isLarge && !affine {
				break
			}
			var w, b device.Tensor
			if affine {
				w, b = pw.Tensor, pb.Tensor
			}
			want := value{newArray(x.shape...), make([]float64, len(x.v)), r.slack(c)}
			for i, y := range ref.y {
				_, ch := c.at(i)
				want.v[i], want.scale[i] = y, ref.size[i]
				if affine {
					want.v[i] = y*weight.v[ch] + bias.v[ch]
					want.scale[i] = ref.size[i]*math.Abs(weight.v[ch]) + math.Abs(bias.v[ch])
				}
			}
			r.result(label, want, func(dst device.Tensor) error {
				if c.groups > 0 {
					return r.k.GroupNorm(r.s, dst, means, variance.Tensor, px.Tensor, w, b, c.norm())
				}
				if err := r.k.Moments(r.s, means, variance.Tensor, px.Tensor); err != nil {
					return err
				}
				return r.k.BatchNorm(r.s, dst, device.Tensor{}, kernels.BatchNorm{X: px.Tensor, Mean: means, Variance: variance.Tensor, Weight: w, Bias: b, Eps: normEps})
			})
			r.normGrads(label, c, ref, g, weight, affine, pg, px, means, variance.Tensor, w)
			if c.groups > 0 {
				r.addNorm(label, c, px, pg, w, b)
			}
		}
		if c.size() == 0 { // the moments of no elements are undefined
			return
		}
		stat := value{array: array{device.Shape{c.stats()}, ref.variance}, scale: make([]float64, c.stats()), c: r.slack(c)}
		for i, v := range ref.variance {
			stat.scale[i] = v + math.Abs(ref.mean[i])*math.Sqrt(v) + 1e-3
		}
		r.same(label+": variance", variance, stat)
		if !c.uncentered {
			r.same(label+": mean", mean, value{array: array{device.Shape{c.stats()}, ref.mean}, scale: constant(3, c.stats()), c: r.slack(c)})
		}
	})
}

func constant(v float64, n int) []float64 {
	out := make([]float64, n)
	for i := range out {
		out[i] = v
	}
	return out
}

// normGrads checks the gradients with respect to x and to the parameters.
func (r *rig) normGrads(label string, c normCase, ref normalised, g, weight array, affine bool, pg, px operand, mean, variance, w device.Tensor) {
	sums, scales := newArray(2, c.c), make([]float64, 2*c.c)
	for i, v := range g.v {
		_, ch := c.at(i)
		sums.v[ch] += v
		scales[ch] += math.Abs(v)
		sums.v[c.c+ch] += v * ref.y[i]
		scales[c.c+ch] += math.Abs(v) * ref.size[i]
	}
	batch := kernels.BatchNorm{X: px.Tensor, Mean: mean, Variance: variance, Weight: w, Eps: normEps}
	got := r.stat(make([]float64, 2*c.c), 2, c.c)
	if c.groups == 0 {
		r.ok(label, r.k.BatchNormGradSums(r.s, got.Tensor, pg.Tensor, batch))
		r.same(label+": sums", got, value{sums, scales, r.slack(c)})
		again := r.stat(make([]float64, 2*c.c), 2, c.c)
		r.ok(label, r.k.BatchNormGradSums(r.s, again.Tensor, pg.Tensor, batch))
		if string(r.read(label, got)) != string(r.read(label, again)) {
			r.fail("%s: sums, computed twice, differ", label)
		}
	} else {
		half := func(i int) value {
			return value{array{device.Shape{c.c}, sums.v[i*c.c : (i+1)*c.c]}, scales[i*c.c : (i+1)*c.c], r.slack(c)}
		}
		r.accumulates(label+": gradient of the bias", half(0), func(dst device.Tensor, acc device.Accum) error {
			return r.k.GroupNormGrad(r.s, kernels.NormGrads{Bias: dst, AccBias: acc}, pg.Tensor, px.Tensor, mean, variance, w, c.norm())
		})
		r.accumulates(label+": gradient of the weight", half(1), func(dst device.Tensor, acc device.Accum) error {
			return r.k.GroupNormGrad(r.s, kernels.NormGrads{Weight: dst, AccWeight: acc}, pg.Tensor, px.Tensor, mean, variance, w, c.norm())
		})
	}

	// h is the gradient with respect to the normalised x.
	h, sum, product, size := make([]float64, len(g.v)), make([]float64, c.stats()), make([]float64, c.stats()), make([]float64, c.stats())
	for i, v := range g.v {
		gr, ch := c.at(i)
		if h[i] = v; affine {
			h[i] *= weight.v[ch]
		}
		sum[gr] += h[i] / c.size()
		product[gr] += h[i] * ref.y[i] / c.size()
		size[gr] += math.Abs(h[i]) * (1 + ref.size[i]) / c.size()
	}
	want := value{newArray(g.shape...), make([]float64, len(g.v)), r.slack(c)}
	constants := value{newArray(g.shape...), make([]float64, len(g.v)), r.slack(c)} // constants: the gradient for constant moments
	for i, v := range h {
		gr, _ := c.at(i)
		scale := 1 / math.Sqrt(ref.variance[gr]+normEps)
		if c.uncentered {
			sum[gr] = 0
		}
		want.v[i] = scale * (v - sum[gr] - ref.y[i]*product[gr])
		want.scale[i] = scale * (math.Abs(v) + size[gr]*(1+ref.size[i]))
		constants.v[i], constants.scale[i] = scale*v, math.Abs(scale*v)
	}
	if c.groups > 0 {
		r.accumulates(label+": gradient", want, func(dst device.Tensor, acc device.Accum) error {
			return r.k.GroupNormGrad(r.s, kernels.NormGrads{X: dst, AccX: acc}, pg.Tensor, px.Tensor, mean, variance, w, c.norm())
		})
		for i, v := range g.v { // with g as the addend
			want.v[i] += v
			want.scale[i] += math.Abs(v)
		}
		r.accumulates(label+": gradient and addend", want, func(dst device.Tensor, acc device.Accum) error {
			return r.k.GroupNormGrad(r.s, kernels.NormGrads{X: dst, AccX: acc, Addend: pg.Tensor}, pg.Tensor, px.Tensor, mean, variance, w, c.norm())
		})
		r.togetherAsAlone(label, c, pg, px, mean, variance, w)
		return
	}
	count := r.stat([]float64{c.size()})
	r.accumulates(label+": gradient", want, func(dst device.Tensor, acc device.Accum) error {
		return r.k.BatchNormGrad(r.s, kernels.BatchNormGrads{X: dst, AccX: acc}, pg.Tensor, got.Tensor, count.Tensor, batch)
	})
	r.accumulates(label+": gradient with constant moments", constants, func(dst device.Tensor, acc device.Accum) error {
		return r.k.BatchNormGrad(r.s, kernels.BatchNormGrads{X: dst, AccX: acc}, pg.Tensor, device.Tensor{}, device.Tensor{}, batch)
	})
}

// togetherAsAlone checks that the gradients that one GroupNormGrad computes have the bits of gradients that
// are computed alone.
func (r *rig) togetherAsAlone(label string, c normCase, pg, px operand, mean, variance, w device.Tensor) {
	grads := func(joint bool) [3]operand {
		x, weight, bias := r.put(nan(device.Shape{c.n, c.c, c.l})), r.put(nan(device.Shape{c.c})), r.put(nan(device.Shape{c.c}))
		all := kernels.NormGrads{X: x.Tensor, Weight: weight.Tensor, Bias: bias.Tensor, AccX: device.Store, AccWeight: device.Store, AccBias: device.Store}
		parts := []kernels.NormGrads{all}
		if !joint {
			parts = []kernels.NormGrads{{X: all.X, AccX: all.AccX}, {Weight: all.Weight, AccWeight: all.AccWeight}, {Bias: all.Bias, AccBias: all.AccBias}}
		}
		for _, to := range parts {
			r.ok(label, r.k.GroupNormGrad(r.s, to, pg.Tensor, px.Tensor, mean, variance, w, c.norm()))
		}
		return [3]operand{x, weight, bias}
	}
	alone, joint := grads(false), grads(true)
	for i, what := range []string{"x", "the weight", "the bias"} {
		if string(r.read(label, alone[i])) != string(r.read(label, joint[i])) {
			r.fail("%s: the gradient of %s differs if others are computed with it", label, what)
		}
	}
}

// addNorm checks that AddGroupNorm has the bits of a sum and a GroupNorm of it.
func (r *rig) addNorm(label string, c normCase, x, y operand, w, b device.Tensor) {
	shape := device.Shape{c.n, c.c, c.l}
	outputs := func(f func(dst, sum, mean, variance device.Tensor) error) (all [4]operand) {
		all = [4]operand{r.put(nan(shape)), r.put(nan(shape)), r.stat(make([]float64, c.stats()), c.stats()), r.stat(make([]float64, c.stats()), c.stats())}
		means := all[2].Tensor
		if c.uncentered {
			means = device.Tensor{}
		}
		r.ok(label, f(all[0].Tensor, all[1].Tensor, means, all[3].Tensor))
		return all
	}
	separate := outputs(func(dst, sum, mean, variance device.Tensor) error {
		if err := r.k.Binary(r.s, kernels.Add, sum, x.Tensor, y.Tensor); err != nil {
			return err
		}
		return r.k.GroupNorm(r.s, dst, mean, variance, sum, w, b, c.norm())
	})
	fused := outputs(func(dst, sum, mean, variance device.Tensor) error {
		return r.k.AddGroupNorm(r.s, dst, sum, mean, variance, x.Tensor, y.Tensor, w, b, c.norm())
	})
	inPlace := outputs(func(dst, sum, mean, variance device.Tensor) error {
		if err := r.k.Copy(r.s, sum, x.Tensor); err != nil {
			return err
		}
		return r.k.AddGroupNorm(r.s, dst, sum, mean, variance, sum, y.Tensor, w, b, c.norm())
	})
	for i, what := range []string{"result", "sum", "mean", "variance"} {
		want := string(r.read(label, separate[i]))
		if string(r.read(label, fused[i])) != want || string(r.read(label, inPlace[i])) != want {
			r.fail("%s: the %s of AddGroupNorm is not that of a sum and a GroupNorm", label, what)
		}
	}
}

// checkNormNaN checks that a NaN makes all elements of its group NaN, and no others, in both
// directions.
func checkNormNaN(r *rig) {
	for _, c := range []normCase{{n: 3, c: 4, l: 7}, {n: 9, c: 40, l: 1}, {n: 9, c: 41, l: 1}, {n: 3, c: 4, l: 7, groups: 2}, {n: 3, c: 600, l: 1, groups: 1}, {n: 9, c: 1608, l: 1, groups: 1}} {
		x, g := r.random(-1, 3, c.n, c.c, c.l), r.random(-1, 1, c.n, c.c, c.l)
		bad := len(x.v) / 2
		x.v[bad] = math.NaN()
		px, pg, y, dx := r.put(x), r.put(g), r.put(newArray(x.shape...)), r.put(newArray(x.shape...))
		mean, variance := r.stat(make([]float64, c.stats()), c.stats()), r.stat(make([]float64, c.stats()), c.stats())
		label := fmt.Sprintf("normalisation %+v with a NaN", c)
		if c.groups > 0 {
			r.ok(label, r.k.GroupNorm(r.s, y.Tensor, mean.Tensor, variance.Tensor, px.Tensor, device.Tensor{}, device.Tensor{}, c.norm()))
			r.ok(label, r.k.GroupNormGrad(r.s, kernels.NormGrads{X: dx.Tensor, AccX: device.Store}, pg.Tensor, px.Tensor, mean.Tensor, variance.Tensor, device.Tensor{}, c.norm()))
		} else {
			sums, count := r.stat(make([]float64, 2*c.c), 2, c.c), r.stat([]float64{c.size()})
			r.ok(label, r.k.Moments(r.s, mean.Tensor, variance.Tensor, px.Tensor))
			batch := kernels.BatchNorm{X: px.Tensor, Mean: mean.Tensor, Variance: variance.Tensor, Eps: normEps}
			r.ok(label, r.k.BatchNorm(r.s, y.Tensor, device.Tensor{}, batch))
			r.ok(label, r.k.BatchNormGradSums(r.s, sums.Tensor, pg.Tensor, batch))
			r.ok(label, r.k.BatchNormGrad(r.s, kernels.BatchNormGrads{X: dx.Tensor, AccX: device.Store}, pg.Tensor, sums.Tensor, count.Tensor, batch))
		}
		group, _ := c.at(bad)
		for what, o := range map[string]operand{"result": y, "gradient": dx} {
			for i, v := range decode(r.dt, r.read(label, o)) {
				if at, _ := c.at(i); (v != v) != (at == group) {
					r.fail("%s: element %d of the %s is %v", label, i, what, v)
				}
			}
		}
		r.clean()
	}
}

// checkMergedMoments checks MergeMoments and TrackMoments. The moments merged from the ranks' parts
// are those of all elements, also if a rank has no elements. A batch without elements, whose moments are NaN, changes
// no running moments.
func checkMergedMoments(r *rig) {
	each(r, []int{0, 1, 5, 300}, func(c int) {
		counts := []int{3, 0, 1, 10}
		parts := newArray(len(counts), 2*c+1)
		mean, variance := newArray(c), newArray(c)
		xs := make([][]float64, c)
		for rank, n := range counts {
			row := parts.v[rank*(2*c+1) : (rank+1)*(2*c+1)]
			row[2*c] = float64(n)
			for i := range c {
				x := r.random(1, 3, n).v
				xs[i] = append(xs[i], x...)
				row[i], row[c+i] = momentsOf(x)
				row[i], row[c+i] = round(r.dt, row[i]), round(r.dt, row[c+i])
			}
		}
		for i, x := range xs {
			mean.v[i], variance.v[i] = momentsOf(x)
		}
		pp, pm, pv, count := r.put(parts), r.put(nan(device.Shape{c})), r.put(nan(device.Shape{c})), r.put(nan(scalar))
		r.ok("MergeMoments", r.k.MergeMoments(r.s, pm.Tensor, pv.Tensor, count.Tensor, pp.Tensor))
		r.same("MergeMoments: mean", pm, value{mean, constant(3, c), 4})
		r.same("MergeMoments: variance", pv, value{variance, constant(9, c), 4})
		r.same("MergeMoments: count", count, value{array{scalar, []float64{14}}, nil, 0})

		const momentum = 0.1
		batches := r.place(device.Int64, scalar, bytesOf([]int64{41}))
		rm, rv := r.random(-1, 1, c), r.random(0, 1, c)
		prm, prv := r.put(rm), r.put(rv)
		r.ok("TrackMoments", r.k.TrackMoments(r.s, prm.Tensor, prv.Tensor, batches.Tensor, pm.Tensor, pv.Tensor, count.Tensor, momentum))
		for i := range c {
			rm.v[i] = (1-momentum)*rm.v[i] + momentum*mean.v[i]
			rv.v[i] = (1-momentum)*rv.v[i] + momentum*variance.v[i]*14/13
		}
		r.same("TrackMoments: mean", prm, value{rm, constant(3, c), 4})
		r.same("TrackMoments: variance", prv, value{rv, constant(9, c), 4})
		r.same("TrackMoments: batches", batches, value{array{scalar, []float64{42}}, nil, 0})

		// The variance of one element is not multiplied.
		for n, weight := range map[float64]float64{0: 0, 1: momentum} {
			count, m, v := r.put(array{scalar, []float64{n}}), r.put(nan(device.Shape{c})), r.put(nan(device.Shape{c}))
			if n == 1 {
				m, v = pm, pv
			}
			prm, prv := r.put(rm), r.put(rv)
			r.ok("TrackMoments", r.k.TrackMoments(r.s, prm.Tensor, prv.Tensor, batches.Tensor, m.Tensor, v.Tensor, count.Tensor, momentum))
			wm, wv := newArray(c), newArray(c)
			for i := range c {
				wm.v[i] = (1-weight)*rm.v[i] + weight*mean.v[i]
				wv.v[i] = (1-weight)*rv.v[i] + weight*variance.v[i]
			}
			r.same(fmt.Sprintf("TrackMoments of %v elements: mean", n), prm, value{wm, constant(3, c), 4})
			r.same(fmt.Sprintf("TrackMoments of %v elements: variance", n), prv, value{wv, constant(9, c), 4})
		}
	})
}

// momentsOf returns the mean and the variance of numbers, NaN if there are none.
func momentsOf(x []float64) (mean, variance float64) {
	n := float64(len(x))
	for _, v := range x {
		mean += v
	}
	mean /= n
	for _, v := range x {
		variance += (v - mean) * (v - mean)
	}
	return mean, variance / n
}
