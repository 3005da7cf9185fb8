package cpu

import (
	"math"
	"slices"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/internal/operand"
	"github.com/goddp/goddp/internal/kernels"
)

func (k *kernelSet) SGD(_ device.Stream, steps ...kernels.SGDStep) error {
	return updateAll(k, steps, (*kernels.SGDStep).Update, newSGDRule[float32], newSGDRule[float64])
}

func (k *kernelSet) AdamW(_ device.Stream, steps ...kernels.AdamWStep) error {
	return updateAll(k, steps, (*kernels.AdamWStep).Update, newAdamWRule[float32], newAdamWRule[float64])
}

func (k *kernelSet) RMSProp(_ device.Stream, steps ...kernels.RMSPropStep) error {
	return updateAll(k, steps, (*kernels.RMSPropStep).Update, newRMSPropRule[float32], newRMSPropRule[float64])
}

// rule updates the parameters w and the state by the gradients g. A state that the optimizer does not keep is nil.
type rule[T float] func(w, g []T, state [3][]T)

// newRule makes a rule from the numbers and flags of a kernels.Update.
type newRule[T float] func(n [11]float64, flags [2]bool) rule[T]

func updateAll[S any](k *kernelSet, steps []S, of func(*S) kernels.Update, rule32 newRule[float32], rule64 newRule[float64]) error {
	for i := range steps {
		u := of(&steps[i])
		operand.Update(&u)
		copy(u.Numbers[:], device.Elements[float64](*u.At))
		switch {
		case raised(*u.Skip) || raised(*u.Overflow):
		case u.Param.DType == device.Float32 && u.Narrow == device.Invalid:
			update(k, rule32(u.Numbers, u.Flags), &u)
		case u.Param.DType == device.Float64:
			update(k, rule64(u.Numbers, u.Flags), &u)
		default:
			updateHalf(k, rule32(u.Numbers, u.Flags), &u)
		}
	}
	return nil
}

// raised reports whether one of the flags is set.
func raised(flags device.Tensor) bool {
	return slices.ContainsFunc(device.Elements[uint8](flags), func(flag uint8) bool { return flag != 0 })
}

func update[T float](k *kernelSet, step rule[T], u *kernels.Update) {
	w, g := device.Elements[T](*u.Param), device.Elements[T](*u.Grad)
	var state [3][]T
	for i, t := range u.State {
		if t != nil {
			state[i] = device.Elements[T](*t)
		}
	}
	k.each(len(w), 2, func(lo, hi int) {
		part := state
		for i, s := range part {
			if s != nil {
				part[i] = s[lo:hi]
			}
		}
		step(w[lo:hi], g[lo:hi], part)
	})
}

// updateHalf converts 16-bit operands to float32, one tile at a time. It rounds the first two states at random if they
// are narrower than the numbers that the rule updates.
func updateHalf(k *kernelSet, step rule[float32], u *kernels.Update) {
	w, g, s := newOperand32(*u.Param), newOperand32(*u.Grad), newOperand32(*u.Master)
	if u.Master.IsZero() {
		s = w // s becomes the parameter if there are no master weights
	}
	var state [3]operand32
	for i, t := range u.State {
		if t != nil {
			state[i] = newOperand32(*t)
		}
	}
	k.each(u.Param.Len(), 4, func(lo, hi int) {
		var bs, bg [tile]float32
		var buf [3][tile]float32
		for ; lo < hi; lo += tile {
			to := min(lo+tile, hi)
			var part [3][]float32
			for i := range state {
				part[i] = state[i].read(buf[i][:], lo, to)
			}
			ts := s.read(bs[:], lo, to)
			step(ts, g.read(bg[:], lo, to), part)
			w.write(ts, lo)
			if u.Narrow != device.Invalid {
				roundAtRandom(part[0], part[1], uint32(u.Numbers[4]))
			}
			for i := range state {
				state[i].write(part[i], lo)
			}
		}
	})
}

