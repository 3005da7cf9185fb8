package kernels

import "github.com/goddp/goddp/device"

// Rotation is what a [Rotary] embedding turns heads by: element pair i of a row t by the
// angle whose cosine is Cos[t][i] (Su et al., "RoFormer", 2021).
type Rotation struct {
	// Cos and Sin are [rows W], of at least as many rows as there are, W at most D/2: of
	// Float64 for operands of Float64, else of Float32. Elements behind 2·W stay as they are.
	Cos, Sin device.Tensor
	// Heads is how many of a row's first heads are turned. The others are copied.
	Heads int
	// Interleaved pairs the elements 2·i and 2·i+1, as the paper does. Else i and W+i are a
	// pair, as in Llama and GPT-NeoX.
	Interleaved bool
	// Inverse turns the other way.
	Inverse bool
}

// Rotary has the kernel of rotary position embeddings.
type Rotary interface {
	// Rotate accumulates x [B T N D], with pairs of its elements turned, into dst of its
	// shape.
	Rotate(s device.Stream, dst device.Tensor, acc device.Accum, x device.Tensor, r Rotation) error
}
