// Command decoder measures steps of a model of Llama's shapes on random tokens: full training or adapters of low rank,
// or the decoding of new tokens. Its peer in PyTorch is bench/torch_decoder.py.
//
//	go run ./cmd/golaunch --nproc-per-node 2 ./bench/decoder --batch 8 --length 2048          Llama 3.2 1B's shapes
//	go run ./bench/decoder --layers 32 --hidden 4096 --inner 14336 --lora 16                   8B's, adapters alone
//	go run ./bench/decoder --generate 256 --batch 1                                            new tokens
//	go run ./bench/decoder --documents packed                                                  documents of Alpaca's lengths
//	go run ./bench/decoder --documents padded --batch 64 --length 512
//
// Rank 0 prints one JSON object.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"iter"
	"math/rand/v2"
	"syscall"
	"time"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/data"
	"github.com/goddp/goddp/ddp"
	"github.com/goddp/goddp/ddp/zero"
	"github.com/goddp/goddp/decoder"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/generate"
	"github.com/goddp/goddp/lora"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
	"github.com/goddp/goddp/profile"
)

var (
	layers    = flag.Int("layers", 16, "number of blocks")
	hidden    = flag.Int("hidden", 2048, "hidden size")
	inner     = flag.Int("inner", 8192, "size of the feed-forward network")
	heads     = flag.Int("heads", 32, "number of heads")
	keyHeads  = flag.Int("key-heads", 8, "number of heads of keys and values")
	vocab     = flag.Int("vocab", 128256, "number of tokens in the vocabulary")
	rows      = flag.Int("batch", 8, "number of rows per rank")
	length    = flag.Int("length", 2048, "number of tokens in a row; of the prompt, with --generate")
	rank      = flag.Int("lora", 0, "train adapters of this `rank` alone")
	stage     = flag.Int("stage", 0, "what the ranks divide (ZeRO): 1 the optimizer's state, 2 the gradients too, 3 the parameters too; 0 nothing")
	bucketMB  = flag.Float64("bucket-cap-mb", 0, "size of a bucket; 0: the default")
	recompute = flag.String("recompute", "", "compute again in the backward pass: results of `cheap` operations, or blocks")
	untied    = flag.Bool("untied", false, "the head has its own weight")
	moments16 = flag.Bool("moments16", false, "AdamW's moments are in bfloat16")
	captured  = flag.Bool("captured", true, "capture the step, on a GPU")
	warmup    = flag.Int("warmup", 5, "number of steps before the measured ones")
	steps     = flag.Int("steps", 12, "number of measured steps")
	trace     = flag.String("trace", "", "write a trace of one more step to this `file`: see goddp trace")
	tokens    = flag.Int("generate", 0, "measure the decoding of so many tokens in each row, instead of training")
	documents = flag.String("documents", "", "train on documents that are `padded` to the longest of a batch, or packed into rows")
)

type result struct {
	Name       string  `json:"name"`
	Ranks      int     `json:"ranks"`
	Parameters int     `json:"params"`
	StepMS     float64 `json:"step_ms"`            // of training, or of decoding a token of each row
	CPUMS      float64 `json:"cpu_ms,omitempty"`   // rank 0's processor time of a step of training
	Loss       float64 `json:"loss,omitempty"`     // rank 0's, of the last step
	Rate       float64 `json:"tokens_per_s"`       // of all ranks, without padding
	Filled     float64 `json:"filled,omitempty"`   // the part of the tokens that is no padding, with --documents
	PeakMiB    int64   `json:"peak_mib"`           // of the device's memory, with buckets
	Read       float64 `json:"gb_per_s,omitempty"` // the bytes of the weights, divided by the time of a token
}

func main() {
	flag.Parse()
	comm.Main(run)
}

