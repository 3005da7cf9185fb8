package devicetest

import (
	"math"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

func checkSwiGLU(r *rig) {
	each(r, shapes, func(shape device.Shape) {
		gate, up, g := r.random(-6, 6, shape...), r.random(-2, 2, shape...), r.random(-2, 2, shape...)
		pgate, pup, pg := r.put(gate), r.put(up), r.put(g)
		silu := func(x float64) float64 { return x * logistic(x) }
		r.result("SwiGLU", value{array: mapped(func(v ...float64) float64 { return silu(v[0]) * v[1] }, gate, up), c: 8}, func(dst device.Tensor) error {
			return r.k.SwiGLU(r.s, dst, pgate.Tensor, pup.Tensor)
		})
		dgate := value{array: mapped(func(v ...float64) float64 { return v[2] * v[1] * logistic(v[0]) * (1 + v[0]*logistic(-v[0])) }, gate, up, g), c: 16}
		dgate.scale = mapped(func(v ...float64) float64 { return math.Abs(v[2] * v[1]) }, gate, up, g).v
		dup := value{array: mapped(func(v ...float64) float64 { return v[1] * silu(v[0]) }, gate, g), c: 8}
		grad := func(to kernels.SwiGLUGrads) error {
			return r.k.SwiGLUGrad(r.s, to, pg.Tensor, pgate.Tensor, pup.Tensor)
		}
		r.accumulates("SwiGLU, gradient of the gate", dgate, func(dst device.Tensor, acc device.Accum) error {
			return grad(kernels.SwiGLUGrads{Gate: dst, AccGate: acc})
		})
		r.accumulates("SwiGLU, gradient of up", dup, func(dst device.Tensor, acc device.Accum) error {
			return grad(kernels.SwiGLUGrads{Up: dst, AccUp: acc})
		})
		third := device.Accum{Alpha: 1. / 3}
		r.result("SwiGLU, gradient of the gate beside up's", dgate, func(dst device.Tensor) error {
			return grad(kernels.SwiGLUGrads{Gate: dst, AccGate: device.Store, Up: r.put(g).Tensor, AccUp: third})
		})
		r.result("SwiGLU, gradient of up beside the gate's", dup, func(dst device.Tensor) error {
			return grad(kernels.SwiGLUGrads{Gate: r.put(g).Tensor, AccGate: third, Up: dst, AccUp: device.Store})
		})
	})
}
