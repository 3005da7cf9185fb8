package cpu

import (
	"slices"

	"github.com/goddp/goddp/device"
)

func (k *kernels) SGD(_ device.Stream, p device.SGDStep) error {
	operands.SGD(p)
	if slices.ContainsFunc(device.Elements[uint8](p.Skip), func(flag uint8) bool { return flag != 0 }) {
		return nil
	}
	if p.Param.DType == device.Float32 {
		sgd[float32](k, p)
	} else {
		sgd[float64](k, p)
	}
	return nil
}

func sgd[T float](k *kernels, p device.SGDStep) {
	w, g := device.Elements[T](p.Param), device.Elements[T](p.Grad)
	var v []T
	if p.Momentum != 0 {
		v = device.Elements[T](p.Velocity)
	}
	lr, mu, fresh, decay := T(p.LR), T(p.Momentum), T(1-p.Dampening), T(p.WeightDecay)
	first, nesterov := p.First, p.Nesterov // the closure must not take all of p to the heap
	k.each(len(w), 1, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			d := g[i]
			if decay != 0 {
				d += decay * w[i]
			}
			if v != nil {
				if first {
					v[i] = d
				} else {
					v[i] = mu*v[i] + fresh*d
				}
				if nesterov {
					d += mu * v[i]
				} else {
					d = v[i]
				}
			}
			w[i] -= lr * d
		}
	})
}
