package lora_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/cpu"
	"github.com/goddp/goddp/internal/testkit/commtest"
	"github.com/goddp/goddp/lora"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

// block is a model with two named layers and an embedding that shares its weight with the head.
type block struct {
	nn.Container
	tokens     *nn.EmbeddingLayer
	up, down   *nn.LinearLayer
	head       *nn.LinearLayer
	activation nn.Module
}

func newBlock() *block {
	b := &block{activation: nn.GELU()}
	b.tokens = nn.Add(&b.Container, "tokens", nn.Embedding(11, 4, nil))
	b.up = nn.Add(&b.Container, "mlp.up", nn.Linear(4, 6, nil))
	b.down = nn.Add(&b.Container, "mlp.down", nn.Linear(6, 4, nil))
	b.head = nn.Add(&b.Container, "lm_head", &nn.LinearLayer{Weight: b.tokens.Weight})
	return b
}

func (b *block) Forward(ids *autograd.Variable) *autograd.Variable {
	return b.head.Forward(nn.FeedForward(b.tokens.Forward(ids), b.up, b.activation, b.down))
}

func (b *block) loss() *autograd.Variable {
	dev := b.tokens.Weight.Var().Device()
	ids := autograd.FromSlice(dev, []int64{3, 1, 4, 1, 5, 9}, 6)
	return nn.CrossEntropyLoss(b.Forward(ids), autograd.FromSlice(dev, []int64{1, 4, 1, 5, 9, 2}, 6), nil)
}

func placed(t *testing.T, dev device.Device) *block {
	b := newBlock()
	if err := nn.Place(b, dev, 1); err != nil {
		t.Fatal(err)
	}
	return b
}

func train(t *testing.T, b *block, steps int) {
	opt, err := optim.NewAdamW(b.Parameters(), &optim.AdamWOptions{LR: 0.1})
	if err != nil {
		t.Fatal(err)
	}
	for range steps {
		if err := b.loss().Backward(nil); err != nil {
			t.Fatal(err)
		}
		if err := opt.Step(); err != nil {
			t.Fatal(err)
		}
		opt.ZeroGrad()
	}
}

func read(t *testing.T, v *autograd.Variable) []float64 {
	x, err := v.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// New adapters change nothing. Training changes the adapters alone, and lowers the loss. The model's state, and so a
// checkpoint, has the adapters alone.
func TestAdd(t *testing.T) {
	b := placed(t, cpu.New(nil))
	before, up := b.loss().Item(), read(t, b.up.Weight.Var())
	a, err := lora.Add(b, &lora.Options{Rank: 2, Alpha: 4, Targets: []string{"up", "mlp.down"}})
	if err != nil {
		t.Fatal(err)
	}
	if got := b.loss().Item(); got != before {
		t.Errorf("the loss with new adapters is %v, without them %v", got, before)
	}
	train(t, b, 20)
	if got := b.loss().Item(); got > before-0.5 {
		t.Errorf("after 20 steps the loss is %v, before them %v", got, before)
	}
	if !slices.Equal(read(t, b.up.Weight.Var()), up) {
		t.Error("a weight of the base model has changed")
	}
	var names []string
	for name := range nn.State(b) {
		names = append(names, name)
	}
	slices.Sort(names)
	want := []string{"mlp.down.lora_A.weight", "mlp.down.lora_B.weight", "mlp.up.lora_A.weight", "mlp.up.lora_B.weight"}
	if !slices.Equal(names, want) || !slices.Equal(a.Layers(), []string{"mlp.up", "mlp.down"}) {
		t.Errorf("the state has %q, want %q; layers %q", names, want, a.Layers())
	}
}

// Adapters that are saved and loaded compute the same. Merged, they compute nearly the same, and the whole model can
// be trained and saved again.
func TestFilesAndMerge(t *testing.T) {
	dev, dir := cpu.New(nil), t.TempDir()
	b := placed(t, dev)
	a, err := lora.Add(b, &lora.Options{Rank: 2, Alpha: 3})
	if err != nil {
		t.Fatal(err)
	}
	train(t, b, 5)
	if err := a.Save(t.Context(), dir, "base/model"); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "adapter_config.json"))
	if err != nil || !strings.Contains(string(text), `"target_modules": [
    "mlp.up",
    "mlp.down"
  ]`) {
		t.Errorf("%v\n%s", err, text)
	}
	other := placed(t, dev)
	loaded, err := lora.Load(other, dir)
	if err != nil {
		t.Fatal(err)
	}
	want := b.loss().Item()
	if got := other.loss().Item(); got != want {
		t.Errorf("with loaded adapters the loss is %v, want %v", got, want)
	}
	if err := loaded.Merge(); err != nil {
		t.Fatal(err)
	}
	if got := other.loss().Item(); max(got-want, want-got) > 1e-6 {
		t.Errorf("with merged adapters the loss is %v, want %v", got, want)
	}
	if n := len(nn.State(other)); n != 5 || other.up.Weight.Frozen() {
		t.Errorf("after Merge the state has %d tensors, want 5; a weight is frozen: %v", n, other.up.Weight.Frozen())
	}
}

