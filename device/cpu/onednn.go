package cpu

import (
	"errors"
	"log/slog"
	"sync"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/internal/operand"
	"github.com/goddp/goddp/internal/kernels"
)

// oneDNN computes convolutions in float32. Its own threads are not used: a convolution is divided into parts, which
// goroutines compute as in all other kernels of a device. So the ranks of a process do not share threads, and the next
// kernels do not meet threads that spin while they wait for work.

// oneDNNOnce opens the library at the first convolution, because many programs have none.
type oneDNNOnce struct {
	once sync.Once
	lib  *oneDNN // nil: the kernels of this package compute convolutions
	log  *slog.Logger
}

func (o *oneDNNOnce) open() *oneDNN {
	o.once.Do(func() {
		var err error
		switch o.lib, err = openOneDNN(o.log); {
		case err != nil:
			o.log.Warn("cpu: convolutions run in goddp's own kernels, several times slower than in oneDNN",
				"remedy", installHint(needsOneDNN), "cause", err)
		case o.lib != nil:
			o.log.Debug("cpu: convolutions run in oneDNN", "library", o.lib)
		}
	})
	return o.lib
}

// These are the operands of a convolution: the images, the weight and the result, or their gradients.
const (
	convImages = iota
	convWeight
	convResult
)

// convolution is what oneDNN computes in one call: the convolution of a part of the images, or of a part of the
// channels, or one of its gradients.
type convolution struct {
	of int // the operand that is computed
	operand.ConvSizes
	whole        [3]int // the numbers of channels in memory: of an image, of a group of the weight, of a result
	channelsLast bool
	bias         bool
}

// sizes returns the sizes of the operands: [n c h w], [groups o c kh kw] and [n o oh ow].
func (c *convolution) sizes() [3][]int {
	return [3][]int{
		{c.N, c.C, c.H, c.W},
		{c.Groups, c.PerOut, c.InGroup, c.Kernel[0], c.Kernel[1]},
		{c.N, c.O, c.OH, c.OW},
	}
}

// strides returns the strides of operands that are parts of tensors with the given numbers of channels.
func strides(size [3][]int, channelsLast bool, channels [3]int) (out [3][]int) {
	for i, s := range size {
		n := len(s)
		c, h, w := channels[i], s[n-2], s[n-1]
		out[i] = []int{c * h * w, h * w, w, 1}
		if channelsLast {
			out[i] = []int{c * h * w, 1, w * c, c}
		}
		if n == 5 {
			out[i] = append([]int{s[1] * out[i][0]}, out[i]...)
		}
	}
	return out
}

// inner returns in which order of elements oneDNN computes, and for which operands it chooses the order itself. With
// channels last the images need no copies. With channels first, version 2 needs none for a 1×1 convolution, which is a product
// of matrices, but version 3 has no fast code for that. The gradients of the weights of grouped convolutions are much faster
// with channels last.
func (c *convolution) inner(version int) (channelsLast bool, chooses [3]bool) {
	switch {
	case c.channelsLast, c.of == convWeight && c.Groups > 1 && c.InGroup > 1:
		return true, [3]bool{convWeight: true}
	case c.Kernel == [2]int{1, 1} && version == 2:
		return false, [3]bool{}
	}
	return false, [3]bool{true, true, true}
}

// convBlock is the number of channels that oneDNN computes together. Parts have multiples of it.
const convBlock = 16

// divisible returns the number of channels, or of groups if there are several, along which parts of c are independent,
// and of how many each part must have a multiple.
func (c *convolution) divisible() (n, block int) {
	switch {
	case c.Groups > 1:
		return c.Groups, max(convBlock/min(c.InGroup, c.PerOut), 1)
	case c.of == convImages:
		return c.C, convBlock
	}
	return c.O, convBlock
}

// divide returns into how many parts c is divided for a number of threads: along the images, and along the channels.
// Parts of few images are uneven, and copy the same weight or compute gradients to add; parts of channels copy the same
// images or, with channels last, access pieces of each position. The time to copy an element is that of about 32 products.
func (c *convolution) divide(threads int) (images, channels int) {
	const perCopy = 32
	n, block := c.divisible()
	blocks := ceil(n, block)
	weight := c.O * c.Taps()
	products, shared := c.Positions()*weight/blocks, c.C*c.H*c.W // of a block of an image; of an image
	pieces := 0
	switch {
	case c.channelsLast:
		shared, pieces = 0, c.C*c.H*c.W+c.O*c.Positions()
	case c.Groups > 1:
		shared = 0
	case c.of == convImages:
		shared = c.O * c.Positions()
	}
	least := 0
	for i := min(threads, c.N); i > 0; i-- {
		// Parts of images lie together in memory, and are preferred if the difference is small.
		for _, j := range []int{1, min(threads/i, blocks)} {
			copied := ceil(c.N, i)*shared + weight/j
			if c.of == convWeight && i > 1 {
				copied += weight
			}
			if j > 1 {
				copied += ceil(c.N, i) * pieces
			}
			if time := ceil(c.N, i)*ceil(blocks, j)*products + copied*perCopy; least == 0 || time+time/64 < least {
				images, channels, least = i, j, time
			}
		}
	}
	return images, channels
}

