// Command fashion trains a classifier of clothes on Fashion-MNIST, on any number
// of processes.
//
//	apt-get install dataset-fashion-mnist # or give --data a folder with the four files
//	go run ./cmd/golaunch --nproc-per-node 2 ./examples/fashion --log run.jsonl
//	go run ./cmd/goddp plot run.jsonl -o curve.svg
//
// With --resume FOLDER it saves checkpoints there, and goes on from the latest one:
// after a crash the same command continues, on any number of processes. SIGINT and SIGTERM,
// as from Ctrl-C or a batch system, make it save the step that it is at and end.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/checkpoint"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/data"
	"github.com/goddp/goddp/ddp"
	"github.com/goddp/goddp/metrics"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
	"github.com/goddp/goddp/optim/schedule"
	"github.com/goddp/goddp/progress"
)

var (
	dir    = flag.String("data", "/usr/share/datasets/fashion-mnist", "`folder` of the data set")
	epochs = flag.Int("epochs", 10, "passes over the data set")
	batch  = flag.Int("batch", 64, "samples for each rank in a step")
	lr     = flag.Float64("lr", 1e-3, "highest learning rate")
	seed   = flag.Uint64("seed", 0, "seed of the parameters and of the samples' order")
	log    = flag.String("log", "", "append JSON lines to `file`")
	resume = flag.String("resume", "", "save checkpoints in `folder`, and go on from the latest one there")
	every  = flag.Int("save-every", 200, "steps between two checkpoints")
)

func train(ctx context.Context) (err error) {
	if *epochs < 1 || *batch < 1 || *every < 1 {
		return fmt.Errorf("--epochs %d, --batch %d and --save-every %d, want at least 1 of each", *epochs, *batch, *every)
	}
	pg, err := comm.Init(ctx, nil)
	if err != nil {
		return err
	}
	defer pg.Close()
	pixels := &data.ImageOptions{Mean: []float32{0.286}, Std: []float32{0.353}}
	trainSet, err := data.MNIST(*dir, data.Train, pixels)
	if err != nil {
		return err
	}
	loader, err := data.NewLoader(trainSet, pg, data.LoaderOptions{Batch: *batch, Shuffle: true, Seed: *seed, Tail: data.Drop})
	if err != nil {
		return err
	}
	testSet, err := data.MNIST(*dir, data.Test, pixels)
	if err != nil {
		return err
	}
	tests, err := data.NewLoader(testSet, pg, data.LoaderOptions{Batch: 500, Tail: data.Uneven})
	if err != nil {
		return err
	}

	net := nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10))
	if err := nn.Place(net, pg.Device(), *seed); err != nil {
		return err
	}
	model, err := ddp.New(net, pg, nil)
	if err != nil {
		return err
	}
	opt := optim.NewAdamW(model.Parameters(), optim.AdamWOptions{WeightDecay: 0.01})
	global := *batch * pg.Size()
	steps := *epochs * (trainSet.Len() / global)
	rate := schedule.OneCycle(*lr, steps)
	var at data.Position
	save := func(step int) error { return nil }
	first := 0
	if *resume != "" {
		var ck *checkpoint.Manager
		if ck, err = checkpoint.Open(pg, *resume, checkpoint.Options{Keep: 3, Async: true}); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, ck.Close()) }()
		state := checkpoint.State{Model: model, Optimizers: []checkpoint.Optimizer{opt}, Values: map[string]any{"position": &at}}
		if first, err = ck.Resume(ctx, state); err != nil {
			return err
		}
		if err := loader.Resume(at); err != nil {
			return err
		}
		save = func(step int) error { return ck.Save(ctx, step, state) }
	}
	meter, err := progress.New(pg.Rank(), progress.Options{Steps: steps, First: first, Every: 100, File: *log})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, meter.Close()) }()

	for epoch := at.Epoch; epoch < *epochs; epoch++ {
		for b, err := range loader.Epoch(ctx, epoch) {
			if err != nil {
				return err
			}
			done, _ := opt.Committed()
			opt.SetLR(rate(done))
			loss := nn.CrossEntropyLoss(model.Forward(flat(b)), b.Vars[1])
			if err := loss.Backward(); err != nil {
				return err
			}
			if err := opt.Step(); err != nil {
				return err
			}
			opt.ZeroGrad()
			at = b.After
			stopping := model.Stopping()
			if stopping || (done+1)%*every == 0 {
				if err := save(done + 1); err != nil {
					return err
				}
			}
			if stopping {
				return nil
			}
			if meter.Step(global) {
				all, err := metrics.Reduce(ctx, pg, metrics.Mean(loss.Item(), len(b.Indices)))
				if err != nil {
					return err
				}
				meter.Log(progress.V("loss", all[0].Value), progress.V("lr", rate(done)))
			}
		}
		correct, seen := 0, 0
		for b, err := range tests.Epoch(ctx, 0) {
			if err != nil {
				return err
			}
			autograd.NoGrad(pg.Device(), func() {
				n, failed := metrics.Correct(ctx, net.Forward(flat(b)), b.Vars[1], 1)
				correct, seen, err = correct+n, seen+len(b.Indices), failed
			})
			if err != nil {
				return err
			}
		}
		all, err := metrics.Reduce(ctx, pg, metrics.Count(correct), metrics.Count(seen))
		if err != nil {
			return err
		}
		meter.Note(progress.V("epoch", float64(epoch+1)), progress.V("accuracy", all[0].Value/all[1].Value))
	}
	return nil
}

// flat is the batch's images as rows.
func flat(b *data.Batch) *autograd.Variable { return autograd.Reshape(b.Vars[0], len(b.Indices), 784) }

func main() {
	flag.Parse()
	comm.Main(train)
}
