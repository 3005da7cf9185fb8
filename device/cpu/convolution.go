package cpu

import (
	"errors"
	"sync"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/internal/operand"
	"github.com/goddp/goddp/internal/kernels"
)

func (k *kernelSet) Conv2d(s device.Stream, dst, x, w, bias device.Tensor, p kernels.Conv) error {
	z := operands.Conv2d("Conv2d", dst, x, w, bias, p)
	if err := k.convolve(convResult, z, p, device.Store, x, w, dst, bias); !errors.Is(err, errUnable) {
		return err
	}
	if p.ChannelsLast {
		y := unfilled(dst)
		p.ChannelsLast = false
		if err := k.Conv2d(s, y, k.channelsFirst(s, x), k.channelsFirst(s, w), bias, p); err != nil {
			return err
		}
		return k.channelsLast(s, dst, device.Store, y)
	}
	pick(dst, conv2d[float32], conv2d[float64])(k, z, dst, x, w, bias)
	return nil
}

func (k *kernelSet) Conv2dGradInput(s device.Stream, dst device.Tensor, acc device.Accum, g, w device.Tensor, p kernels.Conv) error {
	z := operands.Conv2d("Conv2dGradInput", g, dst, w, device.Tensor{}, p)
	if err := k.convolve(convImages, z, p, acc, dst, w, g, device.Tensor{}); !errors.Is(err, errUnable) {
		return err
	}
	if p.ChannelsLast {
		dx := unfilled(dst)
		p.ChannelsLast = false
		if err := k.Conv2dGradInput(s, dx, device.Store, k.channelsFirst(s, g), k.channelsFirst(s, w), p); err != nil {
			return err
		}
		return k.channelsLast(s, dst, acc, dx)
	}
	pick(dst, convGradInput[float32], convGradInput[float64])(k, z, dst, acc, g, w)
	return nil
}

func (k *kernelSet) Conv2dGradWeight(s device.Stream, dst device.Tensor, acc device.Accum, g, x device.Tensor, p kernels.Conv) error {
	z := operands.Conv2d("Conv2dGradWeight", g, x, dst, device.Tensor{}, p)
	if err := k.convolve(convWeight, z, p, acc, x, dst, g, device.Tensor{}); !errors.Is(err, errUnable) {
		return err
	}
	if p.ChannelsLast {
		dw := unfilled(dst)
		p.ChannelsLast = false
		if err := k.Conv2dGradWeight(s, dw, device.Store, k.channelsFirst(s, g), k.channelsFirst(s, x), p); err != nil {
			return err
		}
		return k.channelsLast(s, dst, acc, dw)
	}
	pick(dst, convGradWeight[float32], convGradWeight[float64])(k, z, dst, acc, g, x)
	return nil
}

// PrepareConv2d only checks its operands, because the CPU loads no kernels.
func (k *kernelSet) PrepareConv2d(_ device.Stream, dst, x, w device.Tensor, p kernels.Conv) error {
	operands.Conv2d("PrepareConv2d", dst, x, w, device.Tensor{}, p)
	return nil
}

// The kernels of this file compute with channels first. For channels last, operands are copied.

// unfilled allocates a tensor [n c h w], with undefined content, for the elements of t [n h w c].
func unfilled(t device.Tensor) device.Tensor {
	shape, _ := kernels.ChannelsFirst(t.Shape)
	return device.NewTensor(device.HostBuffer(make([]byte, t.Bytes()), nil), t.DType, shape...)
}

// channelsFirst returns a copy [n c h w] of t [n h w c].
func (k *kernelSet) channelsFirst(s device.Stream, t device.Tensor) device.Tensor {
	to := unfilled(t)
	shape, layout := kernels.ChannelsFirst(t.Shape)
	if err := k.CopyStrided(s, shape, to, kernels.Dense(shape), device.Store, t, layout); err != nil {
		panic(err) // the CPU's copies do not fail
	}
	return to
}

// channelsLast accumulates t [n c h w] into dst [n h w c].
func (k *kernelSet) channelsLast(s device.Stream, dst device.Tensor, acc device.Accum, t device.Tensor) error {
	shape, layout := kernels.ChannelsFirst(dst.Shape)
	return k.CopyStrided(s, shape, dst, layout, acc, t, kernels.Dense(shape))
}

// A convolution is one matrix product for each image and group: the weight [o taps] times the image's
// columns [taps positions]. Column i contains the elements of the image that the weight multiplies for position
// i of the result. To limit memory, columns are computed one image at a time.

