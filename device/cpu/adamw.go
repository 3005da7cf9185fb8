package cpu

import (
	"math"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/internal/operand"
	"github.com/goddp/goddp/internal/kernels"
)

func (k *kernelSet) AdamW(_ device.Stream, steps ...kernels.AdamWStep) error {
	for _, p := range steps {
		operand.AdamW(p)
		k.stepAdamW(p)
	}
	return nil
}

func (k *kernelSet) stepAdamW(p kernels.AdamWStep) {
	switch {
	case raised(p.Skip) || raised(p.Overflow):
	case p.Param.DType == device.Float32:
		adamW(k, newAdamRule[float32](&p), p)
	case p.Param.DType == device.Float64:
		adamW(k, newAdamRule[float64](&p), p)
	default:
		adamWHalf(k, newAdamRule[float32](&p), p)
	}
}

// adamRule holds the numbers of a kernels.AdamWStep. It is small enough to be captured by a closure.
type adamRule[T float] struct {
	beta1, fresh1, beta2, fresh2 T // fresh: 1 - beta
	rate, root, eps              T // see kernels.AdamWStep.Rates
	coupled                      T // weight decay added to the gradient
	kept                         T // factor of the parameter: 1 minus the decoupled weight decay
	unscale                      T
	first                        bool
}

func newAdamRule[T float](p *kernels.AdamWStep) adamRule[T] {
	v := p.Numbers()
	copy(v[:], device.Elements[float64](p.At))
	r := adamRule[T]{
		beta1: T(p.Beta1), fresh1: T(1 - p.Beta1), beta2: T(p.Beta2), fresh2: T(1 - p.Beta2),
		rate: T(v[0]), root: T(v[1]), eps: T(p.Eps), kept: T(v[2]), unscale: T(v[3]), first: p.Step == 1,
	}
	if p.Coupled {
		r.coupled = T(p.WeightDecay)
	}
	return r
}

// step updates w, m and v with the gradient g. most is AMSGrad's maximum of the variances, or nil.
func (r adamRule[T]) step(w, g, m, v, most []T) {
	g, m, v = g[:len(w)], m[:len(w)], v[:len(w)]
	for i, x := range w {
		d := g[i] * r.unscale
		if r.coupled != 0 {
			d += r.coupled * x
		}
		mean, variance := r.fresh1*d, r.fresh2*d*d
		if !r.first {
			mean += r.beta1 * m[i]
			variance += r.beta2 * v[i]
		}
		m[i], v[i] = mean, variance
		if most != nil {
			if old := most[i]; !r.first && (old > variance || old != old) {
				variance = old
			}
			most[i] = variance
		}
		w[i] = r.kept*x - r.rate*mean/(T(math.Sqrt(float64(variance)))*r.root+r.eps)
	}
}

func adamW[T float](k *kernelSet, r adamRule[T], p kernels.AdamWStep) {
	w, g := device.Elements[T](p.Param), device.Elements[T](p.Grad)
	m, v := device.Elements[T](p.Mean), device.Elements[T](p.Variance)
	most := device.Elements[T](p.MaxVariance)
	k.each(len(w), 2, func(lo, hi int) { r.step(w[lo:hi], g[lo:hi], m[lo:hi], v[lo:hi], window(most, lo, hi)) })
}

// adamWHalf converts 16-bit operands to float32, one tile at a time.
func adamWHalf(k *kernelSet, r adamRule[float32], p kernels.AdamWStep) {
	w, g, s := newOperand32(p.Param), newOperand32(p.Grad), newOperand32(p.Master)
	m, v, most := newOperand32(p.Mean), newOperand32(p.Variance), newOperand32(p.MaxVariance)
	if p.Master.IsZero() {
		s = w // s: the master weights, or the parameter if there are none
	}
	k.each(p.Param.Len(), 4, func(lo, hi int) {
		var bs, bg, bm, bv, bmost [tile]float32
		for ; lo < hi; lo += tile {
			to := min(lo+tile, hi)
			ts, tg, tm, tv := s.read(bs[:], lo, to), g.read(bg[:], lo, to), m.read(bm[:], lo, to), v.read(bv[:], lo, to)
			tmost := most.read(bmost[:], lo, to)
			r.step(ts, tg, tm, tv, tmost)
			w.write(ts, lo)
			m.write(tm, lo)
			v.write(tv, lo)
			most.write(tmost, lo)
		}
	})
}