func run(ctx context.Context) error {
	pg, err := comm.Init(ctx, nil)
	if err != nil {
		return err
	}
	dev := pg.Device()
	m, err := decoder.New(decoder.Config{
		Vocab: *vocab, Hidden: *hidden, Feedforward: *inner, Heads: *heads, KeyHeads: *keyHeads, Layers: make([]decoder.Layer, *layers),
		Rope: decoder.Rope{Theta: 500000}, NormEps: 1e-5, Tied: !*untied, MaxPositions: *length + *tokens, Recompute: decoder.Recompute(*recompute),
	})
	if err != nil {
		return err
	}
	r := result{Name: "goddp", Ranks: pg.Size()}
	for _, p := range m.Parameters() {
		r.Parameters += p.Shape().Len()
	}
	if dev.Type() == device.CUDA {
		if err := nn.Cast(m, device.BFloat16, &nn.CastOptions{Masters: *rank == 0 && *tokens == 0}); err != nil {
			return err
		}
	}
	if *tokens > 0 {
		if err = nn.Place(m, dev, 1); err == nil {
			err = r.decode(ctx, m)
		}
	} else {
		err = r.train(ctx, pg, m)
	}
	if err != nil || pg.Rank() > 0 {
		return err
	}
	r.PeakMiB += dev.Memory().Peak >> 20
	line, err := json.Marshal(r)
	fmt.Println(string(line))
	return err
}

// random returns n random tokens, the same in each run.
func random(r *rand.Rand, n int) []int64 {
	ids := make([]int64, n)
	for i := range ids {
		ids[i] = r.Int64N(int64(*vocab))
	}
	return ids
}

// batch is the inputs of a step: ids, next and, for packed documents, positions and starts.
type batch struct {
	in     []*autograd.Variable
	tokens int // without padding
}

// batches yields batches without end.
func batches(ctx context.Context, pg *comm.ProcessGroup) (iter.Seq2[batch, error], error) {
	if *documents == "" {
		r := rand.New(rand.NewPCG(1, uint64(pg.Rank())))
		row := func() *autograd.Variable {
			return autograd.FromSlice(pg.Device(), random(r, *rows**length), *rows, *length).Retain()
		}
		b := batch{[]*autograd.Variable{row(), row()}, *rows * *length}
		return func(yield func(batch, error) bool) {
			for yield(b, nil) {
			}
		}, nil
	}
	loader, err := openDocuments(pg)
	if err != nil {
		return nil, err
	}
	return func(yield func(batch, error) bool) {
		for epoch := 0; ; epoch++ {
			for b, err := range loader.Epoch(ctx, epoch) {
				if err != nil {
					yield(batch{}, err)
					return
				}
				if !yield(batch{b.Vars, b.Labels}, nil) {
					return
				}
			}
		}
	}, nil
}