// columns is a pool of memory for the columns of an image.
var columns sync.Pool // holds *[]byte

// withColumns calls f with memory for n elements with undefined content.
func withColumns[T float](n int, f func(cols []T)) {
	var t T
	size := device.HostTensor([]T{t}, device.Invalid).Bytes() * n
	mem, _ := columns.Get().(*[]byte)
	if mem == nil || len(*mem) < size {
		made := aligned(size)
		mem = &made
	}
	defer columns.Put(mem)
	dt := device.HostTensor([]T{t}, device.Invalid).DType
	f(device.Elements[T](device.NewTensor(device.HostBuffer(*mem, nil), dt, n)))
}

// gemmOf computes dst = alpha·op(x)·op(y) + beta·dst. It divides a large product among the given number of threads. Sizes may be 0.
func gemmOf[T float](k *kernelSet, threads int, p product, alpha T, x, y []T, beta T, dst []T) {
	if p.m == 0 || p.n == 0 {
		return
	}
	if p.k == 0 {
		fold(k, dst[:p.m*p.n], device.Accum{Beta: float64(beta)}, nil)
		return
	}
	p.ldx, p.ldy = max(p.ldx, 1), max(p.ldy, 1)
	cells := p.cells(k.blas, threads)
	k.each(cells, p.work()/cells, func(lo, hi int) {
		for ; lo < hi; lo++ {
			gemmCell(k.blas, p, lo, cells, alpha, x, y, beta, dst)
		}
	})
}

// span returns the range [from, to) of positions along an axis at which tap t reads one of the n elements, and not
// the padding. out is the number of positions.
func span(z *operand.ConvSizes, axis, t, n, out int) (from, to int) {
	stride, first := z.Stride[axis], t*z.Dilation[axis]-z.Padding[axis] // position 0 reads element first
	from = max(0, (-first+stride-1)/stride)
	if first >= 0 {
		from = 0
	}
	if last := n - 1 - first; last >= 0 {
		to = min(out, last/stride+1)
	}
	return min(from, to), to
}

// im2col writes the columns of the channels lo to hi-1 of a group. x starts with the group's first channel.
func im2col[T float](z *operand.ConvSizes, cols, x []T, lo, hi int) {
	kh, kw := z.Kernel[0], z.Kernel[1]
	sh, sw := z.Stride[0], z.Stride[1]
	for c := lo; c < hi; c++ {
		plane := x[c*z.H*z.W : (c+1)*z.H*z.W]
		for i := range kh {
			top, bottom := span(z, 0, i, z.H, z.OH)
			for j := range kw {
				left, right := span(z, 1, j, z.W, z.OW)
				first := j*z.Dilation[1] - z.Padding[1]
				at := ((c*kh+i)*kw + j) * z.Positions()
				rows := cols[at : at+z.Positions()]
				clear(rows[:top*z.OW])
				clear(rows[bottom*z.OW:])
				for r := top; r < bottom; r++ {
					line, row := plane[(r*sh+i*z.Dilation[0]-z.Padding[0])*z.W:], rows[r*z.OW:(r+1)*z.OW]
					clear(row[:left])
					clear(row[right:])
					if sw == 1 && left < right {
						copy(row[left:right], line[left+first:])
						continue
					}
					for q := left; q < right; q++ {
						row[q] = line[q*sw+first]
					}
				}
			}
		}
	}
}

// col2im adds the columns to the elements of x from which im2col read them. It is the adjoint of im2col.
func col2im[T float](z *operand.ConvSizes, x, cols []T) {
	kh, kw := z.Kernel[0], z.Kernel[1]
	sh, sw := z.Stride[0], z.Stride[1]
	for c := range z.InGroup {
		plane := x[c*z.H*z.W : (c+1)*z.H*z.W]
		for i := range kh {
			top, bottom := span(z, 0, i, z.H, z.OH)
			for j := range kw {
				left, right := span(z, 1, j, z.W, z.OW)
				first := j*z.Dilation[1] - z.Padding[1]
				rows := cols[((c*kh+i)*kw+j)*z.Positions():]
				for r := top; r < bottom; r++ {
					line, row := plane[(r*sh+i*z.Dilation[0]-z.Padding[0])*z.W:], rows[r*z.OW:(r+1)*z.OW]
					if sw == 1 && left < right {
						line = line[left+first : right+first]
						for q, v := range row[left:right] {
							line[q] += v
						}
						continue
					}
					for q := left; q < right; q++ {
						line[q*sw+first] += row[q]
					}
				}
			}
		}
	}
}

