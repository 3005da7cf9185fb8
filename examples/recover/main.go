// Command recover continues training after a failure, in the same processes. When a step fails because a
// rank came too late or its connection broke, all ranks leave their group, make a new one, agree on the
// last committed step, and go on from there. The final parameters equal those of a run without the
// failure, bit for bit.
//
//	go run ./cmd/golaunch --nproc-per-node 3 ./examples/recover --stall-rank 1 --stall-step 5 --timeout 5s
//
// Here rank 1 sleeps once, before its step 5, for longer than the others' timeout. If a rank dies,
// a launcher must start all ranks again, and they go on from a checkpoint: use golaunch --max-restarts,
// and --resume FOLDER.
package main

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/checkpoint"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
	"github.com/goddp/goddp/progress"
)

var (
	steps     = flag.Int("steps", 20, "number of training steps")
	timeout   = flag.Duration("timeout", time.Minute, "how long a rank waits for the others, in a step and when making a group")
	groups    = flag.Int("groups", 3, "largest number of groups to make")
	stallRank = flag.Int("stall-rank", -1, "the `rank` that stalls; -1 for none")
	stallStep = flag.Int("stall-step", 0, "the `step` before which it stalls, counted from 0")
	resume    = flag.String("resume", "", "`folder` to save checkpoints in, and to resume from if no rank has the state")
	every     = flag.Int("save-every", 5, "number of steps between two checkpoints")
	log       = flag.String("log", "", "append JSON lines to `file`")
)

func train(ctx context.Context) error {
	// The device, and the model and the optimizer on it, outlive a group.
	dev, err := comm.OpenDevice(nil)
	if err != nil {
		return err
	}
	defer dev.Close()
	net := nn.Sequential(nn.Linear(width, width, nil), nn.ReLU(), nn.Linear(width, width, nil))
	opt, err := optim.NewSGD(net.Parameters(), &optim.SGDOptions{LR: 0.1, Momentum: 0.9})
	if err != nil {
		return err
	}
	stalled := false
	for group := 1; ; group++ {
		pg, err := comm.Init(ctx, &comm.Options{Device: dev, Timeout: *timeout, ErrorMode: comm.BlockingWait})
		if err != nil {
			return err // not all ranks joined: a launcher must start them again
		}
		err = run(ctx, pg, net, opt, &stalled)
		pg.Close()
		if group == *groups || !isGroupFailure(err) {
			return err
		}
		fmt.Printf("rank %d: group %d broke: %v\n", pg.Rank(), group, err)
	}
}

// isGroupFailure reports whether err is the failure of a group, and not an error of this program.
func isGroupFailure(err error) bool {
	return errors.Is(err, comm.ErrTimeout) || errors.Is(err, comm.ErrPeerLost) || errors.Is(err, comm.ErrAborted)
}

// run trains in the group pg, from the last committed step on. It sets *stalled when it stalls.
func run(ctx context.Context, pg *comm.ProcessGroup, net nn.Module, opt *optim.SGD, stalled *bool) (err error) {
	rank := pg.Rank()
	saver, step, err := restore(ctx, pg, net, opt)
	if err != nil {
		return err
	}
	if saver != nil {
		defer func() { err = errors.Join(err, saver.Close()) }()
	}
	fmt.Printf("rank %d: starts at step %d\n", rank, step)
	meter, err := progress.New(rank, &progress.Options{
		Steps: *steps, First: step, Every: 1, File: *log, DeviceBytes: func() int64 { return pg.Device().Memory().Held() },
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, meter.Close()) }()
	model, err := ddp.New(net, pg, nil)
	if err != nil {
		return err
	}
	for ; step < *steps; step++ {
		if rank == *stallRank && step == *stallStep && !*stalled {
			*stalled = true
			time.Sleep(*timeout * 3 / 2)
		}
		loss := nn.MSELoss(model.Forward(inputs(pg.Device(), step, rank)), targets(pg.Device(), step, rank), nil)
		if err := loss.Backward(nil); err != nil {
			return err
		}
		// Reduce and log the loss before the step is committed: after a failure the line of a step may
		// come twice, but is never lost.
		if err := pg.AllReduce(loss.Tensor(), comm.Avg).Wait(ctx); err != nil {
			return err
		}
		meter.Step(rows * pg.Size())
		meter.Log(progress.V("loss", loss.Item()))
		if err := opt.Step(); err != nil {
			return err
		}
		opt.ZeroGrad()
		if saver != nil && (step+1)%*every == 0 {
			if err := saver.Save(ctx, step+1, state(net, opt)); err != nil {
				return err
			}
		}
	}
	sum, err := digest(ctx, net)
	if err != nil {
		return err
	}
	// No rank leaves while another may need its state to recover.
	if err := pg.Barrier().Wait(ctx); err != nil {
		return err
	}
	fmt.Printf("rank %d: params sha256 %s\n", rank, sum)
	return nil
}

// restore sets the model and the optimizer to the last step of which a rank has a consistent state. If no
// rank has one, or all have just started, it loads the latest checkpoint of --resume. It returns the step,
// and a nil saver without --resume.
func restore(ctx context.Context, pg *comm.ProcessGroup, net nn.Module, opt *optim.SGD) (saver *checkpoint.Manager, step int, err error) {
	step, err = ddp.Recover(net, pg, opt)
	var lost *ddp.LostStateError
	if err != nil && !errors.As(err, &lost) || *resume == "" {
		return nil, step, err
	}
	saver, err = checkpoint.Open(ctx, pg, *resume, &checkpoint.Options{Keep: 3, Async: true})
	if err != nil {
		return nil, 0, err
	}
	if lost != nil || step == 0 {
		step, err = saver.Resume(ctx, state(net, opt))
		if err == nil && step == 0 && lost != nil {
			err = lost // no checkpoint was loaded
		}
		if err != nil {
			return nil, 0, errors.Join(err, saver.Close())
		}
	}
	return saver, step, nil
}

// state returns the state that checkpoints hold.
func state(net nn.Module, opt *optim.SGD) checkpoint.State {
	return checkpoint.State{Model: net, Optimizers: []optim.Optimizer{opt}}
}

const (
	rows  = 16 // number of samples of a rank's batch
	width = 32
)

// inputs returns the inputs of a step. They are a function of the step's number and the rank, so a step
// that is made again has the same inputs.
func inputs(dev device.Device, step, rank int) *autograd.Variable {
	return autograd.FromSlice(dev, draw(step, rank), rows, width)
}

// targets returns the sines of the inputs.
func targets(dev device.Device, step, rank int) *autograd.Variable {
	y := draw(step, rank)
	for i, x := range y {
		y[i] = float32(math.Sin(float64(x)))
	}
	return autograd.FromSlice(dev, y, rows, width)
}

func draw(step, rank int) []float32 {
	r := rand.New(rand.NewPCG(uint64(step), uint64(rank)))
	x := make([]float32, rows*width)
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
	return x
}

// digest returns the SHA-256 of all parameters.
func digest(ctx context.Context, net nn.Module) (string, error) {
	sum := sha256.New()
	for _, p := range net.Parameters() {
		values, err := p.Var().Read(ctx)
		if err != nil {
			return "", err
		}
		if err := binary.Write(sum, binary.LittleEndian, values); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("%x", sum.Sum(nil)), nil
}

func main() {
	flag.Parse()
	comm.Main(train)
}
