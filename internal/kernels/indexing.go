package kernels

import (
	"math"

	"github.com/goddp/goddp/device"
)

// NoLabel is the label of a row that a loss skips.
const NoLabel = math.MinInt64

// Indexing contains the kernels that move rows by index. Operands have three axes, and the middle
// one is indexed. An index is Int64, and has one axis of m indices for all of dst, or one index for
// every element.
//
// An index must be in [0, n). If the host can read the indices, an index out of range panics with a
// [*device.IndexError]. On a GPU, Gather gives NaN for an index out of range, and ScatterAdd ignores the
// term.
type Indexing interface {
	// Gather computes dst[o, i, k] = src[o, index[i], k], or, with an index of dst's shape,
	// src[o, index[o, i, k], k]. dst is [outer m inner], src is [outer n inner].
	Gather(s device.Stream, dst, src, index device.Tensor) error
	// ScatterAdd is the adjoint of Gather. It adds the elements of src [outer m inner] at the
	// positions from which Gather would have read them. A position without terms has the sum 0.
	// ScatterAdd accumulates the sums into dst [outer n inner]. It ignores elements whose index equals
	// skip; with a skip of -1 it ignores none. The order of the terms depends only on the indices, so
	// equal inputs give bit-identical results.
	ScatterAdd(s device.Stream, dst device.Tensor, acc device.Accum, src, index device.Tensor, skip int) error
	// SelectLabels writes the labels other than ignore to selected [r], in order, and their positions among
	// labels [m] to index [r]. The remaining elements are [NoLabel] and 0. All are Int64. count [2], of Float32
	// or Float64, receives the number of these labels, and then the same or 1 if there are none. If there are
	// more than r, selected[0] is -1, which makes a loss NaN. r is at most m.
	SelectLabels(s device.Stream, index, selected, count, labels device.Tensor, ignore int64) error
}
