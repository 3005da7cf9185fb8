package train_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/data"
	"github.com/goddp/goddp/ddp"
	"github.com/goddp/goddp/decoder"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/testkit/commtest"
	"github.com/goddp/goddp/internal/testkit/must"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
	"github.com/goddp/goddp/train"
)

// texts are samples of four tokens, of which sample i has i % 5 labels, and the first ten have none.
type texts struct{ data.Dataset }

func (texts) Labels(i int) int {
	if i < 10 {
		return 0
	}
	return i % 5
}

func newTexts(n int) texts {
	fields := []data.Field{{Name: "tokens", DType: device.Float32, Shape: device.Shape{4, 1}}, {Name: "labels", DType: device.Int64, Shape: device.Shape{4}}}
	return texts{data.Each(n, fields, func(i int, dst []device.Tensor) error {
		for j := range 4 {
			device.Elements[float32](dst[0])[j] = float32((i*7+j)%11) / 11
			label := int64(-100)
			if j < (texts{}).Labels(i) {
				label = int64((i + j*j) % 11)
			}
			device.Elements[int64](dst[1])[j] = label
		}
		return nil
	})}
}

// speaker is a small language model. Forward returns the sum of the losses of labels.
type speaker struct {
	nn.Container
	body   nn.Module
	head   *nn.LinearLayer
	labels *autograd.Variable
}

func (s *speaker) Forward(x *autograd.Variable) *autograd.Variable {
	ignored := int64(-100)
	x = s.body.Forward(autograd.Cast(x, device.Float64))
	return autograd.LinearCrossEntropyLoss(x, s.head.Weight.Var(), s.labels, &autograd.LinearLossOptions{IgnoreIndex: &ignored, Sum: true})
}

// newSpeaker returns the configuration of a run that trains a speaker.
func newSpeaker(pg *comm.ProcessGroup, o data.LoaderOptions) *train.Config {
	autograd.Generator(pg.Device()).Seed(1)
	dt := &nn.LinearOptions{DType: device.Float64, NoBias: true}
	s := &speaker{}
	s.body = nn.Add(&s.Container, "body", nn.Sequential(nn.Linear(1, 6, dt), nn.Tanh()))
	s.head = nn.Add(&s.Container, "head", nn.Linear(6, 11, dt))
	model := must.New(ddp.New(s, pg, nil))
	return &train.Config{
		Model: model, Epochs: 2, Optimizer: must.New(optim.NewSGD(model.Parameters(), &optim.SGDOptions{LR: 0.1, Momentum: 0.9})),
		Data: must.New(data.NewLoader(newTexts(50), pg, &o)), SumLoss: true, LogEvery: 1,
		Loss: func(b *data.Batch) *autograd.Variable {
			s.labels = b.Vars[1]
			return model.Forward(b.Vars[0])
		},
	}
}

// With SumLoss every label of a step counts alike, for all numbers of ranks and micro-batches, also where some have no
// labels. Without shuffling, the first two steps have none at all. No line of the log has a NaN.
func TestSumLoss(t *testing.T) {
	for _, shuffle := range []bool{false, true} {
		var want []float64
		for _, batch := range []int{0, 1, 2} {
			for n := 1; n <= 3; n++ {
				commtest.OnGoroutines(t, n, nil, func(pg *comm.ProcessGroup) error {
					c := newSpeaker(pg, data.LoaderOptions{Batch: batch, GlobalBatch: 5, Shuffle: shuffle})
					c.RequireFinite, c.Log = true, fmt.Sprintf("%s/%d", t.TempDir(), n)
					if err := train.Run(t.Context(), pg, c); err != nil {
						return err
					}
					got, err := values(t.Context(), c.Model)
					if want == nil { // with one rank
						want = got
					}
					if d := distance(got, want); !(d < 1e-13) {
						return fmt.Errorf("shuffled %v, %d ranks with micro-batches of %d: the parameters differ by %v from those of one rank", shuffle, n, batch, d)
					}
					if pg.Rank() == 0 {
						if lines := string(must.New(os.ReadFile(c.Log))); strings.Contains(lines, "NaN") || strings.Count(lines, `"loss"`) < 10 {
							return fmt.Errorf("the log is\n%s", lines)
						}
					}
					return err
				})
			}
		}
	}
}

