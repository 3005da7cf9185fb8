package kernels

import "github.com/goddp/goddp/device"

// Rotation holds the parameters of a [Rotary] embedding. It rotates element pair i of row t by the angle
// whose cosine is Cos[t][i] (Su et al., "RoFormer", 2021).
type Rotation struct {
	// Cos and Sin are [rows W]. They have at least as many rows as the operand, and W is at most
	// D/2. They are of Float64 for operands of Float64, else of Float32. Elements from 2·W on are
	// copied.
	Cos, Sin device.Tensor
	// Heads is the number of leading heads in a row that are rotated. The other heads are copied.
	Heads int
	// Interleaved pairs the elements 2·i and 2·i+1, as the paper does. Without Interleaved, the
	// elements i and W+i are a pair, as in Llama and GPT-NeoX.
	Interleaved bool
	// Inverse rotates in the other direction.
	Inverse bool
}

// Rotary contains the kernel of rotary position embeddings.
type Rotary interface {
	// Rotate rotates pairs of elements of x [B T N D], and accumulates the result into dst of the
	// same shape.
	Rotate(s device.Stream, dst device.Tensor, acc device.Accum, x device.Tensor, r Rotation) error
	// RotateBoth computes two Rotates of all heads, into dst[0] and dst[1].
	RotateBoth(s device.Stream, dst, x [2]device.Tensor, cos, sin device.Tensor) error
}
