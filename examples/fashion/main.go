// Command fashion trains a classifier of clothes on Fashion-MNIST, on any number of processes.
//
//	apt-get install dataset-fashion-mnist # or give --data a folder with the four files
//	go run ./cmd/golaunch --nproc-per-node 2 ./examples/fashion --log fashion.jsonl
//	go run ./cmd/goddp plot fashion.jsonl -o curve.svg
//
// With --resume FOLDER it saves checkpoints in the folder and resumes from the latest one.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/data"
	"github.com/goddp/goddp/ddp"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
	"github.com/goddp/goddp/optim/schedule"
	"github.com/goddp/goddp/train"
)

var (
	kind   = flag.String("model", "mlp", "`mlp` or cnn")
	dir    = flag.String("data", "/usr/share/datasets/fashion-mnist", "`folder` of the data set")
	epochs = flag.Int("epochs", 10, "number of passes over the data set")
	batch  = flag.Int("batch", 64, "number of samples for each rank in a step")
	global = flag.Int("global-batch", 0, "number of samples of all ranks in a step, also when ranks are lost; 0: --batch for each rank")
	lr     = flag.Float64("lr", 1e-3, "highest learning rate")
	seed   = flag.Uint64("seed", 0, "seed of the parameters and of the samples' order")
	log    = flag.String("log", "", "append JSON lines to `file`")
	resume = flag.String("resume", "", "`folder` to save checkpoints in and to resume from")
	every  = flag.Int("save-every", 200, "number of steps between two checkpoints; one is also saved after each epoch and at the end")
)

var networks = map[string]*nn.Sequence{
	"mlp": nn.Sequential(nn.Flatten(),
		nn.Linear(784, 256, nil), nn.ReLU(), nn.Linear(256, 128, nil), nn.ReLU(), nn.Linear(128, 10, nil)),
	"cnn": nn.Sequential(
		nn.Conv2d(1, 32, 3, &nn.ConvOptions{Padding: 1}), nn.ReLU(), nn.MaxPool2d(2, nil),
		nn.Conv2d(32, 64, 3, &nn.ConvOptions{Padding: 1}), nn.ReLU(), nn.MaxPool2d(2, nil),
		nn.Flatten(), nn.Dropout(0.25), nn.Linear(3136, 128, nil), nn.ReLU(), nn.Linear(128, 10, nil)),
}

func run(ctx context.Context) error {
	net, ok := networks[*kind]
	if !ok {
		return fmt.Errorf("--model %q, want mlp or cnn", *kind)
	}
	if *epochs < 1 || flag.NArg() > 0 {
		return fmt.Errorf("--epochs %d and the arguments %q, want at least 1 and flags alone", *epochs, flag.Args())
	}
	pg, err := comm.Init(ctx, nil)
	if err != nil {
		return err
	}
	defer pg.Close()
	pixels := &data.ImageOptions{Mean: []float32{0.286}, Std: []float32{0.353}}
	images, err := data.MNIST(*dir, data.Train, pixels)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: install Debian's package dataset-fashion-mnist, or give --data a folder with the four files", err)
	}
	if err != nil {
		return err
	}
	unseen, err := data.MNIST(*dir, data.Test, pixels)
	if err != nil {
		return err
	}
	shuffled := data.LoaderOptions{Batch: *batch, GlobalBatch: *global, Shuffle: true, Seed: *seed, LastBatch: data.Drop}
	loader, err := data.NewLoader(images, pg, &shuffled)
	if err != nil {
		return err
	}
	tests, err := data.NewLoader(unseen, pg, &data.LoaderOptions{Batch: 500, LastBatch: data.Uneven})
	if err != nil {
		return err
	}
	model, err := ddp.New(net, pg, &ddp.Options{Seed: *seed})
	if err != nil {
		return err
	}
	opt, err := optim.NewAdamW(model.Parameters(), &optim.AdamWOptions{WeightDecay: 0.01})
	if err != nil {
		return err
	}
	return train.Run(ctx, pg, &train.Config{
		Model: model, Optimizer: opt, Data: loader, Epochs: *epochs,
		Log: *log, Checkpoints: *resume, SaveEvery: *every,
		LR: schedule.OneCycle(*lr, *epochs*loader.Steps()),
		Loss: func(b *data.Batch) *autograd.Variable {
			return nn.CrossEntropyLoss(model.Forward(b.Vars[0]), b.Vars[1], nil)
		},
		Evaluate: train.Accuracy(pg, model, tests),
	})
}

func main() {
	flag.Parse()
	comm.Main(run)
}
