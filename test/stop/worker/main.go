// Command worker is the training program of the stop campaign (test/stop). It trains a small network
// until the ranks are asked to stop. The ranks take different times for each step.
package main

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"time"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp"
	"github.com/goddp/goddp/ddp/zero"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

var (
	sharded = flag.Bool("zero", false, "divide the optimizer's state among the ranks")
	stops   = flag.Bool("call-stopping", true, "call Stopping before each step")
	join    = flag.Bool("join", false, "train in Join; the last rank has no inputs from step 3 on")
	every   = flag.Int("every", 1, "number of backward passes in a step; the last one reduces")
	stall   = flag.Int("stall", -1, "the `rank` that hangs in its step 5; -1 for none")
	saving  = flag.Duration("saving", 0, "how long saving takes")
)

const (
	width = 32
	rows  = 8
)

// model is a model of package ddp or of package ddp/zero.
type model interface {
	Forward(x *autograd.Variable) *autograd.Variable
	NoSync(f func() error) error
	Parameters() []*nn.Parameter
	Stopping() bool
}

// optimizer is an optimizer of package optim or of package ddp/zero.
type optimizer interface {
	Step() error
	ZeroGrad()
	Committed() (steps int, isConsistent bool)
}

func adamW(params []*nn.Parameter) (*optim.AdamW, error) {
	return optim.NewAdamW(params, &optim.AdamWOptions{LR: 0.001})
}

func train(ctx context.Context) error {
	pg, err := comm.Init(ctx, nil)
	if err != nil {
		return err
	}
	net := nn.Sequential(nn.Linear(width, width, nil), nn.ReLU(), nn.Linear(width, width, nil))
	var m model
	var opt optimizer
	var uneven func(f func() error) error
	if *sharded {
		z, o, err := zero.New(net, pg, adamW, &zero.Options{Options: ddp.Options{BucketCapMB: 0.002}})
		if err != nil {
			return err
		}
		m, opt = z, o
		uneven = func(f func() error) error { return z.Join(f, nil) }
	} else {
		d, err := ddp.New(net, pg, &ddp.Options{BucketCapMB: 0.002})
		if err != nil {
			return err
		}
		o, err := adamW(d.Parameters())
		if err != nil {
			return err
		}
		m, opt = d, o
		uneven = func(f func() error) error { return d.Join(f, &ddp.JoinOptions{Optimizer: o}) }
	}
	loop := func() error { return steps(ctx, pg, m, opt) }
	if *join {
		err = uneven(loop)
	} else {
		err = loop()
	}
	if err != nil {
		return err
	}
	return save(ctx, pg, m, opt)
}

// steps trains until Stopping returns true, or for ever without -call-stopping.
func steps(ctx context.Context, pg *comm.ProcessGroup, m model, opt optimizer) error {
	r := rand.New(rand.NewPCG(uint64(pg.Rank()), uint64(os.Getpid())))
	for step := 0; !*stops || !m.Stopping(); step++ {
		switch {
		case step == 1:
			fmt.Printf("rank %d is pid %d\n", pg.Rank(), os.Getpid())
		case step == 3 && *join && pg.Rank() == pg.Size()-1:
			return nil
		case step == 5 && pg.Rank() == *stall:
			fmt.Printf("rank %d hangs\n", pg.Rank())
			select {} // does not return when ctx ends
		}
		time.Sleep(time.Duration(r.IntN(3000)) * time.Microsecond)
		pass := func() error {
			return nn.MSELoss(m.Forward(normal(pg.Device(), r)), normal(pg.Device(), r), nil).Backward(nil)
		}
		for range *every - 1 {
			if err := m.NoSync(pass); err != nil {
				return err
			}
		}
		if err := pass(); err != nil {
			return err
		}
		if err := opt.Step(); err != nil {
			return err
		}
		opt.ZeroGrad()
	}
	return nil
}

// save stands for saving a checkpoint. It prints the step and a digest of the parameters.
func save(ctx context.Context, pg *comm.ProcessGroup, m model, opt optimizer) error {
	if *saving > 0 {
		fmt.Printf("rank %d begins saving\n", pg.Rank())
	}
	select {
	case <-time.After(*saving):
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	sum := sha256.New()
	for _, p := range m.Parameters() {
		values, err := p.Var().Read(ctx)
		if err != nil {
			return err
		}
		if err := binary.Write(sum, binary.LittleEndian, values); err != nil {
			return err
		}
	}
	steps, isConsistent := opt.Committed()
	fmt.Printf("rank %d saves step %d consistent %t params %x\n", pg.Rank(), steps, isConsistent, sum.Sum(nil)[:8])
	return nil
}

func normal(dev device.Device, r *rand.Rand) *autograd.Variable {
	x := make([]float32, rows*width)
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
	return autograd.FromSlice(dev, x, rows, width)
}

func main() {
	flag.Parse()
	comm.Main(train)
}
