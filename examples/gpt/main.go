// Command gpt trains a language model of GPT-2's architecture and any size, on any number of processes. It
// trains on the bytes of a text file, or on shards of tokens.
//
//	go run ./cmd/golaunch --nproc-per-node 2 ./examples/gpt --text README.md --log gpt.jsonl
//	go run ./cmd/golaunch --nproc-per-node 8 ./examples/gpt --tokens 'fineweb_train_*.bin' \
//		--size 124M --batch 64 --dtype bf16 --steps 19560 --warmup 700 --resume run --save gpt2.safetensors
//	go run ./cmd/goddp plot gpt.jsonl -o curve.svg
//
// With --resume FOLDER it saves checkpoints in the folder and resumes from the latest one.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"unicode"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/checkpoint"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/data"
	"github.com/goddp/goddp/ddp"
	"github.com/goddp/goddp/ddp/zero"
	"github.com/goddp/goddp/decoder"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/generate"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
	"github.com/goddp/goddp/optim/schedule"
	"github.com/goddp/goddp/train"
)

var (
	text   = flag.String("text", "", "train on the bytes of `file`")
	tokens = flag.String("tokens", "", "train on the shards of tokens whose names match `pattern`")
	order  = flag.Bool("in-order", false, "take the samples in the order of the text, not shuffled")
	size   = flag.String("size", "", "a `size` of GPT-2 (124M, 355M, 774M or 1558M), which replaces --layers, --heads, --embed and --context")

	layers    = flag.Int("layers", 4, "number of blocks")
	heads     = flag.Int("heads", 4, "number of heads of a block")
	embed     = flag.Int("embed", 128, "number of elements of a token's vector")
	window    = flag.Int("context", 128, "number of tokens of a sample")
	recompute = flag.String("recompute", "", "compute again in the backward pass, which takes less memory: results of `cheap` operations, or blocks")
	captured  = flag.Bool("captured", false, "make each step one CUDA graph")
	stage     = flag.Int("stage", 0, "what the processes divide (ZeRO), to take less memory: 1 the optimizer's state, 2 the gradients too, 3 the parameters too; 0 nothing")
	bucket    = flag.Float64("bucket-cap-mb", 0, "size of a bucket of gradients in `MiB` (default: 25, and 1 for the first)")
	initial   = flag.String("init", "", "start from the parameters in `file`, as --save writes it")

	held      = flag.String("validate", "", "compute now and then the loss of the shards of tokens whose names match `pattern`")
	heldEvery = flag.Int("validate-every", 50, "number of steps between two validations")
	heldFirst = flag.Int("validate-batches", 20, "number of batches of a validation, the first ones of the shards")

	steps  = flag.Int("steps", 1000, "number of training steps")
	batch  = flag.Int("batch", 8, "number of samples for each rank in a step")
	lr     = flag.Float64("lr", 6e-4, "highest learning rate")
	warmup = flag.Int("warmup", 0, "number of steps until the highest learning rate (default: a tenth of --steps, at most 100); a cosine then goes down to a tenth of it")
	decay  = flag.Float64("weight-decay", 0.1, "weight decay of the matrices")
	vocab  = flag.Int("vocab", 50257, "size of the vocabulary of --tokens; the default is GPT-2's")
	dtype  = flag.String("dtype", "f32", "`type` of the parameters: f32, or on GPUs bf16")
	seed   = flag.Uint64("seed", 0, "seed of the parameters, of the samples' order and of the sample at the end")

	log    = flag.String("log", "", "append JSON lines to `file`")
	period = flag.Int("log-every", 10, "number of steps between two lines")
	trace  = flag.String("trace", "", "write a trace of some steps to `file`: see goddp trace")
	resume = flag.String("resume", "", "`folder` to save checkpoints in and to resume from")
	every  = flag.Int("save-every", 1000, "number of steps between two checkpoints; one is also saved after each epoch and at the end")
	save   = flag.String("save", "", "write the parameters to `file`, in the format of safetensors")
	sample = flag.Int("sample", 200, "number of tokens to print at the end, at most those of the context")
	prompt = flag.String("prompt", "\n", "`text` that these tokens continue, with --text")
)

