package cpu

import (
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

func (k *kernelSet) SwiGLU(_ device.Stream, dst, gate, up device.Tensor) error {
	operands.SwiGLU(dst, gate, up)
	pick(dst, swiGLU[float32], swiGLU[float64])(k, dst, gate, up)
	return nil
}

func (k *kernelSet) SwiGLUGrad(_ device.Stream, to kernels.SwiGLUGrads, g, gate, up device.Tensor) error {
	operands.SwiGLUGrad(to, g, gate, up)
	pick(g, swiGLUGrad[float32], swiGLUGrad[float64])(k, to, g, gate, up)
	return nil
}

func swiGLU[T float](k *kernelSet, dst, gate, up device.Tensor) {
	d, x, y := device.Elements[T](dst), device.Elements[T](gate), device.Elements[T](up)
	k.each(len(d), 8, func(lo, hi int) {
		if vectorSwiGLU(float32s(d[lo:hi]), float32s(x[lo:hi]), float32s(y[lo:hi])) {
			return
		}
		for i := lo; i < hi; i++ {
			v := float64(x[i])
			d[i] = T(v * sigmoid(v) * float64(y[i]))
		}
	})
}

func swiGLUGrad[T float](k *kernelSet, to kernels.SwiGLUGrads, g, gate, up device.Tensor) {
	of, x, y := device.Elements[T](g), device.Elements[T](gate), device.Elements[T](up)
	var dx, dy []T
	if !to.Gate.IsZero() {
		dx = device.Elements[T](to.Gate)
	}
	if !to.Up.IsZero() {
		dy = device.Elements[T](to.Up)
	}
	k.each(len(of), 8, func(lo, hi int) {
		var gateGrad, upGrad [tile]T
		for ; lo < hi; lo += tile {
			n := min(tile, hi-lo)
			swiGLUSlopes(gateGrad[:n], upGrad[:n], of[lo:lo+n], x[lo:lo+n], y[lo:lo+n])
			if dx != nil {
				accumulate(dx[lo:lo+n], to.AccGate, gateGrad[:])
			}
			if dy != nil {
				accumulate(dy[lo:lo+n], to.AccUp, upGrad[:])
			}
		}
	})
}

// swiGLUSlopes computes the gradients of gate and up.
func swiGLUSlopes[T float](gateGrad, upGrad, g, gate, up []T) {
	if vectorSwiGLUGate(float32s(gateGrad), float32s(g), float32s(gate), float32s(up)) {
		vectorSwiGLU(float32s(upGrad), float32s(gate), float32s(g)) // SiLU(gate)·g
		return
	}
	for i, v := range g {
		x, d := float64(gate[i]), float64(v)
		s := sigmoid(x)
		gateGrad[i], upGrad[i] = T(d*float64(up[i])*(s*(1+x*(1-s)))), T(d*(x*s))
	}
}
