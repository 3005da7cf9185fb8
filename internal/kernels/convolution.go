package kernels

import (
	"fmt"

	"github.com/goddp/goddp/device"
)

// Window slides over images [h w]. Its sizes are along the first axis and along the second.
type Window struct {
	Kernel, Stride, Padding, Dilation [2]int
	Ceil                              bool // whether the last window may extend beyond the padding
	ChannelsLast                      bool // whether images are [n h w c] instead of [n c h w]
}

// Out returns the number of positions of the window along an axis of n elements. It is 0 or negative if
// the window does not fit.
func (w Window) Out(axis, n int) int {
	stride, pad := w.Stride[axis], w.Padding[axis]
	rest := n + 2*pad - w.Dilation[axis]*(w.Kernel[axis]-1) - 1
	if w.Ceil {
		rest += stride - 1
	}
	if rest < 0 {
		return 0
	}
	out := rest/stride + 1
	if w.Ceil && (out-1)*stride >= n+pad { // the last window would start in the padding at the end
		out--
	}
	return out
}

// Valid reports whether kernel, stride and dilation are positive and the padding is not negative.
func (w Window) Valid() bool {
	for axis := range 2 {
		if w.Kernel[axis] < 1 || w.Stride[axis] < 1 || w.Padding[axis] < 0 || w.Dilation[axis] < 1 {
			return false
		}
	}
	return true
}

// ImageAxes returns the axes of the channels, the rows and the columns of images, which are [n c h w], or
// with channelsLast [n h w c].
func ImageAxes(channelsLast bool) (c, h, w int) {
	if channelsLast {
		return 3, 1, 2
	}
	return 1, 2, 3
}

// Conv are the parameters of a convolution.
type Conv struct {
	Stride, Padding, Dilation [2]int
	Groups                    int // the groups of channels; an output channel depends on the inputs of its group
	// ChannelsLast makes images [n h w c] and weights [o kh kw c/Groups], instead of [n c h w] and
	// [o c/Groups kh kw].
	ChannelsLast bool
}

// Window returns the window of a convolution with a weight of shape w.
func (p Conv) Window(w device.Shape) Window {
	_, rows, cols := ImageAxes(p.ChannelsLast)
	return Window{Kernel: [2]int{w[rows], w[cols]}, Stride: p.Stride, Padding: p.Padding, Dilation: p.Dilation, ChannelsLast: p.ChannelsLast}
}

// Shape returns the shape of the convolution of x with w. It panics with a [*device.ShapeError] if the
// shapes do not match.
func (p Conv) Shape(x, w device.Shape) device.Shape {
	out, fit := p.TryShape(x, w)
	if !fit {
		c, _, _ := ImageAxes(p.ChannelsLast)
		panic(p.Misfit(x, w, c))
	}
	return out
}

// Misfit returns the error of images of shape x that do not match a weight of shape w with its channels on axis c.
func (p Conv) Misfit(x, w device.Shape, c int) error {
	e := &device.ShapeError{Op: "Conv2d", A: x, B: w}
	if len(w) == 4 && p.Groups >= 1 && w[0]%p.Groups == 0 && p.Window(w).Valid() {
		layout := "[n %d h w]"
		if p.ChannelsLast {
			layout = "[n h w %d]"
		}
		e.Want = fmt.Sprintf(layout+", no smaller than the window, for the weight %v", w[c]*p.Groups, w)
	}
	return e
}

// TryShape is Shape, but reports false if x and w do not match.
func (p Conv) TryShape(x, w device.Shape) (out device.Shape, fit bool) {
	c, rows, cols := ImageAxes(p.ChannelsLast)
	if len(x) != 4 || len(w) != 4 || p.Groups < 1 || w[0]%p.Groups != 0 || x[c] != w[c]*p.Groups {
		return nil, false
	}
	window := p.Window(w)
	if !window.Valid() {
		return nil, false
	}
	out = make(device.Shape, 4)
	out[0], out[c], out[rows], out[cols] = x[0], w[0], window.Out(0, x[rows]), window.Out(1, x[cols])
	return out, out[rows] >= 1 && out[cols] >= 1
}

// Convolution contains the kernels of convolutions. x is [n c h w], w is [o c/p.Groups kh kw], bias is [o]
// or absent. g, the gradient of the result, and the result are [n o oh ow], as p.Shape returns. With
// p.ChannelsLast the channel axes are last. Padding is zeros, which are multiplied like other elements
// or left out.
type Convolution interface {
	// PrepareConv2d chooses and loads the kernels for a Conv2d whose gradients will be computed, because a
	// backward pass must not: see PrepareLinearGrad. It overwrites dst.
	PrepareConv2d(s device.Stream, dst, x, w device.Tensor, p Conv) error
	// Conv2d computes the convolution of x with w, plus bias, into dst.
	Conv2d(s device.Stream, dst, x, w, bias device.Tensor, p Conv) error
	// Conv2dGradInput accumulates the gradient of x into dst.
	Conv2dGradInput(s device.Stream, dst device.Tensor, acc device.Accum, g, w device.Tensor, p Conv) error
	// Conv2dGradWeight accumulates the gradient of w into dst.
	Conv2dGradWeight(s device.Stream, dst device.Tensor, acc device.Accum, g, x device.Tensor, p Conv) error
}
