package kernels

import "github.com/goddp/goddp/device"

// MaxHeadSize is the largest size of a head that attention takes.
const MaxHeadSize = 256

// Heads is an operand of attention, or a result: an array [B H T D] of batches, heads,
// rows and the elements of a row. The elements of a row lie side by side, so that
// queries, keys and values can be parts of one buffer.
type Heads struct {
	Data                               device.Tensor // the memory, from the first element on
	B, H, T, D                         int
	BatchStride, HeadStride, RowStride int // in elements
}

// HeadsFirst is a dense t [B H T D].
func HeadsFirst(t device.Tensor) Heads {
	b, h, n, d := t.Shape[0], t.Shape[1], t.Shape[2], t.Shape[3]
	return Heads{Data: t.Flat(), B: b, H: h, T: n, D: d, BatchStride: h * n * d, HeadStride: n * d, RowStride: d}
}

// RowsFirst is the heads from to from+h-1 of t [B T N D], which holds the N heads of a
// row side by side.
func RowsFirst(t device.Tensor, from, h int) Heads {
	b, n, all, d := t.Shape[0], t.Shape[1], t.Shape[2], t.Shape[3]
	data := t.Flat()
	if t.Len() > 0 {
		data = t.Range(from*d, t.Len())
	}
	return Heads{Data: data, B: b, H: h, T: n, D: d, BatchStride: n * all * d, HeadStride: d, RowStride: all * d}
}

// Shape is [B H T D].
func (h Heads) Shape() device.Shape { return device.Shape{h.B, h.H, h.T, h.D} }

// Attend is what an attention is computed from.
type Attend struct {
	Q Heads // [B H T D]
	// K and V are [B Hkv S D], where Hkv divides H: each of their heads serves H/Hkv
	// neighbouring heads of Q.
	K, V Heads
	// Mask is not there, or broadcasts to [B H T S]: of Uint8, in which 0 keeps a query
	// from a key, or of the type of Q, which is added to the products.
	Mask device.Tensor
	// Causal keeps query i from the keys behind i.
	Causal bool
	Scale  float64 // what the products of queries and keys are multiplied by
}

// Attention has the kernels of scaled dot-product attention: softmax(Scale·q·kᵀ + Mask)·v.
// None holds an array of T·S elements. Sums are in Float32, or in Float64 for operands of
// Float64; of 16-bit types the probabilities, and the gradients for the products, are
// rounded to 16 bits where they are factors of a product.
//
// A query that is kept from all keys has zeros for a result and gives no gradient. A NaN
// comes to all that depends on it; whether it comes to what a mask keeps from it is
// undefined. A head's size D is at most [MaxHeadSize].
type Attention interface {
	// Attention computes o [B H T D], and lse [B H T], the logarithm of each row's sum of
	// exponentials: of Float64 for operands of Float64, else of Float32. That of a query
	// without keys is +Inf.
	Attention(s device.Stream, o Heads, lse device.Tensor, a Attend) error
	// AttentionDelta computes delta, of the shape and type of lse, = the sums of the rows
	// of g·o, which the gradients are computed from. g is the gradient for o.
	AttentionDelta(s device.Stream, delta device.Tensor, g, o Heads) error
	// AttentionQueryGrad accumulates the gradient for a.Q into dq.
	AttentionQueryGrad(s device.Stream, dq Heads, acc device.Accum, g Heads, lse, delta device.Tensor, a Attend) error
	// AttentionKeyValueGrad accumulates the gradients for a.K into dk and for a.V into dv.
	AttentionKeyValueGrad(s device.Stream, dk Heads, accK device.Accum, dv Heads, accV device.Accum, g Heads, lse, delta device.Tensor, a Attend) error
}