// What does not fit is an error that says what was wanted, and leaves the model as it was.
func TestRefusals(t *testing.T) {
	b, dir := placed(t, cpu.New(nil)), t.TempDir()
	files := func(config string) func() error {
		return func() error {
			if err := os.WriteFile(filepath.Join(dir, "adapter_config.json"), []byte(config), 0o666); err != nil {
				return err
			}
			_, err := lora.Load(b, dir)
			return err
		}
	}
	add := func(o lora.Options) func() error {
		return func() error { _, err := lora.Add(b, &o); return err }
	}
	for want, f := range map[string]func() error{
		`the model has no Linear layer "q_proj"; it has down, up`: add(lora.Options{Targets: []string{"up", "q_proj"}}),
		`rank -1 and dropout 0: want a rank of at least 1`:        add(lora.Options{Rank: -1}),
		`init_lora_weights is "PiSSA_niter_16", which changes`:    files(`{"peft_type":"LORA","r":2,"init_lora_weights":"PiSSA_niter_16"}`),
		`use_dora is true: want plain LoRA`:                       files(`{"peft_type":"LORA","r":2,"use_dora":true}`),
		`peft_type "IA3": want LORA`:                              files(`{"peft_type":"IA3"}`),
		`modules_to_save is ["lm_head"]: want none`:               files(`{"peft_type":"LORA","r":2,"modules_to_save":["lm_head"]}`),
		`adapter_model.safetensors: no such file`:                 files(`{"peft_type":"LORA","r":2,"target_modules":".*up"}`),
	} {
		if err := f(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
		if b.up.LowRank != nil || b.up.Weight.Frozen() {
			t.Fatalf("%s: the model was changed", want)
		}
	}
	if _, err := lora.Add(b, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := lora.Add(b, nil); err == nil || !strings.Contains(err.Error(), "adapters already") {
		t.Errorf("Add again: %v", err)
	}
}

// Two ranks train the adapters together: the buckets hold nothing else.
func TestRanks(t *testing.T) {
	commtest.OnGoroutines(t, 2, nil, func(pg *comm.ProcessGroup) error {
		b := newBlock()
		if err := nn.Place(b, pg.Device(), 1); err != nil {
			return err
		}
		a, err := lora.Add(b, &lora.Options{Rank: 2})
		if err != nil {
			return err
		}
		m, err := ddp.New(b, pg, nil)
		if err != nil {
			return err
		}
		if err := m.Run(b.loss).Backward(nil); err != nil {
			return err
		}
		n := 0
		for _, bucket := range m.Stats().Buckets {
			n += len(bucket.Params)
		}
		if want := len(a.Parameters()); n != want {
			return fmt.Errorf("the buckets hold %d parameters, want the adapters' %d", n, want)
		}
		return nil
	})
}