// roundAtRandom rounds each number of mean and variance to one of the two nearest numbers of type BFloat16: see
// kernels.AdamWStep.
func roundAtRandom(mean, variance []float32, step uint32) {
	for i, m := range mean {
		a, b := math.Float32bits(m), math.Float32bits(variance[i])
		h := a*0x9e3779b1 ^ b*0x85ebca77 ^ step*0xc2b2ae3d
		h = (h ^ h>>16) * 0x7feb352d // Wellons' lowbias32
		h = (h ^ h>>15) * 0x846ca68b
		h ^= h >> 16
		mean[i], variance[i] = truncated(a, h&0xffff), truncated(b, h>>16)
	}
}

// truncated returns the number of type Float32 with the given bits, increased by noise, which has 16 bits, and cut to the
// precision of BFloat16. NaN stays NaN.
func truncated(bits, noise uint32) float32 {
	if bits&0x7f800000 == 0x7f800000 {
		return math.Float32frombits(bits)
	}
	return math.Float32frombits((bits + noise) &^ 0xffff)
}

type sgdRule[T float] struct {
	lr, unscale, momentum, fresh, decay T // fresh: 1 - dampening
	nesterov, first                     bool
}

func newSGDRule[T float](n [11]float64, flags [2]bool) rule[T] {
	return sgdRule[T]{T(n[0]), T(n[1]), T(n[2]), T(n[3]), T(n[4]), flags[0], flags[1]}.step
}

func (r sgdRule[T]) step(w, g []T, state [3][]T) {
	g = g[:len(w)]
	v := state[0]
	if v == nil {
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

// gradient returns g, the gradient of the parameter w, after it has applied loss scale, sign and weight decay.
func (r *sgdRule[T]) gradient(g, w T) T {
	g *= r.unscale
	if r.decay != 0 {
		g += r.decay * w
	}
	return g
}

type adamWRule[T float] struct {
	rate, root, kept, unscale    T // kept: the factor of the parameter, 1 less the decoupled weight decay
	beta1, fresh1, beta2, fresh2 T // fresh: 1 - beta
	eps, coupled                 T // coupled: the weight decay that is added to the gradient
	first                        bool
}

func newAdamWRule[T float](n [11]float64, flags [2]bool) rule[T] {
	return adamWRule[T]{T(n[0]), T(n[1]), T(n[2]), T(n[3]), T(n[5]), T(n[6]), T(n[7]), T(n[8]), T(n[9]), T(n[10]), flags[0]}.step
}

// step updates the mean, the variance and, with AMSGrad, the maximum of the variances.
func (r adamWRule[T]) step(w, g []T, state [3][]T) {
	g, m, v, most := g[:len(w)], state[0][:len(w)], state[1][:len(w)], state[2]
	if r32, ok := any(&r).(*adamWRule[float32]); ok && !r.first && r.coupled == 0 && most == nil &&
		vectorAdamW(r32, float32s(w), float32s(g), float32s(m), float32s(v)) {
		return
	}
	for i, x := range w {
		// The conversions keep the compiler from fusing products and sums, which would give other bits than vectorAdamW.
		d := T(g[i] * r.unscale)
		if r.coupled != 0 {
			d += T(r.coupled * x)
		}
		mean, variance := T(r.fresh1*d), T(r.fresh2*d*d)
		if !r.first {
			mean += T(r.beta1 * m[i])
			variance += T(r.beta2 * v[i])
		}
		m[i], v[i] = mean, variance
		if most != nil {
			if old := most[i]; !r.first && (old > variance || old != old) {
				variance = old
			}
			most[i] = variance
		}
		w[i] = T(r.kept*x) - r.rate*mean/(T(T(math.Sqrt(float64(variance)))*r.root)+r.eps)
	}
}

type rmsPropRule[T float] struct {
	lr, unscale, alpha, fresh, eps, momentum, decay T // fresh: 1 - alpha
}

func newRMSPropRule[T float](n [11]float64, _ [2]bool) rule[T] {
	return rmsPropRule[T]{T(n[0]), T(n[1]), T(n[2]), T(n[3]), T(n[4]), T(n[5]), T(n[6])}.step
}

// step updates the mean square, and the mean and the velocity if the optimizer keeps them.
func (r rmsPropRule[T]) step(w, g []T, state [3][]T) {
	g, sq, m, v := g[:len(w)], state[0][:len(w)], state[1], state[2]
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
