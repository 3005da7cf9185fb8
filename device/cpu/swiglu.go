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
		for i := lo; i < hi; i++ {
			v, d := float64(x[i]), float64(of[i])
			s := sigmoid(v)
			if dx != nil {
				device.Accumulate(&dx[i], to.AccGate, T(d*float64(y[i])*(s*(1+v*(1-s)))))
			}
			if dy != nil {
				device.Accumulate(&dy[i], to.AccUp, T(d*(v*s)))
			}
		}
	})
}
