package kernels

import "github.com/goddp/goddp/device"

// MaxHeadSize is the maximum size of a head for attention.
const MaxHeadSize = 256

// Heads is an operand or result of attention: a strided array [B H T D] of batches, heads, rows and
// elements. Only the elements of a row are contiguous, so queries, keys and values can be parts of one
// buffer.
type Heads struct {
	Data                               device.Tensor // the memory from the first element on
	B, H, T, D                         int
	BatchStride, HeadStride, RowStride int // in elements
}

// HeadsFirst returns a dense t [B H T D].
func HeadsFirst(t device.Tensor) Heads {
	b, h, n, d := t.Shape[0], t.Shape[1], t.Shape[2], t.Shape[3]
	return Heads{Data: t.Flat(), B: b, H: h, T: n, D: d, BatchStride: h * n * d, HeadStride: n * d, RowStride: d}
}

// RowsFirst returns h heads of t [B T N D], beginning at the head with index from. In t the N heads of a
// row are contiguous.
func RowsFirst(t device.Tensor, from, h int) Heads {
	b, n, all, d := t.Shape[0], t.Shape[1], t.Shape[2], t.Shape[3]
	data := t.Flat()
	if t.Len() > 0 {
		data = t.Range(from*d, t.Len())
	}
	return Heads{Data: data, B: b, H: h, T: n, D: d, BatchStride: n * all * d, HeadStride: d, RowStride: all * d}
}

// Shape returns [B H T D].
func (h Heads) Shape() device.Shape { return device.Shape{h.B, h.H, h.T, h.D} }

// Attend holds the operands and parameters of attention.
type Attend struct {
	Q Heads // [B H T D]
	// K and V are [B Hkv S D]. Hkv divides H: each head of K and V serves H/Hkv neighbouring
	// heads of Q.
	K, V Heads
	// Mask is absent, or broadcasts to [B H T S]. In a mask of Uint8, 0 masks a key for a query.
	// A mask of the type of Q is added to the products.
	Mask device.Tensor
	// Causal masks the keys after position i for query i.
	Causal bool
	// Window, if positive, masks the keys up to position i - Window for query i.
	Window int
	// Starts, if present, masks the keys before Starts[b i], Int64 [B T], for query i of batch b. It is at most i, and not
	// less than that of the query before. Causal must be set. If the host can read other values, it panics with a
	// [*device.IndexError]; else the result is undefined.
	Starts device.Tensor
	Scale  float64 // the factor of the products of queries and keys
}

// Attention contains the kernels of scaled dot-product attention: softmax(Scale·q·kᵀ + Mask)·v. None of
// them allocates an array of T·S elements. Sums are in Float32, or in Float64 for operands of Float64.
// For 16-bit types, the probabilities and the gradients of the products are rounded to 16 bits when they
// are operands of a product.
//
// A query whose keys are all masked has a result of zeros and contributes no gradient. A NaN propagates
// to all results that depend on it, and may propagate to results that the mask excludes. The size D of a
// head is at most [MaxHeadSize].
type Attention interface {
	// Attention computes o [B H T D], and lse [B H T], the logarithm of each row's sum of
	// exponentials. lse is of Float64 for operands of Float64, else of Float32. For a query whose
	// keys are all masked, lse is +Inf.
	Attention(s device.Stream, o Heads, lse device.Tensor, a Attend) error
	// AttentionGrad accumulates the gradients of a.Q, a.K and a.V into their destinations. g is the
	// gradient of o. o and lse are the results of Attention. The gradients are computed together,
	// because they share most of their work.
	AttentionGrad(s device.Stream, to AttentionGrads, g, o Heads, lse device.Tensor, a Attend) error
	// PrepareAttention chooses and loads the kernels for an Attention whose gradients will be computed,
	// and for its AttentionGrad. It is called before each such Attention. A device may otherwise load
	// kernels at their first use: see PrepareLinearGrad. PrepareAttention writes nothing and reads no
	// element.
	PrepareAttention(s device.Stream, o Heads, a Attend) error
}

// AttentionGrads are the destinations of the gradients of an attention, with the shapes of Q, K and V. A
// gradient whose Data is the zero Tensor is not computed.
type AttentionGrads struct {
	Q, K, V          Heads
	AccQ, AccK, AccV device.Accum
}
