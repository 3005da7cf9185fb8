package half

import (
	"math"
	"testing"
)

func TestEveryValueSurvivesARoundTrip(t *testing.T) {
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

func TestRounding(t *testing.T) {
	for _, c := range []struct {
		in        float32
		f16, bf16 float32
	}{
		{1 + 0x1p-8, 1 + 0x1p-8, 1},              // bfloat16: a tie, to even
		{1 + 3*0x1p-8, 1 + 3*0x1p-8, 1 + 0x1p-6}, // a tie, to even, upwards
		{1 + 0x1p-11, 1, 1},                      // binary16: a tie, to even
		{1 + 3*0x1p-11, 1 + 0x1p-9, 1},
		{65520, float32(math.Inf(1)), 65536}, // binary16: beyond the largest
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
	nan := float32(math.NaN())
	if f := FromF16(F16(nan)); f == f {
		t.Errorf("F16(NaN) = %g", f)
	}
	if f := FromBF16(BF16(math.Float32frombits(0x7f800001))); f == f {
		t.Errorf("BF16 of a NaN with a low payload = %g", f)
	}
}
