package decoder_test

import (
	"math"
	"slices"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/decoder"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/testkit/cputest"
	"github.com/goddp/goddp/internal/testkit/must"
	"github.com/goddp/goddp/lora"
	"github.com/goddp/goddp/nn"
)

// small describes a model with all kinds of layers.
var small = decoder.Config{
	Vocab: 17, Hidden: 16, Feedforward: 24, Heads: 4, KeyHeads: 2, Layers: []decoder.Layer{{}, {Window: 3}, {NoRope: true}},
	NormHeads: true, QKVBias: true, MaxPositions: 32,
}

// newModels returns a model of each architecture, placed on dev.
func newModels(t *testing.T, dev device.Device, recompute decoder.Recompute) map[string]*decoder.Model {
	c := small
	c.Recompute = recompute
	all := map[string]*decoder.Model{
		"Llama": must.New(decoder.New(c)),
		"GPT-2": must.New(decoder.NewGPT2(decoder.GPT2Config{Vocab: 17, Positions: 32, Layers: 2, Heads: 4, Hidden: 16, Recompute: recompute})),
	}
	for _, m := range all {
		if err := nn.Place(m, dev, 1); err != nil {
			t.Fatal(err)
		}
		for _, p := range m.Parameters() { // so that positions matter
			if len(p.Shape()) == 2 {
				for i, v := range device.Elements[float32](p.Var().Tensor()) {
					device.Elements[float32](p.Var().Tensor())[i] = 8 * v
				}
			}
		}
	}
	return all
}

// With positions and starts, two documents in one row have the logits and gradients that they have in
// rows of their own.
func TestPackedDocuments(t *testing.T) {
	dev := cputest.New(t)
	const first, second = 4, 5 // their lengths
	ids := []int64{1, 2, 3, 4, 9, 8, 7, 6, 5}
	row := func(ids []int64) *autograd.Variable { return autograd.FromSlice(dev, ids, 1, len(ids)) }
	opts := &decoder.ForwardOptions{
		Positions: row([]int64{0, 1, 2, 3, 0, 1, 2, 3, 4}),
		Starts:    row([]int64{0, 0, 0, 0, first, first, first, first, first}),
	}
	for _, recompute := range []decoder.Recompute{"", decoder.RecomputeCheap, decoder.RecomputeBlocks} {
		for name, m := range newModels(t, dev, recompute) {
			want := slices.Concat(must.New(m.Forward(row(ids[:first]), nil).Read(t.Context())), must.New(m.Forward(row(ids[first:]), nil).Read(t.Context())))
			near(t, name+", logits", must.New(m.Forward(row(ids), opts).Read(t.Context())), want)

			gradients := func(losses ...*autograd.Variable) (all []float64) {
				for i, loss := range losses {
					weight := []float64{float64(first) / float64(len(ids)), float64(second) / float64(len(ids))}[i]
					if len(losses) == 1 {
						weight = 1
					}
					if err := autograd.MulScalar(loss, weight).Backward(nil); err != nil {
						t.Fatal(err)
					}
				}
				for _, p := range m.Parameters() {
					all = append(all, must.New(p.Grad().Read(t.Context()))...)
					p.Var().ZeroGrad()
				}
				return all
			}
			want = gradients(m.Loss(row(ids[:first]), row(ids[:first]), nil), m.Loss(row(ids[first:]), row(ids[first:]), nil))
			near(t, name+", gradients", gradients(m.Loss(row(ids), row(ids), opts)), want)
		}
	}
}

func near(t *testing.T, what string, got, want []float64) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d numbers, want %d", what, len(got), len(want))
	}
	var off, size float64
	for i, w := range want {
		off, size = max(off, math.Abs(got[i]-w)), max(size, math.Abs(w))
	}
	if !(off <= 1e-5*size) {
		t.Errorf("%s are off by %g, of at most %g", what, off, size)
	}
}

