package kernels

import "github.com/goddp/goddp/device"

// Layout says where the elements of a box are in a tensor's memory. The first element of the box is
// element Offset of the tensor. Strides[i] is the stride of axis i in elements, and may be negative.
type Layout struct {
	Offset  int
	Strides []int
}

// Dense returns the layout of a box that is a whole tensor of this shape.
func Dense(shape device.Shape) Layout {
	l := Layout{Strides: make([]int, len(shape))}
	step := 1
	for i := len(shape) - 1; i >= 0; i-- {
		l.Strides[i] = step
		step *= shape[i]
	}
	return l
}

// ChannelsFirst returns the shape [n c h w] and the layout of the images in a tensor [n h w c].
func ChannelsFirst(shape device.Shape) (device.Shape, Layout) {
	d := Dense(shape).Strides
	return device.Shape{shape[0], shape[3], shape[1], shape[2]}, Layout{Strides: []int{d[0], d[3], d[1], d[2]}}
}

// Rearranging contains the kernel that moves elements: it transposes, slices and concatenates tensors.
type Rearranging interface {
	// CopyStrided accumulates a box of src into a box of dst. Both boxes have the given shape. The
	// layout `from` says where the elements of src's box are, and the layout `to` where those of
	// dst's box are. dst and src have the same type: any type with [device.Store], otherwise a type
	// that the device computes in. The elements of dst's box must be distinct. The elements of src's
	// box need not be distinct, so a stride of 0 broadcasts. The rest of dst is not written.
	CopyStrided(s device.Stream, shape device.Shape, dst device.Tensor, to Layout, acc device.Accum, src device.Tensor, from Layout) error
}