func ceil(n, parts int) int { return (n + parts - 1) / parts }

// part returns the part i of the images and the part j of the channels, and where it begins in each operand and in
// the bias.
func (c convolution) part(i, images, j, channels int) (p convolution, at [4]int) {
	p = c
	lo, hi := i*c.N/images, (i+1)*c.N/images
	p.N = hi - lo
	at[convImages], at[convResult] = lo*c.C*c.H*c.W, lo*c.O*c.Positions()
	n, block := c.divisible()
	blocks := ceil(n, block)
	lo, hi = j*blocks/channels*block, min((j+1)*blocks/channels*block, n)
	ofImages, ofResult, ofWeight := c.H*c.W, c.Positions(), c.Kernel[0]*c.Kernel[1] // the distances of channels
	if c.channelsLast {
		ofImages, ofResult, ofWeight = 1, 1, 1
	}
	switch {
	case c.Groups > 1:
		p.Groups, p.C, p.O = hi-lo, (hi-lo)*c.InGroup, (hi-lo)*c.PerOut
		at[convImages] += lo * c.InGroup * ofImages
		at[convResult] += lo * c.PerOut * ofResult
		at[convWeight], at[3] = lo*c.PerOut*c.Taps(), lo*c.PerOut
	case c.of == convImages:
		p.C, p.InGroup = hi-lo, hi-lo
		at[convImages] += lo * ofImages
		at[convWeight] = lo * ofWeight
	default:
		p.O, p.PerOut = hi-lo, hi-lo
		at[convResult] += lo * ofResult
		at[convWeight], at[3] = lo*c.Taps(), lo
	}
	return p, at
}

// errUnable means that oneDNN has no code for a convolution.
var errUnable = errors.New("oneDNN has no code for it")

// convolve computes a convolution or one of its gradients in oneDNN: `of` says which of the operands x, w and y it
// accumulates. It returns errUnable if the kernels of this package must compute it.
func (k *kernelSet) convolve(of int, z operand.ConvSizes, p kernels.Conv, acc device.Accum, x, w, y, bias device.Tensor) error {
	if y.DType != device.Float32 || x.Len()*w.Len()*y.Len() == 0 {
		return errUnable
	}
	lib := k.oneDNN.open()
	if lib == nil {
		return errUnable
	}
	c := convolution{of: of, ConvSizes: z, whole: [3]int{z.C, z.InGroup, z.O}, channelsLast: p.ChannelsLast, bias: !bias.IsZero()}
	const least = 1 << 18 // the fewest products that are worth a goroutine
	images, channels := c.divide(min(k.threads, max(y.Len()*z.Taps()/least, 1)))
	data := [4][]float32{device.Elements[float32](x), device.Elements[float32](w), device.Elements[float32](y), device.Elements[float32](bias)}
	dst, sums := data[of], 1 // sums: the number of gradients of the weight, one for each part of the images
	if of == convWeight {
		sums = images
	}
	compute := func() error {
		errs := make([]error, images*channels)
		k.each(len(errs), grain, func(lo, hi int) {
			for ; lo < hi; lo++ {
				part, at := c.part(lo/channels, images, lo%channels, channels)
				if sums > 1 {
					at[of] += lo / channels * len(dst)
				}
				errs[lo] = lib.compute(part, data, at)
			}
		})
		return errors.Join(errs...)
	}
	if acc == device.Store && sums == 1 {
		return compute()
	}
	var err error
	withColumns(sums*len(dst), func(made []float32) {
		data[of] = made
		if err = compute(); err != nil {
			return
		}
		k.each(len(dst), 1, func(lo, hi int) {
			to := acc
			for i := range sums {
				accumulate(dst[lo:hi], to, made[i*len(dst)+lo:])
				to.Beta = 1
			}
		})
	})
	return err
}

// compute computes c from the elements of the operands and the bias from at on.
func (d *oneDNN) compute(c convolution, data [4][]float32, at [4]int) (err error) {
	p, err := d.plan(c)
	if err != nil {
		return err
	}
	var bias *float32
	if c.bias {
		bias = &data[3][at[3]]
	}
	withColumns(p.size/4+1, func(work []float32) {
		err = d.run(p, &data[convImages][at[convImages]], &data[convWeight][at[convWeight]], &data[convResult][at[convResult]], bias, &work[0])
	})
	return err
}
