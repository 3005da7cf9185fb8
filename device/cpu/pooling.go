package cpu

import (
	"math"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/internal/operand"
	"github.com/goddp/goddp/internal/kernels"
)

func (k *kernelSet) MaxPool2d(_ device.Stream, dst, index, x device.Tensor, w kernels.Window) error {
	z := operands.MaxPool2d("MaxPool2d", dst, index, x, w)
	pick(x, maxPool[float32], maxPool[float64])(k, z, dst, index, x, w)
	return nil
}

func (k *kernelSet) MaxPool2dGrad(_ device.Stream, dst device.Tensor, acc device.Accum, g, index device.Tensor, w kernels.Window) error {
	z := operands.MaxPool2d("MaxPool2dGrad", g, index, dst, w)
	pick(dst, maxPoolGrad[float32], maxPoolGrad[float64])(k, z, dst, acc, g, index, w.ChannelsLast)
	return nil
}

func (k *kernelSet) AvgPool2d(_ device.Stream, dst, x device.Tensor, p kernels.AvgPool) error {
	z := operands.AvgPool2d("AvgPool2d", dst, x, p)
	pick(x, avgPool[float32], avgPool[float64])(k, z, dst, x, p)
	return nil
}

func (k *kernelSet) AvgPool2dGrad(_ device.Stream, dst device.Tensor, acc device.Accum, g device.Tensor, p kernels.AvgPool) error {
	z := operands.AvgPool2d("AvgPool2dGrad", g, dst, p)
	pick(dst, avgPoolGrad[float32], avgPoolGrad[float64])(k, z, dst, acc, g, p)
	return nil
}

// A kernel of this file visits planes: the channels of the images one by one, or with channels last the images. A point
// of a plane has one element, or one of each channel.

// planes returns the number of planes of images, and the number of elements of a point.
func planes(z operand.PoolSizes, channelsLast bool) (n, width int) {
	if channelsLast {
		return z.N, z.C
	}
	return z.N * z.C, 1
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
	n, width := planes(z, w.ChannelsLast)
	// The windows of a row with the indices before to after-1 are whole. The others reach into the padding.
	before := (w.Padding[1] + w.Stride[1] - 1) / w.Stride[1]
	after := max(min((z.W+w.Padding[1]-w.Dilation[1]*(w.Kernel[1]-1)-1)/w.Stride[1]+1, z.OW), before)
	k.each(n*z.OH, z.OW*width*w.Kernel[0]*w.Kernel[1], func(lo, hi int) {
		if vectorMaxPool(z, &w, before, after, float32s(d), at, float32s(xs), lo, hi) {
			return
		}
		ranks := make([]int64, max(width, z.OW))
		for ; lo < hi; lo++ {
			f := maxFinder[T]{plane: xs[lo/z.OH*z.H*z.W*width:][:z.H*z.W*width], ranks: ranks, w: &w, row: z.W, width: width}
			f.top, f.bottom = taps(&w, 0, lo%z.OH, z.H)
			d, at := d[lo*z.OW*width:(lo+1)*z.OW*width], at[lo*z.OW*width:(lo+1)*z.OW*width]
			for q := 0; q < z.OW && width > 0; q++ {
				f.left, f.right = taps(&w, 1, q, z.W)
				switch {
				case width > 1 || q < before || q >= after:
					f.find(d[q*width:(q+1)*width], at[q*width:(q+1)*width], 1, 0)
				default:
					f.find(d[q:after], at[q:after], w.Stride[1], w.Stride[1])
					q = after - 1
				}
			}
		}
	})
}

// maxFinder finds the largest elements of windows.
type maxFinder[T float] struct {
	plane                    []T
	ranks                    []int64
	w                        *kernels.Window
	row, width               int // the number of points in a row of the plane, and of elements in a point
	top, bottom, left, right int // the window, as taps returns it
}

