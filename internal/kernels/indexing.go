package kernels

import "github.com/goddp/goddp/device"

// Indexing moves rows by index. The operands are seen with three axes, of which the
// middle one is indexed. An index is Int64, and has one axis, of m indices for all of
// dst, or one index for every element.
//
// An index is within 0 to n-1: else, where the host can tell, a panic with an
// [*device.IndexError]. On a GPU, which cannot tell, Gather makes of it NaN, and ScatterAdd
// drops the term.
type Indexing interface {
	// Gather computes dst[o, i, k] = src[o, index[i], k], or with an index of dst's shape
	// src[o, index[o, i, k], k]: dst [outer m inner], src [outer n inner].
	Gather(s device.Stream, dst, src, index device.Tensor) error
	// ScatterAdd is the adjoint of Gather: it accumulates into dst [outer n inner] the sum
	// of those elements of src [outer m inner] that Gather would have taken from there,
	// and 0 where there are none. Elements whose index is skip, which may be -1 for none,
	// are left out. Terms are added in an order that depends on the indices alone: equal
	// inputs give bitwise equal results.
	ScatterAdd(s device.Stream, dst device.Tensor, acc device.Accum, src, index device.Tensor, skip int) error
}
