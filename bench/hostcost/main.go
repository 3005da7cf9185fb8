//go:build cgo && linux

// Command hostcost compares what a training step costs the host with a loop in C that enqueues the same:
//
//	go run ./cmd/golaunch ./bench/hostcost
//
// It lists what one step of package ddp enqueues (record.c): kernels, products, copies, events, all-reduces,
// and the waits for events, with all their arguments. Then goddp and C take turns, in one process and on one
// thread. A turn is --steps steps in a row, and the wait for the last. C makes each call of the list, and
// nothing else. It measures one rank. Several ranks number their small all-reduces, and C would repeat numbers
// that no peer waits for.
//
// The output says how often a step makes each kind of call, and how long it takes in C, and then the medians
// of a step on both sides, goddp's allocations and calls of C, and its added time for each kernel and product.
package main

// #include "record.h"
import "C"

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime"
	"slices"
	"time"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

var (
	size   = flag.Int("size", 512, "width of every layer")
	batch  = flag.Int("batch", 64, "number of samples per rank and step")
	layers = flag.Int("layers", 32, "number of linear layers")
	bucket = flag.Float64("bucket-cap-mb", 1, "size of a gradient bucket in `MiB`")
	dtype  = flag.String("dtype", "float32", "type of parameters and data: float32 or bfloat16")
	turns  = flag.Int("turns", 21, "number of turns of each side")
	steps  = flag.Int("steps", 20, "number of steps in a turn")
)

// kinds are the names of the calls in record.h.
var kinds = [...]string{
	C.KERNEL: "kernels", C.PRODUCT: "products", C.BIAS: "biases of products", C.COPY: "copies, memsets", C.EVENT: "events recorded",
	C.WAIT: "events awaited by streams", C.REDUCE: "all-reduces", C.POLL: "events awaited by the host",
}

// trainer returns a model, and a function that makes one step.
func trainer(pg *comm.ProcessGroup) (*ddp.Model, func() error, error) {
	dev, dt := pg.Device(), device.Float32
	if *dtype == "bfloat16" {
		dt = device.BFloat16
	}
	var modules []nn.Module
	for i := range *layers {
		if i > 0 {
			modules = append(modules, nn.ReLU())
		}
		modules = append(modules, nn.Linear(*size, *size, &nn.LinearOptions{DType: dt}))
	}
	net := nn.Sequential(modules...)
	if err := nn.Place(net, dev, 0); err != nil {
		return nil, nil, err
	}
	model, err := ddp.New(net, pg, &ddp.Options{BucketCapMB: *bucket})
	if err != nil {
		return nil, nil, err
	}
	opt, err := optim.NewSGD(model.Parameters(), &optim.SGDOptions{LR: 0.001})
	if err != nil {
		return nil, nil, err
	}
	x, y := autograd.Zeros(dev, dt, *batch, *size), autograd.Zeros(dev, dt, *batch, *size)
	return model, func() error {
		opt.ZeroGrad()
		if err := nn.MSELoss(model.Forward(x), y, nil).Backward(nil); err != nil {
			return err
		}
		return opt.Step()
	}, nil
}

// list lists what a step enqueues.
func list(ctx context.Context, dev device.Device, step func() error) error {
	runtime.LockOSThread() // the list has the calls of one thread
	defer runtime.UnlockOSThread()
	C.record_begin()
	err := step()
	C.record_end()
	return errors.Join(err, dev.Compute().Sync(ctx))
}

// costs are those of goddp's steps in a turn.
type costs struct {
	took           time.Duration
	allocs, cCalls int64
}

// goddp makes the steps of a turn.
func goddp(ctx context.Context, dev device.Device, step func() error) (costs, error) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	calls, start := runtime.NumCgoCall(), time.Now()
	for range *steps {
		if err := step(); err != nil {
			return costs{}, err
		}
	}
	if err := dev.Compute().Sync(ctx); err != nil {
		return costs{}, err
	}
	took := time.Since(start)
	calls = runtime.NumCgoCall() - calls
	runtime.ReadMemStats(&after)
	return costs{took, int64(after.Mallocs - before.Mallocs), calls}, nil
}

// inC makes steps in C. If each is not nil, it adds the times of the calls by kind.
func inC(steps int, each *[C.KINDS]C.double) (time.Duration, error) {
	var took C.double
	var times *C.double
	if each != nil {
		times = &each[0]
	}
	if code := C.record_again(C.int(steps), &took, times); code != 0 {
		return 0, fmt.Errorf("a call failed with error %d", code)
	}
	return time.Duration(float64(took) * 1e9), nil
}

func median[T ~int64](v []T) T {
	slices.Sort(v)
	return v[len(v)/2]
}

// measure measures, and prints the costs.
func measure(ctx context.Context, pg *comm.ProcessGroup) error {
	if pg.Size() > 1 {
		return fmt.Errorf("want a world size of 1, got %d ranks", pg.Size())
	}
	dev := pg.Device()
	if dev.String() == "cpu" {
		return errors.New("hostcost needs a GPU")
	}
	_, step, err := trainer(pg)
	if err != nil {
		return err
	}
	if _, err := goddp(ctx, dev, step); err != nil { // allocates, and loads kernels
		return err
	}
	if err := list(ctx, dev, step); err != nil {
		return err
	}
	var ours, theirs []time.Duration
	var allocs, cCalls []int64
	for turn := -1; turn < *turns; turn++ { // the first turn does not count
		var c costs
		var took time.Duration
		for i := range 2 {
			if i^turn&1 == 0 {
				c, err = goddp(ctx, dev, step)
			} else {
				took, err = inC(*steps, nil)
			}
			if err != nil {
				return err
			}
		}
		if turn >= 0 {
			ours, theirs, allocs, cCalls = append(ours, c.took), append(theirs, took), append(allocs, c.allocs), append(cCalls, c.cCalls)
		}
	}
	var each [C.KINDS]C.double
	if _, err := inC(*steps, &each); err != nil {
		return err
	}
	fmt.Printf("%d x %d, batch %d, %s, %v: medians of %d turns of %d steps\n\n", *layers, *size, *batch, *dtype, dev, *turns, *steps)
	fmt.Printf("%-28s %6s %12s\n", "calls in a step", "", "us each in C")
	for kind, name := range kinds {
		if n := C.record_count(C.int(kind)); n > 0 {
			fmt.Printf("%-28s %6d %12.2f\n", name, n, float64(each[kind])*1e6/float64(*steps)/float64(n))
		}
	}
	perStep := func(d time.Duration) float64 { return d.Seconds() * 1e6 / float64(*steps) }
	g, c := perStep(median(ours)), perStep(median(theirs))
	launches := float64(C.record_count(C.KERNEL) + C.record_count(C.PRODUCT))
	n := int64(*steps)
	fmt.Printf("\ngoddp %.0f us a step, C %.0f us: ratio %.2f, %.2f us added to each of %.0f launches\n", g, c, g/c, (g-c)/launches, launches)
	fmt.Printf("goddp: %d calls of C and %d allocations a step\n", median(cCalls)/n, median(allocs)/n)
	return nil
}

func main() {
	flag.Parse()
	if *size < 1 || *batch < 1 || *layers < 1 || *turns < 1 || *steps < 1 || flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}
	comm.Main(func(ctx context.Context) error {
		pg, err := comm.Init(ctx, nil)
		if err != nil {
			return err
		}
		defer pg.Close()
		return measure(ctx, pg)
	})
}