// find finds the largest elements d of windows, and their points. Each window begins step elements and next points after the one
// before.
func (f *maxFinder[T]) find(d []T, at []int32, step, next int) {
	if f.top >= f.bottom || f.left >= f.right {
		fill(d, T(math.Inf(-1)))
		fill(at, -1)
		return
	}
	best := f.ranks[:len(d)]
	at = at[:len(d)]
	fill(best, math.MinInt64)
	for i := f.top; i < f.bottom; i += f.w.Dilation[0] {
		for j := f.left; j < f.right; j += f.w.Dilation[1] {
			point := i*f.row + j
			from := f.plane[point*f.width:]
			for c, most := range best {
				// The compiler selects without branches, which the processor could not predict.
				r, here, where := rank(from[c*step]), int32(point+c*next), at[c]
				if r > most {
					most, where = r, here
				}
				best[c], at[c] = most, where
			}
		}
	}
	for c, point := range at {
		d[c] = f.plane[int(point)*f.width+c%f.width]
	}
}

// rank returns a number that orders floats, with NaN above all.
func rank[T float](v T) int64 {
	if v != v {
		return math.MaxInt64
	}
	b := int64(math.Float64bits(float64(v) + 0)) // + 0: -0 counts as 0
	return b ^ int64(uint64(b>>63)>>1)
}

// scatter calls add for each plane of dst, which has n elements, after multiplying the plane by Beta.
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

func maxPoolGrad[T float](k *kernelSet, z operand.PoolSizes, dst device.Tensor, acc device.Accum, g, index device.Tensor, channelsLast bool) {
	gs, at, alpha := device.Elements[T](g), device.Elements[int32](index), T(acc.Alpha)
	n, width := planes(z, channelsLast)
	l := z.OH * z.OW * width
	scatter(k, n, z.H*z.W*width, device.Elements[T](dst), acc, func(i int, plane []T) {
		where, gs := at[i*l:(i+1)*l], gs[i*l:(i+1)*l]
		for p := 0; p < l; p += width {
			for c, v := range gs[p : p+width] {
				if to := int(where[p+c]); to >= 0 {
					plane[to*width+c] += alpha * v
				}
			}
		}
	})
}

func avgPool[T float](k *kernelSet, z operand.PoolSizes, dst, x device.Tensor, p kernels.AvgPool) {
	d, xs := device.Elements[T](dst), device.Elements[T](x)
	n, width := planes(z, p.ChannelsLast)
	k.each(n, z.H*z.W*width, func(lo, hi int) {
		sums := make([]float64, width)
		for ; lo < hi; lo++ {
			plane := xs[lo*z.H*z.W*width : (lo+1)*z.H*z.W*width]
			for r := range z.OH {
				top, bottom, high := p.Region(0, r, z.H, z.OH)
				for q := range z.OW {
					left, right, wide := p.Region(1, q, z.W, z.OW)
					out := d[((lo*z.OH+r)*z.OW+q)*width:][:width]
					if top >= bottom || left >= right {
						clear(out)
						continue
					}
					clear(sums)
					for i := top; i < bottom; i++ {
						row := plane[(i*z.W+left)*width : (i*z.W+right)*width]
						if width == 1 {
							sums[0] += addRun(row)
							continue
						}
						for ; len(row) > 0; row = row[width:] {
							for c, v := range row[:width] {
								sums[c] += float64(v)
							}
						}
					}
					for c, v := range sums {
						out[c] = T(v / float64(high*wide))
					}
				}
			}
		}
	})
}

func avgPoolGrad[T float](k *kernelSet, z operand.PoolSizes, dst device.Tensor, acc device.Accum, g device.Tensor, p kernels.AvgPool) {
	gs := device.Elements[T](g)
	planes, width := planes(z, p.ChannelsLast)
	scatter(k, planes, z.H*z.W*width, device.Elements[T](dst), acc, func(n int, plane []T) {
		for r := range z.OH {
			top, bottom, high := p.Region(0, r, z.H, z.OH)
			for q := range z.OW {
				left, right, wide := p.Region(1, q, z.W, z.OW)
				if left >= right {
					continue
				}
				g := gs[((n*z.OH+r)*z.OW+q)*width:][:width]
				for i := top; i < bottom; i++ {
					for row := plane[(i*z.W+left)*width : (i*z.W+right)*width]; len(row) > 0; row = row[width:] {
						for c, v := range g {
							row[c] += T(acc.Alpha * float64(v) / float64(high*wide))
						}
					}
				}
			}
		}
	})
}
