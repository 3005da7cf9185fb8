package nn_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/cpu"
	"github.com/goddp/goddp/internal/testkit"
	"github.com/goddp/goddp/internal/testkit/torchtest"
	"github.com/goddp/goddp/nn"
)

// The parameters of MultiheadAttention have PyTorch's names, shapes and initial distributions.
func TestMultiheadAttentionParameters(t *testing.T) {
	l := nn.MultiheadAttention(12, 3, nil)
	if err := nn.Place(l, newDevice(t, cpu.Options{}), 1); err != nil {
		t.Fatal(err)
	}
	bounds := map[string]float64{"in_proj_weight": math.Sqrt(6. / 48), "in_proj_bias": 0, "out_proj.weight": 1 / math.Sqrt(12), "out_proj.bias": 0}
	shapes := map[string]device.Shape{"in_proj_weight": {36, 12}, "in_proj_bias": {36}, "out_proj.weight": {12, 12}, "out_proj.bias": {12}}
	state := nn.State(l)
	for name, bound := range bounds {
		v, there := state[name]
		if !there || !v.Shape().Equal(shapes[name]) {
			t.Fatalf("%s is %v, want %v", name, v, shapes[name])
		}
		var most float64
		for _, x := range read(t, v) {
			most = max(most, math.Abs(x))
		}
		if most > bound || most < 0.8*bound {
			t.Errorf("%s reaches %v, want at most %v, and nearly that", name, most, bound)
		}
	}
	if len(state) != len(bounds) {
		t.Errorf("%d parameters, want %d", len(state), len(bounds))
	}
}

// A MultiheadAttention projects its operands by the rows of in_proj_weight, first those of the queries, attends with
// each head, and projects the heads' results.
func TestMultiheadAttentionForward(t *testing.T) {
	const embed, heads, rows = 6, 3, 4
	dev := newDevice(t, cpu.Options{})
	rng := rand.New(rand.NewPCG(7, 8))
	random := func(shape ...int) *autograd.Variable {
		return autograd.FromSlice(dev, input(rng, -1, 1, shape...).Numbers, shape...)
	}
	mask := random(rows, rows)
	for _, causal := range []bool{false, true} {
		l := nn.MultiheadAttention(embed, heads, &nn.MultiheadAttentionOptions{Causal: causal, DType: device.Float64})
		w, b, outW, outB := random(3*embed, embed), random(3*embed), random(embed, embed), random(embed)
		l.InWeight, l.InBias = nn.NewParameter("in_proj_weight", w), nn.NewParameter("in_proj_bias", b)
		l.Out.Weight, l.Out.Bias = nn.NewParameter("weight", outW), nn.NewParameter("bias", outB)
		want := func(q, k, v, mask *autograd.Variable) []float64 {
			part := func(i int, x *autograd.Variable) *autograd.Variable { // [2 heads rows embed/heads]
				x = autograd.Linear(x, autograd.Slice(w, 0, i*embed, (i+1)*embed, 1), autograd.Slice(b, 0, i*embed, (i+1)*embed, 1))
				return autograd.Transpose(autograd.Reshape(x, 2, rows, heads, embed/heads), 1, 2)
			}
			y := autograd.ScaledDotProductAttention(part(0, q), part(1, k), part(2, v), &autograd.AttentionOptions{Causal: causal, Mask: mask})
			return read(t, autograd.Linear(autograd.Reshape(autograd.Transpose(y, 1, 2), 2, rows, embed), outW, outB))
		}
		x, y, z := random(2, rows, embed), random(2, rows, embed), random(2, rows, embed)
		near(t, "self-attention", read(t, l.Forward(x)), want(x, x, x, nil), 1e-12)
		if !causal {
			near(t, "attention with a mask", read(t, l.Attend(x, y, z, mask)), want(x, y, z, mask), 1e-12)
		}
	}
}