func (r *result) train(ctx context.Context, pg *comm.ProcessGroup, m *decoder.Model) error {
	if *rank > 0 {
		if _, err := lora.Add(m, &lora.Options{Rank: *rank}); err != nil {
			return err
		}
		r.Name += "-lora"
	}
	if *recompute != "" {
		r.Name += "-recompute-" + *recompute
	}
	if *moments16 {
		r.Name += "-moments16"
	}
	dev := pg.Device()
	newLocal := func(params []*nn.Parameter) (*optim.AdamW, error) {
		o := optim.AdamWOptions{LR: 3e-4, WeightDecay: 0.1, MasterWeights: *rank == 0 && dev.Type() == device.CUDA}
		if *moments16 {
			o.MomentDType = device.BFloat16
		}
		return optim.NewAdamW(params, &o)
	}
	var model interface {
		Run(forward func() *autograd.Variable) *autograd.Variable
	}
	var opt optim.Optimizer
	var clip func() error
	var held func() int64 // the bytes of buckets, which the group allocates
	if *stage > 0 {
		sm, so, err := zero.New(m, pg, newLocal, &zero.Options{Options: ddp.Options{BucketCapMB: *bucketMB, Seed: 1}, Stage: *stage})
		if err != nil {
			return err
		}
		model, opt, clip, held = sm, so, func() error { _, err := so.ClipGradNorm(1, nil); return err }, func() int64 { return sm.Stats().Held }
		r.Name += fmt.Sprint("-zero", *stage)
	} else {
		dm, err := ddp.New(m, pg, &ddp.Options{BucketCapMB: *bucketMB, Seed: 1})
		if err != nil {
			return err
		}
		if opt, err = newLocal(dm.Parameters()); err != nil {
			return err
		}
		model, clip = dm, func() error { _, err := optim.ClipGradNorm(dm.Parameters(), 1, nil); return err }
		held = func() int64 { return dm.Stats().Held }
	}
	ignored := int64(data.NotALabel)
	step := func(in ...*autograd.Variable) (*autograd.Variable, error) {
		opt.ZeroGrad()
		o := &decoder.ForwardOptions{}
		if *documents != "" {
			o.Loss.IgnoreIndex = &ignored
		}
		if len(in) == 4 {
			o.Positions, o.Starts = in[2], in[3]
		}
		loss := model.Run(func() *autograd.Variable { return m.Loss(in[0], in[1], o) })
		if err := loss.Backward(nil); err != nil {
			return nil, err
		}
		if err := clip(); err != nil {
			return nil, err
		}
		return loss, opt.Step()
	}
	if *captured && dev.Type() == device.CUDA {
		step = autograd.Capture(dev, step, &autograd.CaptureOptions{Required: true})
	}
	all, err := batches(ctx, pg)
	if err != nil {
		return err
	}
	var start time.Time
	var busy time.Duration
	n, used, places := 0, 0, 0
	var last []*autograd.Variable
	for b, err := range all {
		if err != nil {
			return err
		}
		if n == *warmup {
			if err := errors.Join(dev.Compute().Sync(ctx), pg.Barrier().Sync(ctx)); err != nil {
				return err
			}
			start, busy = time.Now(), processorTime()
		}
		if n++; n > *warmup {
			used, places = used+b.tokens, places+b.in[0].Shape().Len()
		}
		loss, err := step(b.in...)
		if err != nil {
			return err
		}
		if n == *warmup+*steps {
			if r.Loss, err = loss.TryItem(ctx); err != nil {
				return err
			}
			last = b.in
			break
		}
	}
	if err := dev.Compute().Sync(ctx); err != nil {
		return err
	}
	took := time.Since(start).Seconds()
	r.CPUMS = (processorTime() - busy).Seconds() / float64(*steps) * 1e3
	r.PeakMiB = held() >> 20
	r.StepMS, r.Rate = took/float64(*steps)*1e3, float64(used*r.Ranks)/took
	if *documents != "" {
		r.Name += "-" + *documents
		r.Filled = float64(used) / float64(places)
	}
	if *trace == "" {
		return nil
	}
	recorder := profile.Of(dev)
	recorder.Start()
	if _, err := step(last...); err != nil {
		return err
	}
	if err := dev.Compute().Sync(ctx); err != nil {
		return err
	}
	return recorder.WriteFile(profile.RankPath(*trace, pg.Rank()), pg.Rank())
}

// processorTime returns the processor time of this process.
func processorTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// decode measures the tokens after the first half.
func (r *result) decode(ctx context.Context, m *decoder.Model) error {
	g, err := generate.New(m, *rows, *length+*tokens)
	if err != nil {
		return err
	}
	prompts, draws := make([][]int, *rows), rand.New(rand.NewPCG(1, 0))
	for i := range prompts {
		for _, id := range random(draws, *length) {
			prompts[i] = append(prompts[i], int(id))
		}
	}
	var half time.Time
	n := 0
	_, err = g.Generate(ctx, prompts, &generate.Options{MaxTokens: *tokens, OnToken: func(int, int) bool {
		if n++; n == *rows*(*tokens/2) {
			half = time.Now()
		}
		return true
	}})
	if err != nil {
		return err
	}
	took := time.Since(half).Seconds() / float64(*tokens-*tokens/2)
	r.Name += "-generate"
	r.StepMS, r.Rate, r.Read = took*1e3, float64(*rows)/took, float64(2*r.Parameters)/took/1e9
	return nil
}
