package cpu

import (
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

func (k *kernelSet) Rotate(_ device.Stream, dst device.Tensor, acc device.Accum, x device.Tensor, r kernels.Rotation) error {
	operands.Rotate(dst, x, r)
	pick(dst, rotate[float32], rotate[float64])(k, dst, acc, x, r)
	return nil
}

func (k *kernelSet) RotateBoth(s device.Stream, dst, x [2]device.Tensor, cos, sin device.Tensor) error {
	for i := range x {
		if err := k.Rotate(s, dst[i], device.Store, x[i], kernels.Rotation{Cos: cos, Sin: sin, Heads: x[i].Shape[2]}); err != nil {
			return err
		}
	}
	return nil
}

func rotate[T float](k *kernelSet, dst device.Tensor, acc device.Accum, x device.Tensor, r kernels.Rotation) {
	d, v, cos, sin := device.Elements[T](dst), device.Elements[T](x), device.Elements[T](r.Cos), device.Elements[T](r.Sin)
	rows, heads, size, pairs := x.Shape[1], x.Shape[2], x.Shape[3], r.Cos.Shape[1]
	step, distance := 1, pairs // the distance between two pairs, and between the elements of one pair
	if r.Interleaved {
		step, distance = 2, 1
	}
	sign := T(1)
	if r.Inverse {
		sign = -1
	}
	k.each(x.Shape[0]*rows*heads, size, func(lo, hi int) {
		turned := make([]T, size)
		for ; lo < hi; lo++ {
			from := v[lo*size : (lo+1)*size]
			copy(turned, from)
			if lo%heads < r.Heads {
				t := lo / heads % rows * pairs
				for i := range pairs {
					a, b, c, s := from[i*step], from[i*step+distance], cos[t+i], sign*sin[t+i]
					turned[i*step], turned[i*step+distance] = a*c-b*s, b*c+a*s
				}
			}
			accumulate(d[lo*size:(lo+1)*size], acc, turned)
		}
	})
}
