// Command resnet trains a ResNet of bottlenecks, such as ResNet-50, on any number of processes: on a folder of
// images, or on one batch, which shows how fast it trains.
//
//	go run ./cmd/golaunch --nproc-per-node 2 ./examples/resnet --images photos --size 64 --depths 1,1,1,1
//	go run ./cmd/golaunch --nproc-per-node 8 ./examples/resnet --images imagenet/train --dtype bf16 --captured \
//		--epochs 90 --batch 128 --resume run --save resnet50.safetensors
//	go run ./examples/resnet --dtype bf16 --captured --batch 256
//
// A folder of images has a folder for each class. Without --images every step is on the same batch, which stays
// on the device: the numbers in --batch-file, or else random ones.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/checkpoint"
	"github.com/goddp/goddp/checkpoint/safetensors"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/data"
	"github.com/goddp/goddp/ddp"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
	"github.com/goddp/goddp/optim/schedule"
	"github.com/goddp/goddp/profile"
	"github.com/goddp/goddp/train"
)

var (
	images = flag.String("images", "", "train on the images in `folder`, which has a folder for each class")
	size   = flag.Int("size", 224, "height and width of images")

	model   = flag.String("model", "50", "a `model` of torchvision: 50, 101 or 152")
	depths  = flag.String("depths", "", "four `numbers` of blocks, which replace those of --model")
	width   = flag.Int("width", 64, "number of channels of the first convolution")
	classes = flag.Int("classes", 1000, "number of classes, without --images")
	initial = flag.String("init", "", "start from the parameters in `file`, as --save writes it")

	batch    = flag.Int("batch", 64, "number of images for each rank in a step")
	lr       = flag.Float64("lr", 0.1, "highest learning rate; with --images a cosine goes down to 0")
	decay    = flag.Float64("weight-decay", 1e-4, "weight decay")
	dtype    = flag.String("dtype", "f32", "`type` of the parameters: f32, or on GPUs bf16")
	captured = flag.Bool("captured", false, "make each step one CUDA graph")
	sync     = flag.Bool("sync-batchnorm", false, "normalise by the images of all ranks")
	seed     = flag.Uint64("seed", 0, "seed of the parameters and of the images' order")

	epochs = flag.Int("epochs", 90, "number of epochs, with --images")
	log    = flag.String("log", "", "append JSON lines to `file`, with --images")
	trace  = flag.String("trace", "", "write a trace of some steps to `file`: see goddp trace")
	resume = flag.String("resume", "", "`folder` to save checkpoints in and to resume from, with --images")
	save   = flag.String("save", "", "write the parameters to `file`, in the format of safetensors, with --images")

	batchFile = flag.String("batch-file", "", "without --images: a `file` of safetensors with images [n 3 h w] and labels [n]")
	warmup    = flag.Int("warmup", 20, "without --images: number of steps before the measured ones, whose losses are printed")
	steps     = flag.Int("steps", 60, "without --images: number of measured steps")
)

// configure returns the config that the flags describe.
func configure() (config, error) {
	c := config{width: *width, classes: *classes}
	known, ok := models[*model]
	if !ok {
		return c, fmt.Errorf("--model %s, want one of %q", *model, slices.Sorted(maps.Keys(models)))
	}
	c.depths = known
	if *depths != "" {
		parts := strings.Split(*depths, ",")
		if len(parts) != len(c.depths) {
			return c, fmt.Errorf("--depths %s, want %d numbers", *depths, len(c.depths))
		}
		for i, p := range parts {
			n, err := strconv.Atoi(p)
			if err != nil || n < 1 {
				return c, fmt.Errorf("--depths %s, want positive numbers", *depths)
			}
			c.depths[i] = n
		}
	}
	if min(c.width, c.classes, *size, *batch, *warmup, *steps, *epochs) < 1 {
		return c, fmt.Errorf("--width %d, --classes %d, --size %d, --batch %d, --warmup %d, --steps %d and --epochs %d, want at least 1 of each",
			c.width, c.classes, *size, *batch, *warmup, *steps, *epochs)
	}
	if flag.NArg() > 0 {
		return c, fmt.Errorf("the arguments %q: want flags alone", flag.Args())
	}
	if *images == "" && *log+*resume+*save != "" {
		return c, errors.New("--log, --resume and --save need --images")
	}
	return c, nil
}

