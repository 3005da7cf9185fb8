// Command recover trains on after a failure, in the same processes. When a step
// fails because a rank came too late, or its connection broke, all ranks leave
// their group, meet in a new one, agree on the last step that was committed, and
// go on from there: the end is bit for bit that of a run without the failure.
//
//	go run ./cmd/golaunch --nproc-per-node 3 ./examples/recover --stall-rank 1 --stall-step 5 --timeout 5s
//
// Here rank 1 sleeps past the others' timeout before its step 5, once. A rank
// that died takes a launcher to start it again: golaunch --max-restarts.
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
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

var (
	steps     = flag.Int("steps", 20, "training steps")
	timeout   = flag.Duration("timeout", time.Minute, "how long a rank waits for the others, in a step and when they meet")
	groups    = flag.Int("groups", 3, "how many groups to try before giving up")
	stallRank = flag.Int("stall-rank", -1, "the rank that stalls; -1: none")
	stallStep = flag.Int("stall-step", 0, "before which step, counted from 0")
)

func train(ctx context.Context) error {
	// What outlives a group: the device, and on it the model and its optimizer.
	dev, err := comm.OpenDevice(nil)
	if err != nil {
		return err
	}
	defer dev.Close()
	net := nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
	opt := optim.NewSGD(net.Parameters(), optim.SGDOptions{LR: 0.1, Momentum: 0.9})
	stalled := false
	for group := 1; ; group++ {
		pg, err := comm.Init(ctx, &comm.Options{Device: dev, Timeout: *timeout, ErrorMode: comm.BlockingWait})
		if err != nil {
			return err // not all have come: a launcher's business
		}
		err = run(ctx, pg, net, opt, &stalled)
		pg.Close()
		if group == *groups || !broken(err) {
			return err
		}
		fmt.Printf("rank %d: group %d broke: %v\n", pg.Rank(), group, err)
	}
}

// broken tells whether err is that of a group that broke, rather than of this
// rank's program.
func broken(err error) bool {
	return errors.Is(err, comm.ErrTimeout) || errors.Is(err, comm.ErrPeerLost) || errors.Is(err, comm.ErrAborted)
}

// run trains in one group, from the last committed step on.
func run(ctx context.Context, pg *comm.ProcessGroup, net nn.Module, opt *optim.SGD, stalled *bool) error {
	rank := pg.Rank()
	step, err := ddp.Recover(net, pg, opt)
	if err != nil {
		return err
	}
	fmt.Printf("rank %d: begins at step %d\n", rank, step)
	model, err := ddp.New(net, pg, nil)
	if err != nil {
		return err
	}
	for ; step < *steps; step++ {
		if rank == *stallRank && step == *stallStep && !*stalled {
			*stalled = true
			time.Sleep(*timeout * 3 / 2)
		}
		loss := nn.MSELoss(model.Forward(inputs(pg.Device(), step, rank)), targets(pg.Device(), step, rank))
		if err := loss.Backward(); err != nil {
			return err
		}
		// Before the step is committed: a failure then repeats a line, and loses
		// none.
		if err := pg.AllReduce(loss.Tensor(), comm.Avg).Wait(ctx); err != nil {
			return err
		}
		if rank == 0 {
			fmt.Printf("step %d loss %.9g\n", step, loss.Item())
		}
		if err := opt.Step(); err != nil {
			return err
		}
		opt.ZeroGrad()
	}
	sum, err := digest(ctx, net)
	if err != nil {
		return err
	}
	// Nobody leaves while another may still need the state.
	if err := pg.Barrier().Wait(ctx); err != nil {
		return err
	}
	fmt.Printf("rank %d: params sha256 %s\n", rank, sum)
	return nil
}

const (
	rows  = 16 // of a rank's batch
	width = 32
)

// inputs are the batch of a step, which follows from its number and the rank:
// a step that is made again sees the same.
func inputs(dev device.Device, step, rank int) *autograd.Variable {
	return autograd.FromSlice(dev, draw(step, rank), rows, width)
}

// targets are the sines of the inputs.
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

// digest is the SHA-256 of all parameters.
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
