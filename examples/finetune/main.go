// Command finetune tunes a model of the Hugging Face hub on JSON lines of chats, prompts or texts: see docs/finetune.md.
//
//	go run ./cmd/golaunch --nproc-per-node 2 ./examples/finetune --model SmolLM2-135M-Instruct --data 'chats/*.jsonl'
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/data"
	"github.com/goddp/goddp/ddp/zero"
	"github.com/goddp/goddp/decoder"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/generate"
	"github.com/goddp/goddp/hf"
	"github.com/goddp/goddp/hf/chat"
	"github.com/goddp/goddp/hf/tokenizer"
	"github.com/goddp/goddp/lora"
	"github.com/goddp/goddp/metrics"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
	"github.com/goddp/goddp/optim/schedule"
	"github.com/goddp/goddp/progress"
	"github.com/goddp/goddp/train"
)

var (
	dir         = flag.String("model", "", "`folder` of the model")
	files       = flag.String("data", "", "`pattern` of the files to train on")
	evalFiles   = flag.String("eval", "", "`pattern` of the files to evaluate on; the best model is saved (default: the last one)")
	patience    = flag.Int("patience", 0, "with --eval, end after this number of evaluations without a better one; 0: train all epochs")
	out         = flag.String("out", "tuned", "`folder` for the model or the adapters")
	checkpoints = flag.String("checkpoints", "", "`folder` to save checkpoints in, and to resume from")
	stage       = flag.Int("stage", 1, "what the ranks divide (ZeRO): 1 the optimizer's state, 2 the gradients too, 3 the parameters too")
	rank        = flag.Int("lora", 0, "train adapters of this `rank` alone")
	rate        = flag.Float64("lr", 2e-5, "largest learning rate; 2e-4 is usual with --lora")
	epochs      = flag.Int("epochs", 3, "number of epochs")
	batch       = flag.Int("batch", 4, "rows per rank in a forward pass")
	global      = flag.Int("global-batch", 32, "rows in a step, on all ranks")
	length      = flag.Int("length", 1024, "largest number of tokens in a row")
	pack        = flag.Bool("pack", false, "put several documents into a row")
	recompute   = flag.String("recompute", "", "compute again in the backward pass, which takes less memory: results of `cheap` operations, or blocks")
	prompt      = flag.String("prompt", "", "answer this `text` at the end")
	log         = flag.String("log", "", "append JSON lines to `file`")
)

func run(ctx context.Context) error {
	if *dir == "" || *files == "" || flag.NArg() > 0 {
		return fmt.Errorf("--model %q, --data %q and the arguments %q: want both flags, a pattern in quotes, and no argument", *dir, *files, flag.Args())
	}
	pg, err := comm.Init(ctx, nil)
	if err = errors.Join(err, os.MkdirAll(*out, 0o777)); err != nil { // not after hours of training
		return err
	}
	tok, err := tokenizer.Load(*dir)
	template, none := chat.Load(*dir)
	if err != nil || none != nil && !errors.Is(none, chat.ErrNoTemplate) {
		return errors.Join(err, none)
	}
	o := hf.LoadOptions{Recompute: decoder.Recompute(*recompute)}
	if pg.Device().Type() == device.CUDA {
		o.DType, o.Masters = device.BFloat16, *rank == 0 // frozen weights need no masters
	}
	base, err := hf.Open(*dir, &o) // the weights are read when the model is placed
	if err != nil {
		return err
	}
	defer base.Close()
	tokens, err := chat.Prompt(tok, template, *prompt)
	if most := base.Model.MaxPositions(); *length > most || *prompt != "" && (err != nil || len(tokens) > *length) {
		return errors.Join(err, fmt.Errorf("--length %d and a --prompt of %d tokens: want at most the %d positions of the model, and at most --length", *length, len(tokens), most))
	}
	save := func() error { return base.Save(ctx, *out, &hf.SaveOptions{Stop: chat.Stop(tok, template)}) }
	if *rank != 0 {
		adapters, err := lora.Add(base.Model, &lora.Options{Rank: *rank, Alpha: 2 * float64(*rank)})
		if err != nil {
			return err
		}
		save = func() error { return adapters.Save(ctx, *out, *dir) }
	}
	open := func(pattern string, o data.LoaderOptions, pack bool) (*data.Loader, error) {
		set, err := data.OpenDocuments(pattern, *length, chat.Documents(tok, template), &data.DocumentsOptions{Pack: pack, Vocab: base.Model.Vocab()})
		if err != nil {
			return nil, err
		}
		if pg.Rank() == 0 {
			fmt.Printf("%s: %+v\n", pattern, set.Stats())
		}
		return data.NewLoader(set, pg, &o)
	}
	loader, err := open(*files, data.LoaderOptions{Batch: *batch, GlobalBatch: *global, Shuffle: true}, *pack)
	if err != nil {
		return err
	}
	model, opt, err := zero.New(base.Model, pg, func(params []*nn.Parameter) (*optim.AdamW, error) {
		return optim.NewAdamW(params, &optim.AdamWOptions{LR: *rate, MasterWeights: o.Masters})
	}, &zero.Options{Stage: *stage, CopyShards: *stage == 1})
	if err != nil {
		return err
	}
	loss := func(b *data.Batch) *autograd.Variable {
		o := &decoder.ForwardOptions{Loss: autograd.LinearLossOptions{IgnoreIndex: new(int64(data.NotALabel)), Sum: true}}
		if len(b.Vars) == 4 { // packed
			o.Positions, o.Starts = b.Vars[2], b.Vars[3]
		}
		return model.Run(func() *autograd.Variable { return base.Model.Loss(b.Vars[0], b.Vars[1], o) })
	}
	c := train.Config{Model: model, Optimizer: opt, Data: loader, Epochs: *epochs, Loss: loss, SumLoss: true, ClipNorm: 1, Log: *log, LogEvery: 10, Checkpoints: *checkpoints, Patience: *patience}
	if *evalFiles != "" {
		evalLoader, err := open(*evalFiles, data.LoaderOptions{Batch: *batch, GlobalBatch: *batch * pg.Size()}, false)
		if err != nil {
			return err
		}
		c.Best, c.Evaluate = "eval_loss", func(ctx context.Context) ([]progress.Value, error) {
			now, err := metrics.Loss(ctx, pg, model, evalLoader, loss)
			return []progress.Value{progress.V("eval_loss", now)}, err
		}
		c.OnEvaluation = func(_ context.Context, s *train.Status) error {
			if s.IsBest {
				return model.OnRank(0, save)
			}
			return nil
		}
	}
	c.LR = schedule.Linear(*rate, 0, max(c.Steps(), 1))
	if err = train.Run(ctx, pg, &c); err == nil && *evalFiles == "" && !model.Stopping() {
		err = model.OnRank(0, save)
	}
	if err != nil || model.Stopping() || *prompt == "" {
		return err
	}
	return model.OnRank(0, func() error {
		g, err := generate.New(base.Model, 1, *length)
		if err != nil {
			return err
		}
		defer fmt.Println()
		return g.Text(ctx, tokens, tok.Stream(&tokenizer.DecodeOptions{SkipSpecialTokens: true}), nil, &generate.Options{Stop: chat.Stop(tok, template)}, func(s string) { fmt.Print(s) })
	})
}

func main() {
	flag.Parse()
	comm.Main(run)
}
