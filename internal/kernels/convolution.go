package kernels

import "github.com/goddp/goddp/device"

// Window is what slides over images [h w]: sizes along the first axis, and along the second.
type Window struct {
	Kernel, Stride, Padding, Dilation [2]int
	Ceil                              bool // a last window that is partly beyond the padding counts
}

// Out is how many positions the window has along an axis of n elements; at most 0 where it
// does not fit.
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
	if w.Ceil && (out-1)*stride >= n+pad { // it would begin in the padding behind
		out--
	}
	return out
}

// Valid tells whether all sizes make sense.
func (w Window) Valid() bool {
	for axis := range 2 {
		if w.Kernel[axis] < 1 || w.Stride[axis] < 1 || w.Padding[axis] < 0 || w.Dilation[axis] < 1 {
			return false
		}
	}
	return true
}

// Conv is how a convolution is made.
type Conv struct {
	Stride, Padding, Dilation [2]int
	Groups                    int // that channels are cut into; an output depends on those of one
}

// Window is the window of a convolution by a weight of shape w.
func (p Conv) Window(w device.Shape) Window {
	return Window{Kernel: [2]int{w[2], w[3]}, Stride: p.Stride, Padding: p.Padding, Dilation: p.Dilation}
}

// Shape is that of the convolution of x [n c h w] by w [o c/Groups kh kw]. It panics with a
// [*device.ShapeError] where they do not fit.
func (p Conv) Shape(x, w device.Shape) device.Shape {
	misfit := &device.ShapeError{Op: "Conv2d", A: x, B: w}
	if len(x) != 4 || len(w) != 4 || p.Groups < 1 || w[0]%p.Groups != 0 || x[1] != w[1]*p.Groups {
		panic(misfit)
	}
	window := p.Window(w)
	if !window.Valid() {
		panic(misfit)
	}
	out := device.Shape{x[0], w[0], window.Out(0, x[2]), window.Out(1, x[3])}
	if out[2] < 1 || out[3] < 1 {
		panic(misfit)
	}
	return out
}

// Convolution are the kernels of convolutions. x is [n c h w], w [o c/p.Groups kh kw], bias
// [o] or not there, g and the result [n o oh ow], as p.Shape has it. What is beyond the
// edges of x is zeros, which are multiplied as numbers are.
type Convolution interface {
	// Conv2d computes dst = the convolution of x by w, plus bias.
	Conv2d(s device.Stream, dst, x, w, bias device.Tensor, p Conv) error
	// Conv2dGradInput accumulates into dst the gradient for x of a Conv2d, given g, that for
	// its result.
	Conv2dGradInput(s device.Stream, dst device.Tensor, acc device.Accum, g, w device.Tensor, p Conv) error
	// Conv2dGradWeight accumulates into dst the gradient for w of a Conv2d, given g.
	Conv2dGradWeight(s device.Stream, dst device.Tensor, acc device.Accum, g, x device.Tensor, p Conv) error
}