// Without a GlobalBatch too, where the last step repeats samples: its gradients are those of the mean over the labels
// that the ranks have.
func TestSumLossOfRepeatedSamples(t *testing.T) {
	weight := map[int]float64{}
	for rank := range 3 {
		commtest.OnGoroutines(t, 3, nil, func(pg *comm.ProcessGroup) error {
			loader := must.New(data.NewLoader(newTexts(50), pg, &data.LoaderOptions{Batch: 6}))
			last, at := 0.0, 0
			for b, err := range loader.Epoch(t.Context(), 0) {
				if err != nil {
					return err
				}
				last, at = b.LabelWeight*float64(b.Labels), at+1
			}
			if pg.Rank() == rank {
				weight[rank] = last
			}
			return nil
		})
	}
	if sum := weight[0] + weight[1] + weight[2]; !(sum > 3-1e-12 && sum < 3+1e-12) {
		t.Errorf("the labels of the last step weigh %v, whose mean over the ranks is not 1", weight)
	}
}

// Two ranks learn a chat's answers from packed rows. A run that goes on from a checkpoint in the middle of an epoch ends
// with the bits of one that was not interrupted.
func TestFineTuningIsResumed(t *testing.T) {
	var lines strings.Builder
	for i := range 120 {
		fmt.Fprintf(&lines, "{\"prompt\": \"%c?\", \"completion\": \"%s.\"}\n", 'a'+i%9, strings.Repeat(string(rune('b'+i%9)), 1+i%4))
	}
	file := filepath.Join(t.TempDir(), "chats.jsonl")
	if err := os.WriteFile(file, []byte(lines.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	encode := func(d *data.Document) (tokens []int, labels []bool, err error) {
		for i, b := range []byte(d.Prompt + d.Completion) {
			tokens, labels = append(tokens, int(b)), append(labels, i >= len(d.Prompt))
		}
		return tokens, labels, nil
	}
	ignored := int64(data.NotALabel)
	run := func(pg *comm.ProcessGroup, folder string, steps int) (last float64, params []float64, err error) {
		net := must.New(decoder.New(decoder.Config{Vocab: 128, Hidden: 16, Feedforward: 32, Heads: 2, Layers: make([]decoder.Layer, 1), Tied: true}))
		autograd.Generator(pg.Device()).Seed(1)
		model := must.New(ddp.New(net, pg, nil))
		set := must.New(data.OpenDocuments(file, 24, encode, &data.DocumentsOptions{Pack: true}))
		c := &train.Config{
			Model: model, Optimizer: must.New(optim.NewAdamW(model.Parameters(), &optim.AdamWOptions{LR: 0.02})), SumLoss: true,
			Data:     must.New(data.NewLoader(set, pg, &data.LoaderOptions{Batch: 2, GlobalBatch: 8, Shuffle: true})),
			MaxSteps: steps, Checkpoints: folder, LogEvery: 1,
			Loss: func(b *data.Batch) *autograd.Variable {
				loss := model.Run(func() *autograd.Variable {
					return net.Loss(b.Vars[0], b.Vars[1], &decoder.ForwardOptions{
						Positions: b.Vars[2], Starts: b.Vars[3], Loss: autograd.LinearLossOptions{IgnoreIndex: &ignored, Sum: true},
					})
				})
				last = loss.Item() / float64(b.Labels)
				return loss
			},
		}
		if err := train.Run(t.Context(), pg, c); err != nil {
			return 0, nil, err
		}
		params, err = values(t.Context(), model)
		return last, params, err
	}
	whole, parts := t.TempDir(), t.TempDir()
	commtest.OnGoroutines(t, 2, nil, func(pg *comm.ProcessGroup) error {
		last, want, err := run(pg, whole, 40)
		if err != nil {
			return err
		}
		if last > 0.8 { // from 5; the lengths of the answers are random
			return fmt.Errorf("the loss is %v after 40 steps", last)
		}
		if _, _, err := run(pg, parts, 19); err != nil {
			return err
		}
		_, got, err := run(pg, parts, 40)
		if err == nil && !slices.Equal(got, want) {
			err = errors.New("a resumed run ends with other parameters")
		}
		return err
	})
}