// sizes are the published sizes of GPT-2.
var sizes = map[string]decoder.GPT2Config{
	"124M":  {Positions: 1024, Layers: 12, Heads: 12, Hidden: 768},
	"355M":  {Positions: 1024, Layers: 24, Heads: 16, Hidden: 1024},
	"774M":  {Positions: 1024, Layers: 36, Heads: 20, Hidden: 1280},
	"1558M": {Positions: 1024, Layers: 48, Heads: 25, Hidden: 1600},
}

// open makes the model and opens the data set to train it on.
func open() (net *decoder.Model, c decoder.GPT2Config, set data.Dataset, err error) {
	c = decoder.GPT2Config{Positions: *window, Layers: *layers, Heads: *heads, Hidden: *embed}
	if *size != "" {
		known, ok := sizes[*size]
		if !ok {
			return nil, c, nil, fmt.Errorf("--size %s, want one of %q", *size, slices.Sorted(maps.Keys(sizes)))
		}
		c = known
	}
	// The model has some more tokens than the texts, because the last layer is faster if its rows have a multiple of 64
	// elements.
	c.Recompute, c.Vocab = decoder.Recompute(*recompute), (*vocab+63)/64*64
	if n := len(*prompt); n < 1 || *text != "" && n > c.Positions {
		return nil, c, nil, fmt.Errorf("--prompt has %d bytes, want 1 to %d, those of the context, for a sample to follow", n, c.Positions)
	}
	if (*text == "") == (*tokens == "") {
		return nil, c, nil, fmt.Errorf("--text %q and --tokens %q: want exactly one of them", *text, *tokens)
	}
	if *text != "" {
		c.Vocab = 256
	}
	if net, err = decoder.NewGPT2(c); err != nil {
		return nil, c, nil, err
	}
	if *tokens != "" {
		set, err = data.OpenTokens(*tokens, c.Positions, *vocab)
	} else {
		set, err = bytesOf(*text, c.Positions)
	}
	return net, c, set, err
}

// bytesOf returns a data set whose samples are windows of a file's bytes, each with the byte that follows
// each byte.
func bytesOf(file string, window int) (data.Dataset, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	if len(content) <= window {
		return nil, fmt.Errorf("%s: %d bytes, want more than one window of %d", file, len(content), window)
	}
	shape := device.Shape{window}
	fields := []data.Field{{Name: "tokens", DType: device.Int64, Shape: shape}, {Name: "next", DType: device.Int64, Shape: shape}}
	return data.Each((len(content)-1)/window, fields, func(i int, dst []device.Tensor) error {
		for j := range window {
			device.Elements[int64](dst[0])[j] = int64(content[i*window+j])
			device.Elements[int64](dst[1])[j] = int64(content[i*window+j+1])
		}
		return nil
	}), nil
}

func run(ctx context.Context) error {
	net, c, set, err := open()
	if err != nil {
		return err
	}
	if *warmup == 0 {
		*warmup = max(1, min(*steps/10, 100))
	}
	if flag.NArg() > 0 {
		return fmt.Errorf("the arguments %q: want flags alone, and patterns in quotes", flag.Args())
	}
	if *steps < 1 || *batch < 1 || *warmup < 1 || *warmup >= *steps {
		return fmt.Errorf("--steps %d, --batch %d and --warmup %d, want at least 1 of each, and --warmup below --steps", *steps, *batch, *warmup)
	}
	pg, err := comm.Init(ctx, nil)
	if err != nil {
		return err
	}
	defer pg.Close()
	loader, err := data.NewLoader(set, pg, &data.LoaderOptions{Batch: *batch, Shuffle: !*order, Seed: *seed, LastBatch: data.Drop})
	if err != nil {
		return err
	}
	if *initial != "" { // else the model is placed when it is distributed
		if err := nn.Place(net, pg.Device(), *seed); err != nil {
			return err
		}
		report, err := checkpoint.LoadWeights(*initial, net)
		if err == nil {
			err = report.Complete()
		}
		if err != nil {
			return err
		}
	}
	switch *dtype {
	case "f32":
	case "bf16":
		if pg.Device().String() == "cpu" {
			return errors.New("--dtype bf16 needs a GPU: the CPU computes only in f32")
		}
		if err := nn.Cast(net, device.BFloat16, &nn.CastOptions{Masters: true}); err != nil {
			return err
		}
	default:
		return fmt.Errorf("--dtype %s, want f32 or bf16", *dtype)
	}
	model, opt, err := distribute(net, pg)
	if err != nil {
		return err
	}
	rate := schedule.Sequence(schedule.Phase{Steps: *warmup, Schedule: schedule.WarmUp(*lr, *warmup)},
		schedule.Phase{Schedule: schedule.Cosine(*lr, *lr/10, *steps-*warmup)})
	v, err := newValidation(pg, net, model, c.Positions)
	if err != nil {
		return err
	}
	defer v.close()
	err = train.Run(ctx, pg, &train.Config{
		Model: model, Optimizer: opt, Data: loader, MaxSteps: *steps,
		Loss: func(b *data.Batch) *autograd.Variable {
			return model.Run(func() *autograd.Variable { return net.Loss(b.Vars[0], b.Vars[1], nil) })
		},
		Evaluate: v.evaluate, EvaluateEvery: v.every,
		LR: rate, ClipNorm: 1, Captured: *captured, Log: *log, LogEvery: *period, Trace: *trace, Weights: *save,
		Checkpoints: *resume, SaveEvery: *every,
	})
	if err != nil || model.Stopping() || *sample < 1 {
		return err
	}
	return model.Whole(func() error {
		if pg.Rank() != 0 {
			return nil
		}
		return sampleText(ctx, net, c)
	})
}

