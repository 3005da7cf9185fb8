// Command worker is the training program of the tests of jobs on several hosts (test/hosts). It trains a
// small network by package ddp, saves checkpoints, also when it is asked to stop, and goes on from the latest one when it is started
// again, by any number of ranks. Under golaunch --on-failure it survives the loss of ranks, if it saves no checkpoints. Each
// rank prints a line after its first step with the same ranks, and the digest of its parameters at the end.
package main

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"time"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/checkpoint"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/elastic"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

var (
	steps   = flag.Int("steps", 1<<30, "number of training steps")
	until   = flag.String("until", "", "stop training when this `file` exists")
	pause   = flag.Duration("pause", 0, "how long a step takes at least")
	resume  = flag.String("resume", "", "`folder` of the checkpoints; \"\" saves none")
	every   = flag.Int("every", 10, "number of steps between two checkpoints")
	timeout = flag.Duration("timeout", 0, "the timeout of the calls; 0 stands for the default")
	width   = flag.Int("width", 32, "width of the network's layers")
)

const rows = 8 // number of samples of a rank's batch

func train(ctx context.Context) (err error) {
	pg, err := comm.Init(ctx, &comm.Options{Timeout: *timeout})
	if err != nil {
		return err
	}
	net := nn.Sequential(nn.Linear(*width, *width, nil), nn.ReLU(), nn.Linear(*width, *width, nil))
	model, err := ddp.New(net, pg, nil)
	if err != nil {
		return err
	}
	opt, err := optim.NewAdamW(model.Parameters(), &optim.AdamWOptions{LR: 0.001})
	if err != nil {
		return err
	}
	state := checkpoint.State{Model: model, Optimizers: []optim.Optimizer{opt}}
	var saver *checkpoint.Manager
	step := 0
	if *resume != "" {
		if saver, err = checkpoint.Open(ctx, pg, *resume, &checkpoint.Options{Keep: 2}); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, saver.Close()) }()
		if step, err = saver.Resume(ctx, state); err != nil {
			return err
		}
	}
	host, _ := os.Hostname()
	last := false
	loop := func(ctx context.Context) error {
		for first := step; step < *steps && !last && !model.Stopping(); {
			if saver != nil && step%*every == 0 {
				if err := saver.Save(ctx, step, state); err != nil {
					return err
				}
			}
			time.Sleep(*pause)
			r := rand.New(rand.NewPCG(uint64(step), uint64(pg.Rank())))
			loss := nn.MSELoss(model.Forward(normal(pg.Device(), r)), normal(pg.Device(), r), nil)
			if err := loss.Backward(nil); err != nil {
				return err
			}
			step++ // belongs to what Step commits
			if err := opt.Step(); err != nil {
				return err
			}
			opt.ZeroGrad()
			var err error
			if last, err = isLast(ctx, pg); err != nil {
				return err
			}
			if step == first+1 {
				fmt.Printf("rank %d of %d on %s trains from step %d\n", pg.Rank(), pg.Size(), host, first)
			}
		}
		return nil
	}
	state.Values = map[string]any{"step": &step}
	if err := elastic.Run(ctx, pg, &elastic.Config{State: state}, loop); err != nil {
		return err
	}
	state.Values = nil
	if saver != nil && model.Stopping() {
		if err := saver.Save(ctx, step, state); err != nil {
			return err
		}
	}
	sum, err := digest(ctx, model.Parameters())
	if err != nil {
		return err
	}
	fmt.Printf("rank %d of %d on %s ends at step %d: params sha256 %s\n", pg.Rank(), pg.Size(), host, step, sum)
	return nil
}

// isLast reports on all ranks whether rank 0 has seen the file at which training stops.
func isLast(ctx context.Context, pg *comm.ProcessGroup) (bool, error) {
	if *until == "" {
		return false, nil
	}
	var seen int64
	if _, err := os.Stat(*until); err == nil {
		seen = 1
	}
	of, err := comm.AllGatherInts(ctx, pg, []int64{seen})
	return err == nil && of[0][0] == 1, err
}

func normal(dev device.Device, r *rand.Rand) *autograd.Variable {
	x := make([]float32, rows**width)
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
	return autograd.FromSlice(dev, x, rows, *width)
}

// digest returns the start of the SHA-256 of all parameters.
func digest(ctx context.Context, params []*nn.Parameter) (string, error) {
	sum := sha256.New()
	for _, p := range params {
		values, err := p.Var().Read(ctx)
		if err != nil {
			return "", err
		}
		if err := binary.Write(sum, binary.LittleEndian, values); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("%x", sum.Sum(nil)[:8]), nil
}

func main() {
	flag.Parse()
	comm.Main(train)
}
