package kernels

import (
	"math"
	"testing"
)

func TestConversionsRoundTrip(t *testing.T) {
	for i := range 1 << 16 {
		b := uint16(i)
		if f := FromF16(b); f == f && F16(f) != b {
			t.Fatalf("binary16 %#04x is %g, which converts to %#04x", b, f, F16(f))
		}
		if f := FromBF16(b); f == f && BF16(f) != b {
			t.Fatalf("bfloat16 %#04x is %g, which converts to %#04x", b, f, BF16(f))
		}
	}
}

func TestRoundsToNearestEven(t *testing.T) {
	for _, c := range []struct {
		in        float32
		f16, bf16 float32
	}{
		{1 + 0x1p-8, 1 + 0x1p-8, 1},              // bfloat16: a tie, rounded down to even
		{1 + 3*0x1p-8, 1 + 3*0x1p-8, 1 + 0x1p-6}, // bfloat16: a tie, rounded up to even
		{1 + 0x1p-11, 1, 1},                      // binary16: a tie, rounded down to even
		{1 + 3*0x1p-11, 1 + 0x1p-9, 1},
		{65520, float32(math.Inf(1)), 65536}, // binary16: larger than the largest number
		{float32(math.Inf(-1)), float32(math.Inf(-1)), float32(math.Inf(-1))},
		{math.MaxFloat32, float32(math.Inf(1)), float32(math.Inf(1))},
	} {
		if got := FromF16(F16(c.in)); got != c.f16 {
			t.Errorf("F16(%g) = %g, want %g", c.in, got, c.f16)
		}
		if got := FromBF16(BF16(c.in)); got != c.bf16 {
			t.Errorf("BF16(%g) = %g, want %g", c.in, got, c.bf16)
		}
	}
}

// A NaN stays a NaN whatever its sign and payload, although 16 bits cannot hold the payload's low
// bits.
func TestNaNStaysNaN(t *testing.T) {
	for bit := range 23 {
		for _, sign := range []uint32{0, 1 << 31} {
			nan := math.Float32frombits(sign | 0x7f800000 | 1<<bit)
			if f := FromF16(F16(nan)); f == f {
				t.Errorf("F16 of the NaN %#08x is %g", math.Float32bits(nan), f)
			}
			if f := FromBF16(BF16(nan)); f == f {
				t.Errorf("BF16 of the NaN %#08x is %g", math.Float32bits(nan), f)
			}
		}
	}
	for payload := range uint16(1 << 10) {
		if b := 0x7c00 | payload; payload != 0 && FromF16(b) == FromF16(b) {
			t.Errorf("the binary16 NaN %#04x became %g", b, FromF16(b))
		}
	}
}