func run(ctx context.Context) error {
	c, err := configure()
	if err != nil {
		return err
	}
	var set data.Dataset
	if *images != "" {
		if set, c.classes, err = imagesIn(*images, *size); err != nil {
			return err
		}
	}
	pg, err := comm.Init(ctx, nil)
	if err != nil {
		return err
	}
	defer pg.Close()
	net := newResNet(c)
	if err := nn.Place(net, pg.Device(), *seed); err != nil {
		return err
	}
	if *initial != "" {
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
	if *sync {
		ddp.SyncBatchNorm(net, pg)
	}
	m, err := ddp.New(net, pg, nil)
	if err != nil {
		return err
	}
	opt, err := optim.NewSGD(m.Parameters(), &optim.SGDOptions{LR: *lr, Momentum: 0.9, WeightDecay: *decay, MasterWeights: *dtype != "f32"})
	if err != nil {
		return err
	}
	if set == nil {
		return measure(ctx, pg, m, opt, c)
	}
	return fit(ctx, pg, m, opt, set)
}

// fit trains on a data set.
func fit(ctx context.Context, pg *comm.ProcessGroup, m *ddp.Model, opt *optim.SGD, set data.Dataset) error {
	loader, err := data.NewLoader(set, pg, &data.LoaderOptions{Batch: *batch, Shuffle: true, Seed: *seed, LastBatch: data.Drop})
	if err != nil {
		return err
	}
	all := *epochs * loader.Steps()
	return train.Run(ctx, pg, &train.Config{
		Model: m, Optimizer: opt, Data: loader, MaxSteps: all,
		Loss: func(b *data.Batch) *autograd.Variable {
			return nn.CrossEntropyLoss(m.Forward(b.Vars[0]), b.Vars[1], nil)
		},
		LR:       schedule.Cosine(*lr, 0, all),
		Captured: *captured, Log: *log, Trace: *trace, Weights: *save,
		Checkpoints: *resume, SaveEvery: loader.Steps(),
	})
}

// result is what measure prints.
type result struct {
	StepMS     float64   `json:"step_ms"`
	Images     float64   `json:"images_per_s"` // of all ranks
	WarmupS    float64   `json:"warmup_s"`
	PeakMiB    float64   `json:"peak_mib"`
	IsCaptured bool      `json:"captured"`
	DType      string    `json:"dtype"`
	Losses     []float64 `json:"losses"` // of the warm-up
}

// measure trains on one batch, and prints what a step takes.
func measure(ctx context.Context, pg *comm.ProcessGroup, m *ddp.Model, opt *optim.SGD, c config) error {
	dev := pg.Device()
	x, labels, err := fixedBatch(dev, c)
	if err != nil {
		return err
	}
	if *dtype != "f32" {
		x = autograd.Cast(x, device.BFloat16).Retain() // once, not in each step
	}
	step := func(in ...*autograd.Variable) (*autograd.Variable, error) {
		opt.ZeroGrad()
		loss := nn.CrossEntropyLoss(m.Forward(in[0]), in[1], nil)
		if err := loss.Backward(nil); err != nil {
			return nil, err
		}
		return loss, opt.Step()
	}
	if *captured {
		step = autograd.Capture(dev, step, &autograd.CaptureOptions{Required: true})
	}
	if pg.Rank() == 0 {
		pg.Log().Info("no --images: training on one batch", "batch", x.Shape()[0], "size", x.Shape()[1], "warmup", *warmup, "steps", *steps)
	}
	r := result{IsCaptured: *captured, DType: *dtype}
	start := time.Now()
	for range *warmup {
		loss, err := step(x, labels)
		if err != nil {
			return err
		}
		v, err := loss.Read(ctx)
		if err != nil {
			return err
		}
		r.Losses = append(r.Losses, v[0])
	}
	if err := pg.Barrier().Sync(ctx); err != nil {
		return err
	}
	r.WarmupS = time.Since(start).Seconds()
	start = time.Now()
	for range *steps {
		if _, err := step(x, labels); err != nil {
			return err
		}
	}
	if err := dev.Compute().Sync(ctx); err != nil {
		return err
	}
	each := time.Since(start).Seconds() / float64(*steps)
	r.StepMS, r.Images = 1e3*each, float64(pg.Size()*x.Shape()[0])/each
	r.PeakMiB = float64(dev.Memory().Peak) / (1 << 20)
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if pg.Rank() == 0 {
		fmt.Println(string(text))
	}
	if *trace == "" {
		return nil
	}
	recorder := profile.Of(dev)
	recorder.Start()
	for range 5 {
		if _, err := step(x, labels); err != nil {
			return err
		}
	}
	if err := dev.Compute().Sync(ctx); err != nil {
		return err
	}
	recorder.Stop()
	return recorder.WriteFile(profile.RankPath(*trace, pg.Rank()), pg.Rank())
}

// fixedBatch returns the images [n h w 3] and labels [n] of --batch-file, or else random images.
func fixedBatch(dev device.Device, c config) (x, labels *autograd.Variable, err error) {
	if *batchFile == "" {
		rng := rand.New(rand.NewPCG(*seed, 0))
		pixels := make([]float32, *batch**size**size*3)
		for i := range pixels {
			pixels[i] = float32(rng.NormFloat64())
		}
		ids := make([]int64, *batch)
		for i := range ids {
			ids[i] = rng.Int64N(int64(c.classes))
		}
		return autograd.FromSlice(dev, pixels, *batch, *size, *size, 3).Retain(), autograd.FromSlice(dev, ids).Retain(), nil
	}
	f, err := safetensors.Open(*batchFile)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	var all [2]*autograd.Variable
	for i, name := range []string{"images", "labels"} {
		t, ok := f.Tensors()[name]
		if !ok {
			return nil, nil, fmt.Errorf("%s has no tensor %q", *batchFile, name)
		}
		elements, err := f.Read(name)
		if err != nil {
			return nil, nil, err
		}
		all[i] = autograd.FromBytes(dev, t.DType.Device(), t.Shape, elements)
	}
	if shape := all[0].Shape(); len(shape) != 4 || shape[1] != 3 || all[1].Shape().Len() != shape[0] {
		return nil, nil, fmt.Errorf("%s holds images %v and labels %v, want [n 3 h w] and [n]", *batchFile, shape, all[1].Shape())
	}
	return autograd.Permute(all[0], 0, 2, 3, 1).Retain(), all[1].Retain(), nil
}

func main() {
	flag.Parse()
	comm.Main(run)
}
