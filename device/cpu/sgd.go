package cpu

import (
	"slices"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/internal/operand"
	"github.com/goddp/goddp/internal/kernels"
)

func (k *kernelSet) SGD(_ device.Stream, steps ...kernels.SGDStep) error {
	for _, p := range steps {
		operand.SGD(p)
		k.stepSGD(p)
	}
	return nil
}

func (k *kernelSet) stepSGD(p kernels.SGDStep) {
	switch {
	case raised(p.Skip) || raised(p.Overflow):
	case p.Param.DType == device.Float32:
		sgd(k, newRule[float32](&p), p)
	case p.Param.DType == device.Float64:
		sgd(k, newRule[float64](&p), p)
	default:
		sgdHalf(k, newRule[float32](&p), p)
	}
}

// raised reports whether one of the flags is set.
func raised(flags device.Tensor) bool {
	return slices.ContainsFunc(device.Elements[uint8](flags), func(flag uint8) bool { return flag != 0 })
}

// rule holds the numbers of a kernels.SGDStep. It is small, so that a closure can capture it; capturing the
// whole step would move it to the heap.
type rule[T float] struct {
	lr, momentum, fresh, decay, unscale T
	moving, nesterov, first             bool
}

func newRule[T float](p *kernels.SGDStep) rule[T] {
	v := p.Numbers()
	copy(v[:], device.Elements[float64](p.At))
	return rule[T]{
		lr: T(v[0]), momentum: T(p.Momentum), fresh: T(1 - p.Dampening), decay: T(p.WeightDecay), unscale: T(v[1]),
		moving: p.Momentum != 0, nesterov: p.Nesterov, first: p.First,
	}
}

// step updates w by g, and v if there is momentum.
func (r rule[T]) step(w, g, v []T) {
	g = g[:len(w)]
	if !r.moving {
		for i, x := range w {
			w[i] = x - r.lr*r.gradient(g[i], x)
		}
		return
	}
	v = v[:len(w)]
	for i, x := range w {
		d := r.gradient(g[i], x)
		u := d
		if !r.first {
			u = r.momentum*v[i] + r.fresh*d
		}
		v[i] = u
		if r.nesterov {
			u = d + r.momentum*u
		}
		w[i] = x - r.lr*u
	}
}

// gradient returns the gradient g of the parameter w with loss scale, sign and weight decay
// applied.
func (r *rule[T]) gradient(g, w T) T {
	g *= r.unscale
	if r.decay != 0 {
		g += r.decay * w
	}
	return g
}

func sgd[T float](k *kernelSet, r rule[T], p kernels.SGDStep) {
	w, g, v := device.Elements[T](p.Param), device.Elements[T](p.Grad), device.Elements[T](velocity(p))
	k.each(len(w), 1, func(lo, hi int) { r.step(w[lo:hi], g[lo:hi], window(v, lo, hi)) })
}

// sgdHalf converts 16-bit operands to float32, one tile at a time.
func sgdHalf(k *kernelSet, r rule[float32], p kernels.SGDStep) {
	w, g, v, m := newOperand32(p.Param), newOperand32(p.Grad), newOperand32(velocity(p)), newOperand32(p.Master)
	k.each(p.Param.Len(), 4, func(lo, hi int) {
		var bw, bg, bv [tile]float32
		for ; lo < hi; lo += tile {
			to := min(lo+tile, hi)
			state := m // state: the master weights, or the parameter if there are none
			if m.dt == device.Invalid {
				state = w
			}
			tw, tg, tv := state.read(bw[:], lo, to), g.read(bg[:], lo, to), v.read(bv[:], lo, to)
			r.step(tw, tg, tv)
			w.write(tw, lo)
			v.write(tv, lo)
		}
	})
}

// velocity returns p's velocity if it is used.
func velocity(p kernels.SGDStep) device.Tensor {
	if p.Momentum == 0 {
		return device.Tensor{}
	}
	return p.Velocity
}

// window returns s[lo:hi], nil if s is nil.
func window[T any](s []T, lo, hi int) []T {
	if s == nil {
		return nil
	}
	return s[lo:hi]
}

// operand32 reads and writes an operand as float32. The operand is of float32 or of a 16-bit type,
// or absent.
type operand32 struct {
	dt   device.DType
	bits []uint16
	full []float32
}

func newOperand32(t device.Tensor) operand32 {
	if t.DType == device.Float32 {
		return operand32{dt: t.DType, full: device.Elements[float32](t)}
	}
	return operand32{dt: t.DType, bits: device.Elements[uint16](t)}
}

// read returns the elements lo to hi: a slice of a float32 operand, or a conversion into buf. It
// returns nil if the operand is absent.
func (h operand32) read(buf []float32, lo, hi int) []float32 {
	switch h.dt {
	case device.Float32:
		return h.full[lo:hi]
	case device.Float16:
		convert(buf, h.bits[lo:hi], kernels.FromF16)
	case device.BFloat16:
		convert(buf, h.bits[lo:hi], kernels.FromBF16)
	default:
		return nil
	}
	return buf[:hi-lo]
}

// write rounds x and stores it to the elements from lo on. It does nothing if x is a slice of the
// operand.
func (h operand32) write(x []float32, lo int) {
	switch h.dt {
	case device.Float16:
		convert(h.bits[lo:], x, kernels.F16)
	case device.BFloat16:
		convert(h.bits[lo:], x, kernels.BF16)
	}
}
