//go:build cgo && linux

package cuda

import (
	"fmt"
	"unsafe"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/internal/operand"
	"github.com/goddp/goddp/internal/kernels"
)

// convArgs has the layout of the structure Conv in kernels/convolution.cu.
type convArgs struct {
	to, from, bias         uint64
	first, images          uint64
	c, h, w, group         uint64
	kh, kw, oh, ow         uint64
	sh, sw, ph, pw, dh, dw int64
	last                   uint64
	acc                    device.Accum
}

// columnBytes is the maximum size of the columns in one matrix product.
const columnBytes = 256 << 20

// convolution is one call of a convolution. It processes the batch in chunks of images, for which
// columns and results hold the matrices. The columns of all groups are stored one after the other.
type convolution struct {
	k       *kernelSet
	s       *gpuStream
	dt      device.DType
	z       operand.ConvSizes
	images  int           // the number of images in a chunk
	columns device.Tensor // [c·kh·kw images·positions]
	results device.Tensor // [o images·positions]
	memory  device.Buffer
}

// convolve calls step for each chunk of images. first is the number of the chunk's first image, and
// n the number of its images.
func (k *kernelSet) convolve(s *gpuStream, dt device.DType, z operand.ConvSizes, step func(c *convolution, first int) error) (err error) {
	if err := k.d.Err(); err != nil {
		return err
	}
	per := (z.C*z.Kernel[0]*z.Kernel[1] + z.O) * z.Positions() * dt.Size() // the bytes of one image's columns and results
	c := &convolution{k: k, s: s, dt: dt, z: z, images: max(min(z.N, columnBytes/max(per, 1)), 1)}
	columns := device.Tensor{DType: dt, Shape: device.Shape{z.C * z.Kernel[0] * z.Kernel[1], c.images * z.Positions()}}
	results := device.Tensor{DType: dt, Shape: device.Shape{z.O, c.images * z.Positions()}}
	if c.memory, err = k.scratch(&columns, &results); err != nil {
		return err
	}
	defer k.d.Free(c.memory)
	whole := c.images
	for first := 0; first < z.N && err == nil; first += whole {
		c.images = min(whole, z.N-first)
		width := c.images * z.Positions()
		c.columns = device.NewTensor(columns.Buf, dt, columns.Shape[0], width)
		c.results = device.NewTensor(results.Buf, dt, z.O, width)
		err = step(c, first)
	}
	if c.s != k.d.compute { // Free orders the reuse of memory only after the compute stream
		if e := c.s.Sync(k.d.life); err == nil {
			err = e
		}
	}
	return err
}

// move runs a kernel that copies between images and columns, or between results and the output's
// channels.
func (c *convolution) move(f *perFloat, to, from, bias device.Tensor, first, channels, n int, acc device.Accum) error {
	if n == 0 {
		return nil
	}
	z := &c.z
	a := convArgs{
		to: c.k.addr(to), from: c.k.addr(from), bias: c.k.addr(bias), first: uint64(first), images: uint64(c.images),
		c: uint64(channels), h: uint64(z.H), w: uint64(z.W), group: uint64(z.InGroup), kh: uint64(z.Kernel[0]), kw: uint64(z.Kernel[1]), oh: uint64(z.OH), ow: uint64(z.OW),
		sh: int64(z.Stride[0]), sw: int64(z.Stride[1]), ph: int64(z.Padding[0]), pw: int64(z.Padding[1]), dh: int64(z.Dilation[0]), dw: int64(z.Dilation[1]),
		last: uint64(flag(z.ChannelsLast)), acc: acc,
	}
	return c.k.launch(c.s, f[c.dt], c.k.flat(n), unsafe.Pointer(&a), unsafe.Sizeof(a))
}

// groups calls f for each group of channels, with the group's columns, results and part of the
// weight.
func (c *convolution) groups(weight device.Tensor, f func(columns, results, weight device.Tensor) error) error {
	z := &c.z
	part := func(t device.Tensor, g, rows, cols int) device.Tensor {
		return t.Flat().Range(g*rows*cols, (g+1)*rows*cols).Reshape(rows, cols)
	}
	width := c.images * z.Positions()
	for g := range z.Groups {
		if err := f(part(c.columns, g, z.Taps(), width), part(c.results, g, z.PerOut, width), part(weight, g, z.PerOut, z.Taps())); err != nil {
			return err
		}
	}
	return nil
}

func (k *kernelSet) Conv2d(st device.Stream, dst, x, w, bias device.Tensor, p kernels.Conv) error {
	z := operands.Conv2d("Conv2d", dst, x, w, bias, p)
	s, ops := k.d.stream(st), convOperands{x, w, dst}
	err := k.convs.prepare(s, convForward, false, ops, z)
	done := false
	if err == nil {
		done, err = k.convs.compute(s, convForward, device.Store, ops, z)
	}
	if err == nil && done && !bias.IsZero() {
		err = k.addBias(s, dst, bias, z)
	}
	if err == nil && !done {
		err = k.ownConv2d(s, dst, x, w, bias, z)
	}
	if err != nil {
		return fmt.Errorf("Conv2d of %v and %v: %w", x, w, err)
	}
	return nil
}

