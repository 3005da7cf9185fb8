package kernels

import (
	"math"

	"github.com/x448/float16"
)

// The two 16-bit floating-point formats are kept as bits in a uint16. Conversions round to nearest, ties to
// even. A NaN stays a NaN, and a number that is too large becomes an infinity.

// F16 returns the IEEE 754 binary16 nearest to f.
func F16(f float32) uint16 { return float16.Fromfloat32(f).Bits() }

// FromF16 returns the value of a binary16.
func FromF16(b uint16) float32 { return float16.Frombits(b).Float32() }

// BF16 returns the bfloat16 nearest to f.
func BF16(f float32) uint16 {
	b := math.Float32bits(f)
	if f != f {
		return uint16(b>>16) | 0x40 // set the quiet bit, so that the result is not an infinity
	}
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}

// FromBF16 returns the value of a bfloat16.
func FromBF16(b uint16) float32 { return math.Float32frombits(uint32(b) << 16) }
