package kernels

import "github.com/goddp/goddp/device"

// Decoding contains the kernels with which a model continues rows of tokens, whose keys and values are in a cache.
type Decoding interface {
	// WriteRows writes src [B T N] into dst [B S N]: row t of src[b] becomes row first[b]+t of dst[b]. first [B] is
	// Int64. A row outside dst is a panic with a [*device.IndexError] if the host can read first; on a GPU it is left
	// out.
	WriteRows(s device.Stream, dst, src, first device.Tensor) error
	// AttendLast computes o [B H D], the attention of one query for each row, q [B H D], to the keys and values
	// [B S Hkv D] at the positions up to last[b], of which there are at most window unless it is 0. Hkv divides H: each
	// head of keys serves H/Hkv neighbouring heads. last [B] is Int64, and below S. Sums are in Float32, or Float64 for
	// operands of Float64. D is at most [MaxHeadSize].
	AttendLast(s device.Stream, o, q, keys, values, last device.Tensor, scale float64, window int) error
}
