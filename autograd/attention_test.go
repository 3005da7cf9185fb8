package autograd_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
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
	add("of documents", func(in variables) *autograd.Variable {
		starts := autograd.FromSlice(in[0].Device(), []int64{0, 0, 2, 2, 0, 1, 1, 1}, 2, 4)
		return autograd.ScaledDotProductAttention(in[0], in[1], in[2], &autograd.AttentionOptions{Causal: true, Starts: starts})
	}, device.Shape{2, 2, 4, 3}, device.Shape{2, 1, 4, 3}, device.Shape{2, 1, 4, 3})
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

// documents returns the starts of documents with the given lengths in one row.
func documents(dev device.Device, lengths ...int) *autograd.Variable {
	var starts []int64
	for _, n := range lengths {
		starts = append(starts, slices.Repeat([]int64{int64(len(starts))}, n)...)
	}
	return autograd.FromSlice(dev, starts, 1, len(starts))
}

// With Starts, each document of a row has the result and the gradients that it has alone, also within a window, in
// separate tensors and packed.
func TestAttentionOfDocuments(t *testing.T) {
	const h, keyHeads, d = 4, 2, 8
	dev := newDevice(t)
	lengths := []int{1, 70, 130, 3}
	n := 204
	rng := rand.New(rand.NewPCG(1, 2))
	qkv, g := values(rng, n*(h+2*keyHeads)*d, -1, 1), values(rng, n*h*d, -1, 1)
	attend := func(packed bool, from, to int, opts autograd.AttentionOptions) (y, grad []float64) {
		const all = (h + 2*keyHeads) * d
		x := autograd.FromSlice(dev, qkv[from*all:to*all], 1, to-from, all).RequireGrad()
		var o *autograd.Variable
		if packed {
			o = autograd.PackedAttention(x, h, keyHeads, &opts)
		} else {
			opts.RowsFirst = true
			heads := autograd.Reshape(x, 1, to-from, h+2*keyHeads, d)
			part := func(first, n int) *autograd.Variable { return autograd.Slice(heads, 2, first, first+n, 1) }
			o = autograd.ScaledDotProductAttention(part(0, h), part(h, keyHeads), part(h+keyHeads, keyHeads), &opts)
		}
		mustBackwardFrom(t, o, autograd.Reshape(autograd.FromSlice(dev, g[from*h*d:to*h*d]), o.Shape()...))
		return read(t, o), read(t, x.Grad())
	}
	for _, window := range []int{0, 50} {
		for _, packed := range []bool{false, true} {
			got, gotGrad := attend(packed, 0, n, autograd.AttentionOptions{Causal: true, Window: window, Starts: documents(dev, lengths...)})
			var want, wantGrad []float64
			at := 0
			for _, length := range lengths {
				y, grad := attend(packed, at, at+length, autograd.AttentionOptions{Causal: true, Window: window})
				want, wantGrad, at = append(want, y...), append(wantGrad, grad...), at+length
			}
			what := fmt.Sprintf("window %d, packed %v", window, packed)
			near(t, what, got, want, 1e-13)
			near(t, what+", gradients", gotGrad, wantGrad, 1e-13)
		}
	}
	x := autograd.Zeros(dev, device.Float64, 1, 1, 3, 2)
	for name, opts := range map[string]autograd.AttentionOptions{
		"ScaledDotProductAttention: index 2 at position 1 is not within 0 to 1": {Causal: true, Starts: autograd.FromSlice(dev, []int64{0, 2, 2}, 1, 3)},
		"ScaledDotProductAttention: index 0 at position 2 is not within 0 to 2": {Causal: true, Starts: autograd.FromSlice(dev, []int64{0, 1, 0}, 1, 3)},
		"Attention: Starts without Causal, want both":                           {Starts: documents(dev, 3)},
	} {
		if got := panicText(func() { autograd.ScaledDotProductAttention(x, x, x, &opts) }); got != name {
			t.Errorf("the error is %s, want %s", got, name)
		}
	}
}

// One captured step serves rows with any documents, with the kernels of each type.
func TestEmulatedCapturedAttentionOfDocuments(t *testing.T) {
	const h, keyHeads, d, n = 2, 1, 32, 150
	gpu, host := openGPU(t), newDevice(t)
	xs := values(rand.New(rand.NewPCG(3, 4)), n*(h+2*keyHeads)*d, -1, 1)
	for _, dt := range []device.DType{device.Float32, device.BFloat16} {
		runs := 0
		on := func(dev device.Device, dt device.DType) func(lengths ...int) []float64 {
			x := autograd.FromSlice(dev, xs, 1, n, (h+2*keyHeads)*d).RequireGrad()
			step := func(in ...*autograd.Variable) (*autograd.Variable, error) {
				runs++
				x.ZeroGrad()
				y := autograd.PackedAttention(autograd.Cast(x, dt), h, keyHeads, &autograd.AttentionOptions{Causal: true, Starts: in[0]})
				loss := autograd.Sum(autograd.Pow(autograd.Cast(y, device.Float64), 2))
				return loss, loss.Backward(nil)
			}
			if dev == gpu {
				step = autograd.Capture(dev, step, &autograd.CaptureOptions{Warmup: 1, Required: true})
			}
			return func(lengths ...int) []float64 {
				loss, err := step(documents(dev, lengths...))
				if err != nil {
					t.Fatal(err)
				}
				return slices.Concat(read(t, loss), read(t, x.Grad()))
			}
		}
		captured, want := on(gpu, dt), on(host, device.Float64)
		tolerance := map[device.DType]float64{device.Float32: 1e-5, device.BFloat16: 0.03}[dt]
		for _, lengths := range [][]int{{n}, {100, 50}, {1, 64, 63, 20, 2}} {
			near(t, fmt.Sprintf("%v, documents %v", dt, lengths), captured(lengths...), want(lengths...), tolerance)
		}
		if runs != 3+2 {
			t.Errorf("the step ran %d times, want 3 on the host, and once and once captured on the GPU", runs)
		}
	}
}