// work returns the cost of an image for k.each, in elements.
func work(z *operand.ConvSizes) int { return z.Positions() * (z.C + z.O) * z.Kernel[0] * z.Kernel[1] }

func conv2d[T float](k *kernelSet, z operand.ConvSizes, dst, x, w, bias device.Tensor) {
	d, xs, ws, b := device.Elements[T](dst), device.Elements[T](x), device.Elements[T](w), device.Elements[T](bias)
	taps, l, beta := z.Taps(), z.Positions(), T(0)
	if b != nil {
		beta = 1
	}
	threads := k.threads / max(z.N, 1) // of a product
	k.each(z.N, work(&z), func(lo, hi int) {
		withColumns(taps*l, func(cols []T) {
			for n := lo; n < hi; n++ {
				for g := range z.Groups {
					out := d[(n*z.O+g*z.PerOut)*l:][:z.PerOut*l]
					if b != nil {
						for o := range z.PerOut {
							fill(out[o*l:(o+1)*l], b[g*z.PerOut+o])
						}
					}
					image, y := xs[(n*z.C+g*z.InGroup)*z.H*z.W:], cols
					if z.Pointwise() {
						y = image[:z.InGroup*l]
					} else {
						im2col(&z, cols, image, 0, z.InGroup)
					}
					gemmOf(k, threads, product{m: z.PerOut, n: l, k: taps, ldx: taps, ldy: l, ldd: l}, 1, ws[g*z.PerOut*taps:], y, beta, out)
				}
			}
		})
	})
}

func convGradInput[T float](k *kernelSet, z operand.ConvSizes, dst device.Tensor, acc device.Accum, g, w device.Tensor) {
	d, gs, ws := device.Elements[T](dst), device.Elements[T](g), device.Elements[T](w)
	taps, l := z.Taps(), z.Positions()
	p := product{tx: true, m: taps, n: l, k: z.PerOut, ldx: taps, ldy: l, ldd: l}
	alpha, beta := T(acc.Alpha), T(acc.Beta)
	threads := k.threads / max(z.N, 1) // of a product
	k.each(z.N, work(&z), func(lo, hi int) {
		withColumns(taps*l, func(cols []T) {
			for n := lo; n < hi; n++ {
				for i := range z.Groups {
					image := d[(n*z.C+i*z.InGroup)*z.H*z.W:][:z.InGroup*z.H*z.W]
					weight, grad := ws[i*z.PerOut*taps:], gs[(n*z.O+i*z.PerOut)*l:]
					if z.Pointwise() {
						gemmOf(k, threads, p, alpha, weight, grad, beta, image)
						continue
					}
					gemmOf(k, threads, p, alpha, weight, grad, 0, cols)
					switch beta {
					case 0:
						clear(image)
					case 1:
					default:
						accumulate(image, device.Accum{Alpha: acc.Beta}, image)
					}
					col2im(&z, image, cols)
				}
			}
		})
	})
}

// convGradWeight visits the images in order, so that sums do not depend on the number of threads.
func convGradWeight[T float](k *kernelSet, z operand.ConvSizes, dst device.Tensor, acc device.Accum, g, x device.Tensor) {
	d, gs, xs := device.Elements[T](dst), device.Elements[T](g), device.Elements[T](x)
	taps, l := z.Taps(), z.Positions()
	if z.N == 0 {
		fold(k, d, acc, nil)
	}
	withColumns(taps*l, func(cols []T) {
		for n := range z.N {
			beta := T(1)
			if n == 0 {
				beta = T(acc.Beta)
			}
			for i := range z.Groups {
				image, y := xs[(n*z.C+i*z.InGroup)*z.H*z.W:], cols
				if z.Pointwise() {
					y = image[:z.InGroup*l]
				} else {
					k.each(z.InGroup, l*z.Kernel[0]*z.Kernel[1], func(lo, hi int) { im2col(&z, cols, image, lo, hi) })
				}
				gemmOf(k, k.threads, product{ty: true, m: z.PerOut, n: taps, k: l, ldx: l, ldy: l, ldd: taps}, T(acc.Alpha),
					gs[(n*z.O+i*z.PerOut)*l:], y, beta, d[i*z.PerOut*taps:][:z.PerOut*taps])
			}
		}
	})
}
