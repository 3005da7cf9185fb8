package operand

import (
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

// ConvSizes holds the sizes of a convolution.
type ConvSizes struct {
	kernels.Window
	N, C, H, W      int // the images' batch, channels, height and width
	O, OH, OW       int // the result's channels, height and width
	Groups          int
	InGroup, PerOut int // the channels of a group: in the images, and in the result
}

// Taps returns the number of products per element of the result.
func (z ConvSizes) Taps() int { return z.InGroup * z.Kernel[0] * z.Kernel[1] }

// Positions returns the number of elements in a channel of the result.
func (z ConvSizes) Positions() int { return z.OH * z.OW }

// Pointwise reports whether each position of the result depends only on the same position of the
// image.
func (z ConvSizes) Pointwise() bool {
	one := [2]int{1, 1}
	return z.Kernel == one && z.Stride == one && z.Padding == [2]int{}
}

// Conv2d checks the operands of a Conv2d or of one of its gradients. For a gradient, the caller passes each gradient,
// dst or g, in place of the operand to which it belongs.
func (ts Types) Conv2d(op string, dst, x, w, bias device.Tensor, p kernels.Conv) ConvSizes {
	ts.Float(op, dst, x, w)
	checkShape(op, p.Shape(x.Shape, w.Shape), dst)
	if !bias.IsZero() {
		checkType(op, bias, dst.DType)
		checkShape(op, w.Shape[:1], bias)
	}
	c, rows, cols := kernels.ImageAxes(p.ChannelsLast)
	return ConvSizes{
		Window: p.Window(w.Shape), N: x.Shape[0], C: x.Shape[c], H: x.Shape[rows], W: x.Shape[cols],
		O: w.Shape[0], OH: dst.Shape[rows], OW: dst.Shape[cols], Groups: p.Groups, InGroup: w.Shape[c], PerOut: w.Shape[0] / p.Groups,
	}
}

// PoolSizes holds the sizes of a pooling: of the batch, the number of channels, and the images' height and
// width before (H, W) and after it (OH, OW).
type PoolSizes struct{ N, C, H, W, OH, OW int }

func poolSizes(op string, small, large device.Tensor, channelsLast bool) PoolSizes {
	s, l := small.Shape, large.Shape
	c, rows, cols := kernels.ImageAxes(channelsLast)
	if len(s) != 4 || len(l) != 4 || s[0] != l[0] || s[c] != l[c] || l[rows]*l[cols] > 1<<31-1 {
		panic(&device.ShapeError{Op: op, A: l, B: s})
	}
	return PoolSizes{l[0], l[c], l[rows], l[cols], s[rows], s[cols]}
}

func checkWindow(op string, w kernels.Window, z PoolSizes, small, large device.Tensor) {
	if !w.Valid() || w.Out(0, z.H) != z.OH || w.Out(1, z.W) != z.OW {
		panic(&device.ShapeError{Op: op, A: large.Shape, B: small.Shape})
	}
}

// MaxPool2d checks the operands of MaxPool2d or of MaxPool2dGrad. small has the shape after the pooling:
// it is dst of MaxPool2d, or g of MaxPool2dGrad. large has the shape before the pooling: it is x of
// MaxPool2d, or dst of MaxPool2dGrad.
func (ts Types) MaxPool2d(op string, small, index, large device.Tensor, w kernels.Window) PoolSizes {
	ts.Float(op, small, large)
	checkType(op, index, device.Int32)
	checkShape(op, small.Shape, index)
	z := poolSizes(op, small, large, w.ChannelsLast)
	checkWindow(op, w, z, small, large)
	return z
}

// AvgPool2d checks the operands of AvgPool2d or of AvgPool2dGrad. The parameters small and large are as
// in MaxPool2d.
func (ts Types) AvgPool2d(op string, small, large device.Tensor, p kernels.AvgPool) PoolSizes {
	ts.Float(op, small, large)
	z := poolSizes(op, small, large, p.ChannelsLast)
	if !p.Adaptive {
		checkWindow(op, p.Window, z, small, large)
	}
	return z
}
