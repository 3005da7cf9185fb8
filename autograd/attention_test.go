package autograd_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
)

// attentionCases returns the gradient tests of attention.
func attentionCases() (cases []gradCase) {
	add := func(name string, f func(variables) *autograd.Variable, shapes ...device.Shape) {
		cases = append(cases, gradCase{"ScaledDotProductAttention " + name, shapes, -1, 1, f})
	}
	of := func(opts autograd.AttentionOptions) func(variables) *autograd.Variable {
		return func(in variables) *autograd.Variable {
			return autograd.ScaledDotProductAttention(in[0], in[1], in[2], &opts)
		}
	}
	add("", of(autograd.AttentionOptions{}), device.Shape{2, 2, 3, 4}, device.Shape{2, 2, 5, 4}, device.Shape{2, 2, 5, 4})
	add("of one", of(autograd.AttentionOptions{}), device.Shape{1, 1, 1, 1}, device.Shape{1, 1, 2, 1}, device.Shape{1, 1, 2, 1})
	add("causal", of(autograd.AttentionOptions{Causal: true, Scale: 0.7}), device.Shape{1, 2, 4, 3}, device.Shape{1, 2, 4, 3}, device.Shape{1, 2, 4, 3})
	add("of a window", of(autograd.AttentionOptions{Causal: true, Window: 2}), device.Shape{1, 2, 4, 3}, device.Shape{1, 2, 4, 3}, device.Shape{1, 2, 4, 3})
	add("of groups", of(autograd.AttentionOptions{}), device.Shape{1, 4, 3, 2}, device.Shape{1, 2, 3, 2}, device.Shape{1, 2, 3, 2})
	add("rows first", of(autograd.AttentionOptions{RowsFirst: true}), device.Shape{2, 3, 2, 4}, device.Shape{2, 5, 1, 4}, device.Shape{2, 5, 1, 4})
	add("masked", func(in variables) *autograd.Variable {
		mask := autograd.FromBytes(in[0].Device(), device.Uint8, device.Shape{3, 3}, []byte{1, 0, 1, 0, 0, 0, 0, 1, 1})
		return autograd.ScaledDotProductAttention(in[0], in[1], in[2], &autograd.AttentionOptions{Mask: mask})
	}, device.Shape{1, 2, 3, 4}, device.Shape{1, 2, 3, 4}, device.Shape{1, 2, 3, 4})
	add("with an added mask", func(in variables) *autograd.Variable {
		mask := autograd.FromSlice(in[0].Device(), []float64{0, 1, math.Inf(-1)}, 3)
		return autograd.ScaledDotProductAttention(in[0], in[1], in[2], &autograd.AttentionOptions{Mask: mask})
	}, device.Shape{1, 1, 2, 4}, device.Shape{1, 1, 3, 4}, device.Shape{1, 1, 3, 4})
	add("of one for all", func(in variables) *autograd.Variable {
		return autograd.ScaledDotProductAttention(in[0], in[0], in[0], nil)
	}, device.Shape{1, 2, 3, 4})
	add("with keys that are results", func(in variables) *autograd.Variable {
		return autograd.ScaledDotProductAttention(in[0], autograd.Neg(in[1]), in[2], nil)
	}, device.Shape{1, 1, 3, 2}, device.Shape{1, 1, 3, 2}, device.Shape{1, 1, 3, 2})
	for _, interleaved := range []bool{false, true} {
		add(fmt.Sprintf("after Rotary, interleaved %t", interleaved), func(in variables) *autograd.Variable {
			cos, sin := autograd.RotaryAngles(in[0].Device(), device.Float64, 3, 4, 100)
			return autograd.Rotary(in[0], cos, sin, &autograd.RotaryOptions{Heads: 2, Interleaved: interleaved})
		}, device.Shape{2, 3, 3, 5})
	}
	add("packed", func(in variables) *autograd.Variable {
		return autograd.PackedAttention(in[0], 4, 2, &autograd.AttentionOptions{Causal: true})
	}, device.Shape{2, 5, 24})
	return cases
}

// PackedAttention gives the same result as attention of the three parts in separate tensors. Tensors of
// shape [B N H D] with the option RowsFirst give the same result as their permutation to [B H N D] without
// it.
func TestPackedAttention(t *testing.T) {
	const b, n, h, d = 2, 5, 3, 4
	dev := newDevice(t)
	data := values(rand.New(rand.NewPCG(3, 4)), b*n*3*h*d, -1, 1)
	part := func(which int) *autograd.Variable { // [b h n d]
		out := make([]float64, 0, b*h*n*d)
		for bh := range b * h {
			for i := range n {
				at := (((bh/h*n+i)*3+which)*h + bh%h) * d
				out = append(out, data[at:at+d]...)
			}
		}
		return autograd.FromSlice(dev, out, b, h, n, d)
	}
	opts := autograd.AttentionOptions{Causal: true}
	got := read(t, autograd.PackedAttention(autograd.FromSlice(dev, data, b, n, 3*h*d), h, h, &opts))
	want := read(t, autograd.ScaledDotProductAttention(part(0), part(1), part(2), &opts))
	for i, v := range got { // of [b n h d]
		bn, hd := i/(h*d), i%(h*d)
		at := ((bn/n*h+hd/d)*n+bn%n)*d + hd%d
		if math.Abs(v-want[at]) > 1e-12 {
			t.Fatalf("element %d of the packed attention is %v, of the parts' %v", i, v, want[at])
		}
	}
}

// A query for which all keys are masked has a result of zeros.
func TestFullyMaskedQueryGivesZeros(t *testing.T) {
	dev := newDevice(t)
	x := autograd.FromSlice(dev, []float32{1, 2, 3, 4}, 1, 1, 2, 2)
	mask := autograd.FromBytes(dev, device.Uint8, device.Shape{2, 2}, []byte{0, 0, 1, 0})
	near(t, "attention", read(t, autograd.ScaledDotProductAttention(x, x, x, &autograd.AttentionOptions{Mask: mask})), []float64{0, 0, 1, 2}, 1e-6)
}