func TestMultiheadAttentionIsPyTorchs(t *testing.T) {
	testkit.Long(t)
	rng := rand.New(rand.NewPCG(7, 8))
	input := func(shape ...int) torchtest.Input {
		in := torchtest.Input{Shape: shape, Numbers: make([]float64, device.Shape(shape).Len())}
		for i := range in.Numbers {
			in.Numbers[i] = float64(float32(2*rng.Float64() - 1))
		}
		return in
	}
	var cases []torchtest.Case
	for n := range randomCases() {
		heads, d, b, rows, keys := 1+rng.IntN(4), 1+rng.IntN(9), 1+rng.IntN(3), 1+rng.IntN(12), 1+rng.IntN(12)
		embed, self, causal, added := heads*d, n%2 == 0, n%4 == 0, n%4 == 1
		if self {
			keys = rows
		}
		in := []torchtest.Input{input(b, rows, embed), input(b, keys, embed), input(b, keys, embed)}
		in = append(in, input(3*embed, embed), input(3*embed), input(embed, embed), input(embed), input(rows, keys))
		in[7].Constant = true
		of, mask := [3]int{0, 1, 2}, "None"
		if self {
			of = [3]int{}
		}
		switch {
		case causal:
			mask = fmt.Sprintf("torch.full((%d, %d), float('-inf'), dtype=x[0].dtype, device=x[0].device).triu(1)", rows, keys)
		case added:
			mask = "x[7]"
		}
		dt, tolerance := device.Float64, 1e-10
		if n/4%2 == 1 {
			dt, tolerance = device.Float32, 3e-5 // a gradient passes through five products
		}
		cases = append(cases, torchtest.Case{
			Name: fmt.Sprintf("MultiheadAttention(%d, %d) of %d rows and %d keys, self %t, causal %t, added mask %t", embed, heads, rows, keys, self, causal, added),
			Expr: fmt.Sprintf("F.multi_head_attention_forward(x[%d].transpose(0, 1), x[%d].transpose(0, 1), x[%d].transpose(0, 1), %d, %d, x[3], x[4], None, None, False, 0.0, x[5], x[6], need_weights=False, attn_mask=%s)[0].transpose(0, 1)",
				of[0], of[1], of[2], embed, heads, mask),
			In: in, DType: dt, Tolerance: tolerance,
			Go: func(x []*autograd.Variable) *autograd.Variable {
				l := nn.MultiheadAttention(embed, heads, &nn.MultiheadAttentionOptions{Causal: causal, DType: dt})
				l.InWeight, l.InBias = nn.NewParameter("in_proj_weight", x[3]), nn.NewParameter("in_proj_bias", x[4])
				l.Out.Weight, l.Out.Bias = nn.NewParameter("weight", x[5]), nn.NewParameter("bias", x[6])
				switch {
				case self && causal:
					return l.Forward(x[0])
				case added:
					return l.Attend(x[of[0]], x[of[1]], x[of[2]], x[7])
				}
				return l.Attend(x[of[0]], x[of[1]], x[of[2]], nil)
			},
		})
	}
	torchtest.Check(t, cases)
}

// With a rotary embedding, attention depends on the distance of rows, not on their positions: moving all
// rows by the same number changes nothing. Both projection paths, and groups of heads, agree.
func TestRotaryAttention(t *testing.T) {
	dev := newDevice(t, cpu.Options{})
	rng := rand.New(rand.NewPCG(9, 10))
	for _, interleaved := range []bool{false, true} {
		l := nn.MultiheadAttention(16, 4, &nn.MultiheadAttentionOptions{
			Rotary: true, RotaryInterleaved: interleaved, KeyHeads: 2, Causal: true, DType: device.Float64,
		})
		if err := nn.Place(l, dev, 3); err != nil {
			t.Fatal(err)
		}
		data := make([]float64, 6*16)
		for i := range data {
			data[i] = rng.NormFloat64()
		}
		x := autograd.FromSlice(dev, data, 1, 6, 16)
		packed, parts := read(t, l.Forward(x)), read(t, l.Attend(x, x.Detach(), x, nil))
		for i := range packed {
			if math.Abs(packed[i]-parts[i]) > 1e-12 {
				t.Fatalf("interleaved %t: element %d is %v of one projection, %v of three", interleaved, i, packed[i], parts[i])
			}
		}
		if interleaved { // the cached angles are those of another type
			if err := nn.Cast(l, device.Float32, nil); err != nil {
				t.Fatal(err)
			}
			for i, v := range read(t, l.Forward(x)) {
				if math.Abs(packed[i]-v) > 1e-5 {
					t.Fatalf("element %d is %v in Float32, %v in Float64", i, v, packed[i])
				}
			}
			continue
		}
		// The last row attends to rows 3 to 5 only, so the three rows before them do not matter.
		mask := autograd.FromBytes(dev, device.Uint8, device.Shape{6}, []byte{0, 0, 0, 1, 1, 1})
		moved, first := read(t, l.Attend(x, x, x, mask)), read(t, l.Forward(autograd.FromSlice(dev, data[3*16:], 1, 3, 16)))
		for i := range 16 {
			if got, want := moved[5*16+i], first[2*16+i]; math.Abs(got-want) > 1e-12 {
				t.Errorf("interleaved %t: element %d of the last of rows 3 to 5 is %v, of rows 0 to 2 %v", interleaved, i, got, want)
			}
		}
	}
}