// addBias adds the bias of each channel to dst.
func (k *kernelSet) addBias(s *gpuStream, dst, bias device.Tensor, z operand.ConvSizes) error {
	shape, from := device.Shape{z.N, z.O, z.Positions()}, kernels.Layout{Strides: []int{0, 1, 0}}
	if z.ChannelsLast {
		shape, from.Strides = device.Shape{z.N * z.Positions(), z.O}, []int{0, 1}
	}
	return k.CopyStrided(s, shape, dst.Reshape(shape...), kernels.Dense(shape), addTo, bias, from)
}

// PrepareConv2d makes the plans of the gradients once per shape.
func (k *kernelSet) PrepareConv2d(st device.Stream, dst, x, w device.Tensor, p kernels.Conv) error {
	z := operands.Conv2d("PrepareConv2d", dst, x, w, device.Tensor{}, p)
	if err := k.convs.prepareGrads(k.d.stream(st), convOperands{x, w, dst}, z); err != nil {
		return fmt.Errorf("preparing the gradients of a Conv2d of %v and %v: %w", x, w, err)
	}
	return nil
}

// ownConv2d is Conv2d with this package's kernels.
func (k *kernelSet) ownConv2d(s *gpuStream, dst, x, w, bias device.Tensor, z operand.ConvSizes) error {
	return k.convolve(s, dst.DType, z, func(c *convolution, first int) error {
		if err := c.move(&k.im2col, c.columns, x, device.Tensor{}, first, z.C, c.columns.Len(), device.Store); err != nil {
			return err
		}
		err := c.groups(w, func(columns, results, weight device.Tensor) error {
			return k.MatMul(c.s, results, device.Store, weight, false, columns, false)
		})
		if err != nil {
			return err
		}
		return c.move(&k.fromColumns, dst, c.results, bias, first, z.O, c.results.Len(), device.Store)
	})
}

func (k *kernelSet) Conv2dGradInput(st device.Stream, dst device.Tensor, acc device.Accum, g, w device.Tensor, p kernels.Conv) error {
	z := operands.Conv2d("Conv2dGradInput", g, dst, w, device.Tensor{}, p)
	s := k.d.stream(st)
	done, err := k.convs.compute(s, convGradInput, acc, convOperands{dst, w, g}, z)
	if err == nil && !done {
		err = k.ownGradInput(s, dst, acc, g, w, z)
	}
	if err != nil {
		return fmt.Errorf("Conv2dGradInput of %v and %v: %w", g, w, err)
	}
	return nil
}

func (k *kernelSet) ownGradInput(s *gpuStream, dst device.Tensor, acc device.Accum, g, w device.Tensor, z operand.ConvSizes) error {
	return k.convolve(s, dst.DType, z, func(c *convolution, first int) error {
		if err := c.move(&k.toColumns, c.results, g, device.Tensor{}, first, z.O, c.results.Len(), device.Store); err != nil {
			return err
		}
		err := c.groups(w, func(columns, results, weight device.Tensor) error {
			return k.MatMul(c.s, columns, device.Store, weight, true, results, false)
		})
		if err != nil {
			return err
		}
		return c.move(&k.col2im, dst, c.columns, device.Tensor{}, first, z.C, c.images*z.C*z.H*z.W, acc)
	})
}

func (k *kernelSet) Conv2dGradWeight(st device.Stream, dst device.Tensor, acc device.Accum, g, x device.Tensor, p kernels.Conv) error {
	z := operands.Conv2d("Conv2dGradWeight", g, x, dst, device.Tensor{}, p)
	if z.N == 0 {
		return k.scale(st, dst, acc.Beta)
	}
	s := k.d.stream(st)
	done, err := k.convs.compute(s, convGradWeight, acc, convOperands{x, dst, g}, z)
	if err == nil && !done {
		err = k.ownGradWeight(s, dst, acc, g, x, z)
	}
	if err != nil {
		return fmt.Errorf("Conv2dGradWeight of %v and %v: %w", g, x, err)
	}
	return nil
}

// ownGradWeight adds the chunks' gradients in order.
func (k *kernelSet) ownGradWeight(s *gpuStream, dst device.Tensor, acc device.Accum, g, x device.Tensor, z operand.ConvSizes) error {
	return k.convolve(s, dst.DType, z, func(c *convolution, first int) error {
		into := acc
		if first > 0 {
			into.Beta = 1
		}
		if err := c.move(&k.im2col, c.columns, x, device.Tensor{}, first, z.C, c.columns.Len(), device.Store); err != nil {
			return err
		}
		if err := c.move(&k.toColumns, c.results, g, device.Tensor{}, first, z.O, c.results.Len(), device.Store); err != nil {
			return err
		}
		return c.groups(dst, func(columns, results, weight device.Tensor) error {
			return k.MatMul(c.s, weight, into, results, false, columns, true)
		})
	})
}
