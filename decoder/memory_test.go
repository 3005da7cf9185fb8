package decoder_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp/zero"
	"github.com/goddp/goddp/decoder"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/testkit"
	"github.com/goddp/goddp/internal/testkit/commtest"
	"github.com/goddp/goddp/internal/testkit/cputest"
	"github.com/goddp/goddp/internal/testkit/must"
	"github.com/goddp/goddp/lora"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

// The estimate is within 5 % of the largest use in training steps, also if most of it is parameters.
func TestMemory(t *testing.T) {
	testkit.Long(t)
	llama := decoder.Config{
		Vocab: 500, Hidden: 32, Feedforward: 104, Heads: 2, KeyHeads: 1, Layers: make([]decoder.Layer, 5),
	}
	gpt2 := decoder.GPT2Config{Vocab: 500, Positions: 128, Layers: 5, Heads: 2, Hidden: 32, Feedforward: 160}
	for _, recompute := range []decoder.Recompute{decoder.RecomputeNothing, decoder.RecomputeCheap, decoder.RecomputeBlocks} {
		llama.Recompute, gpt2.Recompute = recompute, recompute
		for name, newModel := range map[string]func() (*decoder.Model, error){
			"Llama": func() (*decoder.Model, error) { return decoder.New(llama) },
			"GPT-2": func() (*decoder.Model, error) { return decoder.NewGPT2(gpt2) },
		} {
			for _, rows := range []int{3, 8} {
				for _, rank := range []int{0, 4} {
					t.Run(fmt.Sprintf("%s, %q, %d rows, adapters of rank %d", name, recompute, rows, rank), func(t *testing.T) {
						dev, m := cputest.New(t), must.New(newModel())
						if rank > 0 {
							must.New(lora.Add(m, &lora.Options{Rank: rank}))
						}
						const length = 128
						var want int64
						for _, part := range m.Memory(decoder.MemoryOptions{Rows: rows, Length: length}) {
							want += part.Bytes
						}
						if err := nn.Place(m, dev, 1); err != nil {
							t.Fatal(err)
						}
						var params []*nn.Parameter
						for _, p := range m.Parameters() {
							if !p.Frozen() {
								params = append(params, p)
							}
						}
						opt := must.New(optim.NewAdamW(params, &optim.AdamWOptions{LR: 1e-3}))
						ids := autograd.FromSlice(dev, make([]int64, rows*length), rows, length)
						for range 2 {
							opt.ZeroGrad()
							if err := m.Loss(ids, ids, nil).Backward(nil); err != nil {
								t.Fatal(err)
							}
							if err := opt.Step(); err != nil {
								t.Fatal(err)
							}
						}
						got := dev.Memory().Peak
						if off := float64(want)/float64(got) - 1; math.Abs(off) > 0.05 {
							t.Errorf("estimated %d bytes, used %d: off by %.1f %%", want, got, 100*off)
						}
					})
				}
			}
		}
	}
}

// What the parameters and the optimizer take on a rank is as estimated, in all stages of package ddp/zero.
func TestMemoryOfStages(t *testing.T) {
	for _, rank := range []int{0, 4} {
		for _, stage := range []int{1, 2, 3} {
			t.Run(fmt.Sprintf("adapters of rank %d, stage %d", rank, stage), func(t *testing.T) {
				commtest.OnRanks(t, 2, nil, func(pg *comm.ProcessGroup) error {
					m := must.New(decoder.New(decoder.Config{Vocab: 500, Hidden: 64, Feedforward: 192, Heads: 2, KeyHeads: 1, Layers: make([]decoder.Layer, 5)}))
					if err := nn.Cast(m, device.BFloat16, &nn.CastOptions{Masters: rank == 0}); err != nil {
						return err
					}
					if rank > 0 {
						must.New(lora.Add(m, &lora.Options{Rank: rank}))
					}
					adamW := func(params []*nn.Parameter) (*optim.AdamW, error) {
						return optim.NewAdamW(params, &optim.AdamWOptions{LR: 1e-3, MasterWeights: rank == 0})
					}
					model, _, err := zero.New(m, pg, adamW, &zero.Options{Stage: stage})
					if err != nil {
						return err
					}
					var want int64
					for _, part := range m.Memory(decoder.MemoryOptions{MasterWeights: rank == 0, Stage: stage, Ranks: 2}) {
						switch part.Name {
						case "frozen weights", "weights", "gradients", "slots of whole buckets", "masters", "moments":
							want += part.Bytes
						}
					}
					got := pg.Device().Memory().InUse + model.Stats().Held // which the group allocates
					if off := float64(want)/float64(got) - 1; math.Abs(off) > 0.05 {
						return fmt.Errorf("estimated %d bytes, used %d: off by %.1f %%", want, got, 100*off)
					}
					return nil
				})
			})
		}
	}
}
