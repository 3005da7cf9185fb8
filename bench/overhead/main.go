// Command overhead measures how much the watchdog and the flight recorder, or the reports for the page of golaunch, slow down
// a training step of examples/mlp.
//
//	go run ./cmd/golaunch --nproc-per-node 2 ./bench/overhead
//	go run ./cmd/golaunch --nproc-per-node 2 --page ./bench/overhead --of page
//
// Every process trains two models in turn, some steps each time. One uses a default group. The
// other uses a group that records nothing (GODDP_FLIGHT_ENTRIES=0) and does not handle failures
// (comm.NoErrorHandling); it still counts the calls in flight. With --of page both use default groups, and one reports the
// times of its steps' parts. Both run in the same processes, so
// they have the same memory and processor temperature. The cost of a turn is the difference between
// the medians of the two models' steps. The command prints the median cost of all turns, and exits
// with 1 if it is above the limit.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/jobenv"
	"github.com/goddp/goddp/internal/kernels"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
	"github.com/goddp/goddp/progress"
)

var (
	size  = flag.Int("size", 4000, "width of every layer")
	batch = flag.Int("batch", 1000, "number of samples per rank and step")
	dtype = flag.String("dtype", "float32", "type of parameters and data: float32, or bfloat16 on a GPU")
	turns = flag.Int("turns", 20, "number of turns of each group")
	steps = flag.Int("steps", 20, "number of training steps in a turn")
	of    = flag.String("of", "recorder", "what to measure: recorder, or page")
	limit = flag.Float64("limit", 1, "largest allowed cost, in percent")
)

var types = map[string]device.DType{"float32": device.Float32, "bfloat16": device.BFloat16}

// side is one of the two models that are compared.
type side struct {
	pg    *comm.ProcessGroup
	model *ddp.Model
	opt   *optim.SGD
	meter *progress.Meter // nil: it reports nothing
}

// lap reports the end of a part of the step.
func (s *side) lap(part string) {
	if s.meter != nil {
		s.meter.Lap(part)
	}
}

func newSide(ctx context.Context, dev device.Device, o comm.Options) (*side, error) {
	o.Device = dev
	pg, err := comm.Init(ctx, &o)
	if err != nil {
		return nil, err
	}
	var modules []nn.Module
	for i := range 3 {
		if i > 0 {
			modules = append(modules, nn.ReLU())
		}
		modules = append(modules, nn.Linear(*size, *size, &nn.LinearOptions{DType: types[*dtype]}))
	}
	net := nn.Sequential(modules...)
	if err := nn.Place(net, dev, 0); err != nil {
		return nil, errors.Join(err, pg.Close())
	}
	model, err := ddp.New(net, pg, nil)
	if err != nil {
		return nil, errors.Join(err, pg.Close())
	}
	opt, err := optim.NewSGD(model.Parameters(), &optim.SGDOptions{LR: 0.001})
	if err != nil {
		return nil, errors.Join(err, pg.Close())
	}
	return &side{pg, model, opt, nil}, nil
}

// turn returns the median time of a turn's steps.
func (s *side) turn(ctx context.Context, x, y *autograd.Variable) (time.Duration, error) {
	took := make([]time.Duration, *steps)
	for i := range took {
		if err := s.pg.Barrier().Sync(ctx); err != nil { // so that a step does not wait for another rank's previous step
			return 0, err
		}
		start := time.Now()
		s.lap("data")
		loss := nn.MSELoss(s.model.Forward(x), y, nil)
		s.lap("forward")
		if err := loss.Backward(nil); err != nil {
			return 0, err
		}
		s.lap("backward")
		if err := s.opt.Step(); err != nil {
			return 0, err
		}
		s.opt.ZeroGrad()
		s.lap("optimizer")
		if s.meter != nil {
			s.meter.Step(*batch * s.pg.Size())
		}
		if err := s.pg.Device().Compute().Sync(ctx); err != nil {
			return 0, err
		}
		took[i] = time.Since(start)
	}
	return median(took), nil
}

func measure(ctx context.Context) error {
	dev, err := comm.OpenDevice(nil)
	if err != nil {
		return err
	}
	defer dev.Close()
	watched, err := newSide(ctx, dev, comm.Options{})
	if err != nil {
		return err
	}
	defer watched.pg.Close()
	what, without := "watchdog and flight recorder", comm.Options{ErrorMode: comm.NoErrorHandling}
	if *of == "page" {
		what, without = "reports for the page", comm.Options{}
		if watched.meter, err = progress.New(watched.pg.Rank(), &progress.Options{Out: io.Discard, Waited: watched.model.Waited}); err != nil {
			return err
		}
		defer watched.meter.Close()
	} else {
		os.Setenv(jobenv.FlightEntriesVar, "0")
	}
	bare, err := newSide(ctx, dev, without)
	if err != nil {
		return err
	}
	defer bare.pg.Close()
	x, err := normal(dev, 1)
	if err != nil {
		return err
	}
	y, err := normal(dev, 2)
	if err != nil {
		return err
	}
	sides := []*side{watched, bare}
	var times [2][]time.Duration
	for turn := -1; turn < *turns; turn++ { // the first turn does not count
		for i := range sides {
			i ^= turn & 1 // alternate the order, so that neither side always has warm caches
			took, err := sides[i].turn(ctx, x, y)
			if err != nil {
				return err
			}
			if turn >= 0 {
				times[i] = append(times[i], took)
			}
		}
	}
	if watched.pg.Rank() > 0 {
		return nil
	}
	costs := make([]float64, *turns)
	for i := range costs {
		costs[i] = 100 * (float64(times[0][i])/float64(times[1][i]) - 1)
	}
	cost := median(costs)
	fmt.Printf("%s, %d ranks: a step takes %v with %s, %v without: %+.2f%% (%d turns of %d steps each, the middle half of the differences from %+.2f%% to %+.2f%%)\n",
		*dtype, watched.pg.Size(), median(times[0]), what, median(times[1]), cost, *turns, *steps, costs[len(costs)/4], costs[len(costs)*3/4])
	if cost > *limit {
		return fmt.Errorf("%.2f%% is above %v%%", cost, *limit)
	}
	return nil
}

// normal returns a batch of random numbers.
func normal(dev device.Device, seed uint64) (*autograd.Variable, error) {
	dt := types[*dtype]
	buf, err := dev.Alloc(*batch * *size * dt.Size())
	if err != nil {
		return nil, err
	}
	t := device.NewTensor(buf, dt, *batch, *size)
	return autograd.FromTensor(dev, t), kernels.Of(dev).Normal(dev.Compute(), t, 0, 1, seed, 0)
}

// median sorts v and returns its median.
func median[T time.Duration | float64](v []T) T {
	slices.Sort(v)
	return v[len(v)/2]
}

func main() {
	flag.Parse()
	if types[*dtype] == device.Invalid || *size < 1 || *batch < 1 || *turns < 1 || *steps < 1 || *of != "recorder" && *of != "page" || flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}
	comm.Main(measure)
}
