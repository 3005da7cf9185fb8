package cpu

import (
	"math"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/internal/operand"
	"github.com/goddp/goddp/internal/kernels"
)

func (k *kernelSet) RMSProp(_ device.Stream, steps ...kernels.RMSPropStep) error {
	for _, p := range steps {
		operand.RMSProp(p)
		k.stepRMSProp(p)
	}
	return nil
}

func (k *kernelSet) stepRMSProp(p kernels.RMSPropStep) {
	if !p.Centered {
		p.Mean = device.Tensor{}
	}
	if p.Momentum == 0 {
		p.Velocity = device.Tensor{}
	}
	switch {
	case raised(p.Skip) || raised(p.Overflow):
	case p.Param.DType == device.Float32:
		rmsProp(k, newRMSPropRule[float32](&p), p)
	case p.Param.DType == device.Float64:
		rmsProp(k, newRMSPropRule[float64](&p), p)
	default:
		rmsPropHalf(k, newRMSPropRule[float32](&p), p)
	}
}

// rmsPropRule holds the numbers of a kernels.RMSPropStep. It is small enough to be captured by a closure.
type rmsPropRule[T float] struct {
	lr, alpha, fresh, eps, momentum, decay, unscale T // fresh: 1 - alpha
}

func newRMSPropRule[T float](p *kernels.RMSPropStep) rmsPropRule[T] {
	v := p.Numbers()
	copy(v[:], device.Elements[float64](p.At))
	return rmsPropRule[T]{
		lr: T(v[0]), alpha: T(p.Alpha), fresh: T(1 - p.Alpha), eps: T(p.Eps), momentum: T(p.Momentum),
		decay: T(p.WeightDecay), unscale: T(v[1]),
	}
}

// step updates w and sq by g, and m and v if they are present.
func (r rmsPropRule[T]) step(w, g, sq, m, v []T) {
	g, sq = g[:len(w)], sq[:len(w)]
	for i, x := range w {
		d := g[i] * r.unscale
		if r.decay != 0 {
			d += r.decay * x
		}
		square := r.alpha*sq[i] + r.fresh*d*d
		sq[i] = square
		if m != nil {
			mean := r.alpha*m[i] + r.fresh*d
			m[i] = mean
			square -= mean * mean
		}
		d /= T(math.Sqrt(float64(square))) + r.eps
		if v != nil {
			d += r.momentum * v[i]
			v[i] = d
		}
		w[i] = x - r.lr*d
	}
}

func rmsProp[T float](k *kernelSet, r rmsPropRule[T], p kernels.RMSPropStep) {
	w, g, sq := device.Elements[T](p.Param), device.Elements[T](p.Grad), device.Elements[T](p.Square)
	m, v := device.Elements[T](p.Mean), device.Elements[T](p.Velocity)
	k.each(len(w), 2, func(lo, hi int) { r.step(w[lo:hi], g[lo:hi], sq[lo:hi], window(m, lo, hi), window(v, lo, hi)) })
}

// rmsPropHalf converts 16-bit operands to float32, one tile at a time.
func rmsPropHalf(k *kernelSet, r rmsPropRule[float32], p kernels.RMSPropStep) {
	w, g, s := newOperand32(p.Param), newOperand32(p.Grad), newOperand32(p.Master)
	sq, m, v := newOperand32(p.Square), newOperand32(p.Mean), newOperand32(p.Velocity)
	if p.Master.IsZero() {
		s = w // s: the master weights, or the parameter if there are none
	}
	k.each(p.Param.Len(), 4, func(lo, hi int) {
		var bs, bg, bsq, bm, bv [tile]float32
		for ; lo < hi; lo += tile {
			to := min(lo+tile, hi)
			ts, tg, tsq := s.read(bs[:], lo, to), g.read(bg[:], lo, to), sq.read(bsq[:], lo, to)
			tm, tv := m.read(bm[:], lo, to), v.read(bv[:], lo, to)
			r.step(ts, tg, tsq, tm, tv)
			w.write(ts, lo)
			sq.write(tsq, lo)
			m.write(tm, lo)
			v.write(tv, lo)
		}
	})
}
