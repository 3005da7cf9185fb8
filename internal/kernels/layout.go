package kernels

import "github.com/goddp/goddp/device"

// Layout says where the elements of a box lie in a tensor's memory: the first is element
// Offset, and one step along axis i of the box is Strides[i] elements, which may be
// negative.
type Layout struct {
	Offset  int
	Strides []int
}

// Dense is the layout of a box that is a whole tensor of this shape.
func Dense(shape device.Shape) Layout {
	l := Layout{Strides: make([]int, len(shape))}
	step := 1
	for i := len(shape) - 1; i >= 0; i-- {
		l.Strides[i] = step
		step *= shape[i]
	}
	return l
}

// Rearranging moves elements to other places: what transposes, slices and joins
// tensors.
type Rearranging interface {
	// CopyStrided accumulates into the box of dst that to describes the box of src that
	// from describes, both of this shape. dst and src are of one type: of any with
	// [device.Store], else of one that the device computes in. The elements of dst's box are
	// distinct; those of src's need not be, so that a stride of 0 broadcasts. dst
	// outside of the box stays as it is.
	CopyStrided(s device.Stream, shape device.Shape, dst device.Tensor, to Layout, acc device.Accum, src device.Tensor, from Layout) error
}
