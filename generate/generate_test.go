package generate_test

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/decoder"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/cpu"
	"github.com/goddp/goddp/generate"
	"github.com/goddp/goddp/internal/testkit/commtest"
	"github.com/goddp/goddp/internal/testkit/must"
	"github.com/goddp/goddp/nn"
)

const vocabulary = 29

// models returns a model of each architecture with large weights, so that its choices differ from token to token.
func models(t *testing.T, dev device.Device) map[string]*decoder.Model {
	all := map[string]*decoder.Model{
		"Llama": must.New(decoder.New(decoder.Config{
			Vocab: vocabulary, Hidden: 24, Feedforward: 40, Heads: 6, KeyHeads: 2, Layers: []decoder.Layer{{}, {Window: 3}, {NoRope: true}},
			NormHeads: true, QKVBias: true, MaxPositions: 40, InitStd: 0.4,
		})),
		"GPT-2": must.New(decoder.NewGPT2(decoder.GPT2Config{Vocab: vocabulary, Positions: 40, Layers: 2, Heads: 2, Hidden: 16})),
	}
	for _, m := range all {
		if err := nn.Place(m, dev, 1); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// recomputed continues a prompt greedily, and computes the whole row for each token.
func recomputed(t *testing.T, m *decoder.Model, dev device.Device, prompt []int, n int) []int {
	all := slices.Clone(prompt)
	for range n {
		var logits []float64
		autograd.NoGrad(dev, func() {
			ids := make([]int64, len(all))
			for i, id := range all {
				ids[i] = int64(id)
			}
			x, err := m.Forward(autograd.FromSlice(dev, ids, 1, len(ids)), nil).Read(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			logits = x[(len(all)-1)*vocabulary:]
		})
		best := 0
		for i, v := range logits {
			if v > logits[best] {
				best = i
			}
		}
		all = append(all, best)
	}
	return all[len(prompt):]
}

// With a cache, rows of different lengths are continued as alone and without a cache. A Generator can be used again.
func checkGreedy(t *testing.T, dev device.Device) {
	for name, m := range models(t, dev) {
		g, err := generate.New(m, 3, 24)
		if err != nil {
			t.Fatal(err)
		}
		prompts := [][]int{{3, 1, 4, 1, 5}, {2}, {7, 7, 7, 7, 7, 7, 7, 8}}
		for round := range 2 {
			got, err := g.Generate(t.Context(), prompts[round:], &generate.Options{MaxTokens: 12})
			if err != nil {
				t.Fatal(name, ": ", err)
			}
			for i, p := range prompts[round:] {
				if want := recomputed(t, m, dev, p, 12); !slices.Equal(got[i], want) {
					t.Errorf("%s: prompt %v is continued with %v, want %v", name, p, got[i], want)
				}
			}
		}
	}
}

func TestGreedy(t *testing.T) {
	dev := cpu.New(nil)
	defer dev.Close()
	checkGreedy(t, dev)
}

// On a GPU the pass for one token is captured.
func TestEmulatedGreedy(t *testing.T) { checkGreedy(t, commtest.FakeGPUs(t, 1)[0]) }

// A row ends at a stop token, when the caller says so, or when its positions are used up.
func TestEnds(t *testing.T) {
	dev := cpu.New(nil)
	defer dev.Close()
	m := models(t, dev)["Llama"]
	g, err := generate.New(m, 2, 10)
	if err != nil {
		t.Fatal(err)
	}
	prompts := [][]int{{3, 1, 4}, {2}}
	free, err := g.Generate(t.Context(), prompts, nil)
	if err != nil || len(free[0]) != 8 || len(free[1]) != 10 { // the last token needs no position
		t.Fatalf("%v, %v", free, err)
	}
	got, err := g.Generate(t.Context(), prompts, &generate.Options{Stop: free[0][2:3], OnToken: func(row, id int) bool {
		return row != 1 || id != free[1][1]
	}})
	first := slices.Index(free[0], free[0][2]) + 1
	if err != nil || !slices.Equal(got[0], free[0][:first]) || len(got[1]) > 2 {
		t.Errorf("%v, %v; without ends %v", got, err, free)
	}
	for want, prompts := range map[string][][]int{
		"0 prompts, want 1 to 2": {}, "prompt 1 has 0 tokens, want 1 to 10": {{1}, {}}, "prompt 0 has 11 tokens": {make([]int, 11)},
		"prompt 1 has tokens from 2 to 29, want 0 to 28, those of the model": {{1}, {29, 2}}, "tokens from -1 to 1,": {{1, -1}},
	} {
		if _, err := g.Generate(t.Context(), prompts, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	for _, o := range []generate.Options{{Temperature: -1}, {Temperature: math.NaN()}, {TopK: -1}, {TopP: 1.5}, {TopP: math.NaN()}, {RepetitionPenalty: -1}} {
		if _, err := g.Generate(t.Context(), prompts, &o); err == nil || !strings.Contains(err.Error(), "want none below 0, and TopP at most 1") {
			t.Errorf("%+v: %v", o, err)
		}
	}
	if _, err := generate.New(m, 1, 41); err == nil || !strings.Contains(err.Error(), "at most the model's 40 positions") {
		t.Error(err)
	}
}

// Choices have the probabilities that the options leave.
func TestSampling(t *testing.T) {
	logits := []float32{0, 2, 1, -1, 1.5}
	for _, tt := range []struct {
		o      generate.Options
		seen   []int
		chosen []int // the tokens that may be chosen
	}{
		{generate.Options{Temperature: 1}, nil, []int{0, 1, 2, 3, 4}},
		{generate.Options{Temperature: 0.5, TopK: 2}, nil, []int{1, 4}},
		{generate.Options{Temperature: 1, TopP: 0.7}, nil, []int{1, 4}},
		{generate.Options{Temperature: 1, TopK: 3, TopP: 0.95}, nil, []int{1, 4, 2}},
		{generate.Options{Temperature: 2, RepetitionPenalty: 4}, []int{1, 3}, []int{0, 1, 2, 3, 4}},
		{generate.Options{RepetitionPenalty: 4}, []int{1}, []int{4}},
	} {
		x := slices.Clone(logits)
		for _, id := range tt.seen {
			x[id] = map[bool]float32{true: x[id] / 4, false: x[id] * 4}[x[id] > 0]
		}
		want, total := make([]float64, len(x)), 0.0
		for _, i := range tt.chosen {
			want[i] = 1
			if tt.o.Temperature > 0 {
				want[i] = math.Exp(float64(x[i]) / tt.o.Temperature)
			}
			total += want[i]
		}
		const n = 20000
		got := generate.Choices(&tt.o, tt.seen, logits, n)
		for i := range want {
			p := want[i] / total
			if d := math.Abs(float64(got[i])/n - p); d > 5*math.Sqrt(p*(1-p)/n) {
				t.Errorf("%+v: token %d is chosen with a frequency of %v, want %v", tt.o, i, float64(got[i])/n, p)
			}
		}
	}
}

// pieces are the texts of the tokens that are generated, whatever they are.
type pieces []string

func (p *pieces) Next(int) string {
	next := (*p)[0]
	*p = (*p)[1:]
	return next
}
func (p *pieces) End() string { return "EN" }

// Text comes as soon as it is certain, and ends before a stop string. What was held back comes at the end.
func TestText(t *testing.T) {
	dev := cpu.New(nil)
	defer dev.Close()
	g := must.New(generate.New(models(t, dev)["GPT-2"], 1, 40))
	for _, tt := range []struct{ next, want, left []string }{
		{[]string{"He", "llo E", "N", "T", "\nUs", "e it\nUser", ": no", "more"}, []string{"He", "llo ", "ENT", "\nUse it"}, []string{"more"}},
		{[]string{"He", "END it"}, []string{"He"}, nil},
		{[]string{"He", "EN"}, []string{"He", "EN", "EN"}, nil},
	} {
		var got []string
		p := pieces(slices.Clone(tt.next))
		o := &generate.Options{MaxTokens: len(p)}
		err := g.Text(t.Context(), []int{1}, &p, []string{"\nUser:", "END"}, o, func(text string) { got = append(got, text) })
		if err != nil || !slices.Equal(got, tt.want) || !slices.Equal(p, tt.left) {
			t.Errorf("%q: got %q with %q left, want %q with %q (%v)", tt.next, got, p, tt.want, tt.left, err)
		}
	}
}