// distributed is a model of package ddp or ddp/zero.
type distributed interface {
	train.Model
	Run(forward func() *autograd.Variable) *autograd.Variable
	Stats() ddp.Stats
	Whole(f func() error) error
}

// distribute averages the gradients of net over the group, and makes its optimizer. With --stage each process
// has a part of the optimizer's state, and of what the stage says.
func distribute(net *decoder.Model, pg *comm.ProcessGroup) (distributed, optim.Optimizer, error) {
	newLocal := func(params []*nn.Parameter) (*optim.AdamW, error) {
		return newOptimizer(params, *decay, *dtype != "f32")
	}
	o := &ddp.Options{BucketCapMB: *bucket, Seed: *seed}
	if *stage > 0 {
		return zero.New(net, pg, newLocal, &zero.Options{Options: *o, Stage: *stage})
	}
	model, err := ddp.New(net, pg, o)
	if err != nil {
		return nil, nil, err
	}
	opt, err := newLocal(model.Parameters())
	return model, opt, err
}

// newOptimizer makes an optimizer that decays only matrices, not biases and the scales of norms.
func newOptimizer(params []*nn.Parameter, decay float64, masters bool) (*optim.AdamW, error) {
	o := optim.AdamWOptions{Betas: [2]float64{0.9, 0.95}, MasterWeights: masters}
	decayed := optim.AdamWGroup{AdamWOptions: o}
	decayed.WeightDecay = decay
	var rest []*nn.Parameter
	for _, p := range params {
		if len(p.Shape()) > 1 {
			decayed.Params = append(decayed.Params, p)
		} else {
			rest = append(rest, p)
		}
	}
	return optim.NewAdamW(rest, &o, decayed)
}

// sampleText draws *sample tokens, or as many as the context has, each by the model's probabilities given the tokens
// before it. It prints them as text if tokens are bytes, else as numbers.
func sampleText(ctx context.Context, net *decoder.Model, c decoder.GPT2Config) error {
	ids := []int{*vocab - 1} // the token before each text in shards of GPT-2's tokens
	if *text != "" {
		ids = nil
		for _, b := range []byte(*prompt) {
			ids = append(ids, int(b))
		}
	}
	g, err := generate.New(net, 1, c.Positions)
	if err != nil {
		return err
	}
	rows, err := g.Generate(ctx, [][]int{ids}, &generate.Options{MaxTokens: *sample, Vocab: min(c.Vocab, *vocab), Temperature: 1, Seed: *seed})
	if err != nil {
		return err
	}
	if *text == "" {
		fmt.Println(rows[0])
		return nil
	}
	var bytes []byte
	for _, id := range rows[0] {
		bytes = append(bytes, byte(id))
	}
	fmt.Println(strings.Map(printable, string(bytes)))
	return nil
}

// printable returns r, or a replacement if r would control a terminal, as a model's first samples may.
func printable(r rune) rune {
	if unicode.IsPrint(r) || r == '\n' || r == '\t' {
		return r
	}
	return unicode.ReplacementChar
}

func main() {
	flag.Parse()
	comm.Main(run)
}