// The loss is the cross-entropy of the logits, also of some labels alone, and with an adapter.
func TestLoss(t *testing.T) {
	dev := cputest.New(t)
	targets := map[string]string{"Llama": "lm_head", "GPT-2": "c_attn"}
	ids, next := autograd.FromSlice(dev, []int64{1, 2, 3, 4}, 2, 2), autograd.FromSlice(dev, []int64{4, 3, 2, 1}, 2, 2)
	for name, m := range newModels(t, dev, "") {
		want := autograd.CrossEntropyLoss(autograd.Reshape(m.Forward(ids, nil), 4, 17), autograd.Flatten(next, 0)).Item()
		near(t, name+", losses", []float64{m.Loss(ids, next, nil).Item()}, []float64{want})

		logits := autograd.Slice(autograd.Reshape(m.Forward(ids, nil), 4, 17), 0, 0, 3, 1)
		want = 3 * autograd.CrossEntropyLoss(logits, autograd.FromSlice(dev, []int64{4, 3, 2})).Item()
		ignore := int64(1)
		opts := &decoder.ForwardOptions{Loss: autograd.LinearLossOptions{IgnoreIndex: &ignore, Sum: true}}
		near(t, name+", losses of some labels", []float64{m.Loss(ids, next, opts).Item()}, []float64{want})
		must.New(lora.Add(m, &lora.Options{Targets: []string{targets[name]}}))
		near(t, name+", losses of an adapted head", []float64{m.Loss(ids, next, opts).Item()}, []float64{want})
	}
}

func TestConfigErrors(t *testing.T) {
	for name, change := range map[string]func(*decoder.Config){
		"no vocabulary":            func(c *decoder.Config) { c.Vocab = 0 },
		"heads that do not divide": func(c *decoder.Config) { c.KeyHeads = 3 },
		"odd sizes":                func(c *decoder.Config) { c.Hidden = 18 },
		"no factor":                func(c *decoder.Config) { c.Rope.Scaling = decoder.YarnScaling },
		"no frequencies":           func(c *decoder.Config) { c.Rope = decoder.Rope{Scaling: decoder.Llama3Scaling, Factor: 2} },
		"another recomputation":    func(c *decoder.Config) { c.Recompute = "all" },
		"another scaling":          func(c *decoder.Config) { c.Rope = decoder.Rope{Scaling: 9, Factor: 2} },
	} {
		c := small
		change(&c)
		if _, err := decoder.New(c); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if _, err := decoder.NewGPT2(decoder.GPT2Config{Vocab: 1, Positions: 1, Layers: 1, Heads: 3, Hidden: 4}); err == nil {
		t.Error("GPT-2 with 3 heads of a hidden size of 4: no error")
	}
}

// RecomputeCheap changes no bits of the gradients, of a whole model and with adapters. A block keeps two hidden sizes and one
// feed-forward size less for each token.
func TestRecomputeCheap(t *testing.T) {
	const rows, tokens = 4, 32
	llama, gpt2 := small, decoder.GPT2Config{Vocab: 17, Positions: 32, Layers: 2, Heads: 4, Hidden: 16}
	llama.Feedforward, gpt2.Feedforward = 40, 80 // so different from other sizes that the allocator keeps them apart
	run := func(name string, recompute decoder.Recompute, adapt bool) (grads [][]float64, kept int64) {
		llama.Recompute, gpt2.Recompute = recompute, recompute
		dev, m := cputest.New(t), must.New(decoder.New(llama))
		if name == "GPT-2" {
			m = must.New(decoder.NewGPT2(gpt2))
		}
		if err := nn.Place(m, dev, 1); err != nil {
			t.Fatal(err)
		}
		if adapt {
			must.New(lora.Add(m, nil))
		}
		ids := make([]int64, rows*tokens)
		for i := range ids {
			ids[i] = int64(i * i % 17)
		}
		in := autograd.FromSlice(dev, ids, rows, tokens)
		autograd.NoGrad(dev, func() { m.Hidden(in, nil) }) // computes the angles
		before := dev.Memory().InUse
		loss := m.Loss(in, in, nil)
		kept = dev.Memory().InUse - before
		if err := loss.Backward(nil); err != nil {
			t.Fatal(err)
		}
		for _, p := range m.Parameters() {
			if g := p.Grad(); g != nil {
				grads = append(grads, must.New(g.Read(t.Context())))
			}
		}
		return grads, kept
	}
	for name, perToken := range map[string]int64{"Llama": 3 * (2*16 + 40), "GPT-2": 2 * (2*16 + 80)} {
		for _, adapt := range []bool{false, true} {
			want, all := run(name, decoder.RecomputeNothing, adapt)
			got, kept := run(name, decoder.RecomputeCheap, adapt)
			if !slices.EqualFunc(got, want, slices.Equal) || len(want) == 0 {
				t.Errorf("%s, adapted %t: the gradients differ", name, adapt)
			}
			saved := perToken * rows * tokens * 4
			if adapt { // the first normalization needs no gradient
				saved -= 16 * rows * tokens * 4
			}
			if all-kept != saved {
				t.Errorf("%s, adapted %t: the forward pass keeps %d bytes, %d less than without: want %d less", name, adapt, kept, all-kept, saved)
			}
		}
	}
}
