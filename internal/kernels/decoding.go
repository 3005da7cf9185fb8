package kernels

import "github.com/goddp/goddp/device"

// Last holds the operands and parameters of AttendLast.
type Last struct {
	Q, K, V, Keys, Values, Last device.Tensor
	// Arrived, Int32 [B Hkv], is zero before and after a call. Calls on different streams must not share it.
	Arrived device.Tensor

	Scale  float64 // the factor of the products of queries and keys
	Window int
}

// Decoding contains the kernels with which a model continues rows of tokens, whose keys and values are in a cache.
type Decoding interface {
	// WriteRows writes src [B T N] into dst [B S N]: row t of src[b] becomes row first[b]+t of dst[b]. first [B] is
	// Int64. A row outside dst is a panic with a [*device.IndexError] if the host can read first; on a GPU it is left
	// out.
	WriteRows(s device.Stream, dst, src, first device.Tensor) error
	// AttendLast writes k and v [B Hkv D] into keys and values [B S Hkv D] at the positions last, Int64 [B], which are
	// below S. Then it computes o [B H D], the attention of one query for each row, q [B H D], to the positions up to
	// last[b], of which it reads at most window unless that is 0. Hkv divides H: each head of keys serves H/Hkv
	// neighbouring heads. Sums are in Float32, or Float64 for operands of Float64. D is at most [MaxHeadSize].
	AttendLast(s device.Stream, o device.Tensor, a Last) error
}
