package cpu

import (
	"errors"
	"math"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/internal/operand"
	"github.com/goddp/goddp/internal/kernels"
)

func (k *kernelSet) MaxPool2d(s device.Stream, dst, index, x device.Tensor, w kernels.Window) error {
	z := operands.MaxPool2d("MaxPool2d", dst, index, x, w)
	if w.ChannelsLast {
		y, at := unfilled(dst), unfilled(index)
		w.ChannelsLast = false
		if err := k.MaxPool2d(s, y, at, k.channelsFirst(s, x), w); err != nil {
			return err
		}
		return errors.Join(k.channelsLast(s, dst, device.Store, y), k.channelsLast(s, index, device.Store, at))
	}
	pick(x, maxPool[float32], maxPool[float64])(k, z, dst, index, x, w)
	return nil
}

func (k *kernelSet) MaxPool2dGrad(s device.Stream, dst device.Tensor, acc device.Accum, g, index device.Tensor, w kernels.Window) error {
	z := operands.MaxPool2d("MaxPool2dGrad", g, index, dst, w)
	if w.ChannelsLast {
		dx := unfilled(dst)
		w.ChannelsLast = false
		if err := k.MaxPool2dGrad(s, dx, device.Store, k.channelsFirst(s, g), k.channelsFirst(s, index), w); err != nil {
			return err
		}
		return k.channelsLast(s, dst, acc, dx)
	}
	pick(dst, maxPoolGrad[float32], maxPoolGrad[float64])(k, z, dst, acc, g, index)
	return nil
}

func (k *kernelSet) AvgPool2d(s device.Stream, dst, x device.Tensor, p kernels.AvgPool) error {
	z := operands.AvgPool2d("AvgPool2d", dst, x, p)
	if p.ChannelsLast {
		y := unfilled(dst)
		p.ChannelsLast = false
		if err := k.AvgPool2d(s, y, k.channelsFirst(s, x), p); err != nil {
			return err
		}
		return k.channelsLast(s, dst, device.Store, y)
	}
	pick(x, avgPool[float32], avgPool[float64])(k, z, dst, x, p)
	return nil
}

func (k *kernelSet) AvgPool2dGrad(s device.Stream, dst device.Tensor, acc device.Accum, g device.Tensor, p kernels.AvgPool) error {
	z := operands.AvgPool2d("AvgPool2dGrad", g, dst, p)
	if p.ChannelsLast {
		dx := unfilled(dst)
		p.ChannelsLast = false
		if err := k.AvgPool2dGrad(s, dx, device.Store, k.channelsFirst(s, g), p); err != nil {
			return err
		}
		return k.channelsLast(s, dst, acc, dx)
	}
	pick(dst, avgPoolGrad[float32], avgPoolGrad[float64])(k, z, dst, acc, g, p)
	return nil
}

// taps returns which elements of an axis of size n are in the window at a position. They start at `from`, are
// Dilation apart, and end before `to`.
func taps(w *kernels.Window, axis, position, n int) (from, to int) {
	from = position*w.Stride[axis] - w.Padding[axis]
	to = min(from+w.Dilation[axis]*(w.Kernel[axis]-1)+1, n)
	for from < 0 {
		from += w.Dilation[axis]
	}
	return from, to
}

func maxPool[T float](k *kernelSet, z operand.PoolSizes, dst, index, x device.Tensor, w kernels.Window) {
	d, at, xs := device.Elements[T](dst), device.Elements[int32](index), device.Elements[T](x)
	k.each(z.N*z.C, z.OH*z.OW*w.Kernel[0]*w.Kernel[1], func(lo, hi int) {
		for ; lo < hi; lo++ {
			plane := xs[lo*z.H*z.W : (lo+1)*z.H*z.W]
			for r := range z.OH {
				top, bottom := taps(&w, 0, r, z.H)
				out := (lo*z.OH + r) * z.OW
				for q := range z.OW {
					left, right := taps(&w, 1, q, z.W)
					if top >= bottom || left >= right {
						d[out+q], at[out+q] = T(math.Inf(-1)), -1
						continue
					}
					best := top*z.W + left
					most := plane[best]
					for i := top; i < bottom; i += w.Dilation[0] {
						for j := left; j < right; j += w.Dilation[1] {
							if v := plane[i*z.W+j]; v > most || v != v && most == most {
								best, most = i*z.W+j, v
							}
						}
					}
					d[out+q], at[out+q] = most, int32(best)
				}
			}
		}
	})
}

// scatter calls add for each image of dst, which has n elements, after multiplying the image by Beta.
func scatter[T float](k *kernelSet, planes, n int, d []T, acc device.Accum, add func(i int, plane []T)) {
	k.each(planes, n, func(lo, hi int) {
		for ; lo < hi; lo++ {
			plane := d[lo*n : (lo+1)*n]
			switch acc.Beta {
			case 0:
				clear(plane)
			case 1:
			default:
				accumulate(plane, device.Accum{Alpha: acc.Beta}, plane)
			}
			add(lo, plane)
		}
	})
}

func maxPoolGrad[T float](k *kernelSet, z operand.PoolSizes, dst device.Tensor, acc device.Accum, g, index device.Tensor) {
	gs, at, alpha, l := device.Elements[T](g), device.Elements[int32](index), T(acc.Alpha), z.OH*z.OW
	scatter(k, z.N*z.C, z.H*z.W, device.Elements[T](dst), acc, func(i int, plane []T) {
		where := at[i*l : (i+1)*l]
		for j, v := range gs[i*l : (i+1)*l] {
			if where[j] >= 0 {
				plane[where[j]] += alpha * v
			}
		}
	})
}

func avgPool[T float](k *kernelSet, z operand.PoolSizes, dst, x device.Tensor, p kernels.AvgPool) {
	d, xs := device.Elements[T](dst), device.Elements[T](x)
	k.each(z.N*z.C, z.H*z.W, func(lo, hi int) {
		for ; lo < hi; lo++ {
			plane := xs[lo*z.H*z.W : (lo+1)*z.H*z.W]
			for r := range z.OH {
				top, bottom, high := p.Region(0, r, z.H, z.OH)
				for q := range z.OW {
					left, right, wide := p.Region(1, q, z.W, z.OW)
					var v float64
					if top < bottom && left < right {
						for i := top; i < bottom; i++ {
							v += addRun(plane[i*z.W+left : i*z.W+right])
						}
						v /= float64(high * wide)
					}
					d[(lo*z.OH+r)*z.OW+q] = T(v)
				}
			}
		}
	})
}

func avgPoolGrad[T float](k *kernelSet, z operand.PoolSizes, dst device.Tensor, acc device.Accum, g device.Tensor, p kernels.AvgPool) {
	gs := device.Elements[T](g)
	scatter(k, z.N*z.C, z.H*z.W, device.Elements[T](dst), acc, func(n int, plane []T) {
		for r := range z.OH {
			top, bottom, high := p.Region(0, r, z.H, z.OH)
			for q := range z.OW {
				left, right, wide := p.Region(1, q, z.W, z.OW)
				if left >= right {
					continue
				}
				v := T(acc.Alpha * float64(gs[(n*z.OH+r)*z.OW+q]) / float64(high*wide))
				for i := top; i < bottom; i++ {
					row := plane[i*z.W+left : i*z.W+right]
					for j := range row {
						row[j] += v
					}
				}
			}
		}
	})
}
