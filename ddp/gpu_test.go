//go:build cgo && linux

package ddp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp/reducer"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/testkit"
	"github.com/goddp/goddp/internal/testkit/commtest"
	"github.com/goddp/goddp/internal/testkit/cudatest"
	"github.com/goddp/goddp/internal/testkit/must"
	"github.com/goddp/goddp/launcher"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

func init() {
	programs["steady"] = onGroup(func(_ context.Context, pg *comm.ProcessGroup) error { return steady(pg, 1) })
	programs["checkpoints"] = onGroup(func(_ context.Context, pg *comm.ProcessGroup) error {
		return checkpointsChangeNothing(pg, &Options{BucketCapMB: 1e-6})
	})
	programs["mixed"] = onGroup(func(_ context.Context, pg *comm.ProcessGroup) error {
		return mixed(pg, 0.05, precision{params: device.BFloat16}, precision{params: device.Float16}, precision{device.Float32, device.BFloat16})
	})
	programs["missing"] = onGroup(missingOnGPU)
	for name, f := range map[string]func(context.Context) error{"delayed": delayedOnGPU, "lost": lostWorker} {
		programs[name] = func() { comm.Main(f) }
	}
}

// onGroup makes a program that runs f with its process group.
func onGroup(f func(ctx context.Context, pg *comm.ProcessGroup) error) func() {
	return func() {
		comm.Main(func(ctx context.Context) error {
			pg, err := comm.Init(ctx, nil)
			if err != nil {
				return err
			}
			defer pg.Close()
			return f(ctx, pg)
		})
	}
}

// onGPUs runs a program on n processes with a GPU each. If there are fewer GPUs, but at least
// least, it uses as many processes as GPUs.
func onGPUs(t *testing.T, least, n int, program string) {
	t.Helper()
	gpus := commtest.GPUs(t, least)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	var out bytes.Buffer
	cmd := testkit.Self(t, program)
	_, err := launcher.Run(ctx, &launcher.Config{
		Args: cmd.Args, Workers: min(n, gpus), Env: append(cmd.Env, "GODDP_DEVICE=cuda"), Stdout: &out, Stderr: &out,
	})
	t.Logf("%s", &out)
	if err != nil {
		t.Error(err)
	}
}

// TestGPUOnProcesses does the same as TestOnProcesses, with a GPU for each process.
func TestGPUOnProcesses(t *testing.T) { commtest.ProcessesOnGPUs(t, 2, 4) }

// On a GPU too, a step in steady state allocates almost nothing on Go's heap, and no device memory.
func TestGPUSteadyState(t *testing.T) { onGPUs(t, 1, 2, "steady") }

// On GPUs too, training with checkpoints is bit-identical to training without.
func TestGPUCheckpointsChangeNothing(t *testing.T) { onGPUs(t, 1, 2, "checkpoints") }

// On a GPU products are computed in 16 bits too: with 16-bit parameters, and with float32
// parameters that are converted.
func TestGPUMixedPrecision(t *testing.T) { onGPUs(t, 1, 2, "mixed") }

// On GPUs reductions overlap the backward pass: a delay in every reduction lengthens the step by
// only one delay, that of the last reduction.
func TestGPUReductionsOverlapTheBackwardPass(t *testing.T) { onGPUs(t, 2, 2, "delayed") }

// delayed is a backend that starts each reduction of a bucket some time after its data is ready,
// one after the other, like a slow network.
type delayed struct {
	backend.Backend
	stream device.Stream
	wait   func(device.Stream, time.Duration) error
	delay  time.Duration // 0: no delay
}

func (b *delayed) Start(c *backend.Call) (backend.Task, error) {
	if strings.HasPrefix(c.Name, "bucket") && b.delay > 0 {
		if err := errors.Join(b.stream.WaitFor(c.After), b.wait(b.stream, b.delay)); err != nil {
			return nil, err
		}
		c.After = b.stream.Mark()
	}
	return b.Backend.Start(c)
}

func delayedOnGPU(ctx context.Context) error {
	// A delay occupies one multiprocessor, so one of a product's many short blocks waits a turn
	// longer.
	const layers, width, rows, warm, rounds = 4, 8192, 8192, 3, 9
	os.Setenv("GODDP_ALLOW_TF32", "1")
	var slow *delayed
	pg, err := comm.Init(ctx, commtest.WrapBackend(nil, func(b backend.Backend) backend.Backend {
		slow = &delayed{Backend: b}
		return slow
	}))
	if err != nil {
		return err
	}
	defer pg.Close()
	dev := pg.Device()
	if slow.wait, err = cudatest.Delay(dev); err != nil {
		return err
	}
	if slow.stream, err = dev.NewStream(true); err != nil {
		return err
	}
	defer slow.stream.Close()

	var net []nn.Module
	for range layers {
		net = append(net, nn.Linear(width, width, nil))
	}
	model := must.New(New(nn.Sequential(net...), pg, &Options{BucketCapMB: 1}))
	if n := len(model.Stats().Buckets); n < layers {
		return fmt.Errorf("%d buckets, want one for each of %d layers at least", n, layers)
	}
	opt := must.New(optim.NewSGD(model.Parameters(), &optim.SGDOptions{LR: 1e-6}))
	x := autograd.Zeros(dev, device.Float32, rows, width)
	step := func(delay time.Duration) (time.Duration, error) {
		slow.delay = delay
		if err := pg.Barrier().Sync(ctx); err != nil { // after the work of the compute stream on every rank
			return 0, err
		}
		start := time.Now()
		if err := nn.MSELoss(model.Forward(x), x, nil).Backward(nil); err != nil {
			return 0, err
		}
		if err := opt.Step(); err != nil {
			return 0, err
		}
		opt.ZeroGrad()
		err := dev.Compute().Sync(ctx)
		return time.Since(start), err
	}
	var plain time.Duration
	for range warm {
		if plain, err = step(0); err != nil {
			return err
		}
	}
	// The backward pass is two thirds of a step. A delay is half of a layer's part of it, so that
	// each delay but the last is hidden by the next layer.
	delay := plain / (3 * layers)
	if err := comm.BroadcastObject(ctx, pg, &delay, 0); err != nil {
		return err
	}
	if took, err := slow.alone(ctx, delay); err != nil {
		return err
	} else if took < delay || took > 2*delay {
		return fmt.Errorf("a delay of %v by itself takes %v", delay, took)
	}
	// The measurements alternate, so that both kinds run at the same GPU clocks.
	var without, with []time.Duration
	for range rounds {
		for _, d := range []time.Duration{0, delay} {
			took, err := step(d)
			if err != nil {
				return err
			}
			if d == 0 {
				without = append(without, took)
			} else {
				with = append(with, took)
			}
		}
	}
	slices.Sort(without)
	slices.Sort(with)
	longer := with[rounds/2] - without[rounds/2]
	fmt.Printf("a step of %d buckets takes %v; with every reduction delayed by %v it takes %v longer\n",
		len(model.Stats().Buckets), without[rounds/2], delay, longer)
	if longer < delay/2 || longer >= delay*13/10 {
		return fmt.Errorf("%d reductions, each delayed by %v, lengthen the step by %v", len(model.Stats().Buckets), delay, longer)
	}
	return nil
}

// alone returns the duration of a delay on an idle GPU.
func (b *delayed) alone(ctx context.Context, delay time.Duration) (time.Duration, error) {
	from := b.stream.Record()
	if err := b.wait(b.stream, delay); err != nil {
		return 0, err
	}
	to := b.stream.Record()
	err := to.Sync(ctx)
	return to.Time().Sub(from.Time()), err
}

// On GPUs Backward does not wait for other ranks. Step reports that another rank lacks a gradient.
func TestGPUMissingGradient(t *testing.T) { onGPUs(t, 2, 2, "missing") }

func missingOnGPU(_ context.Context, pg *comm.ProcessGroup) error {
	const bad = 1
	skip := false
	m := two{nn.NewParameter("first", autograd.Scalar(pg.Device(), 1)), nn.NewParameter("second", autograd.Scalar(pg.Device(), 2)), &skip}
	model := must.New(New(m, pg, &Options{BucketCapMB: 1e-6}))
	opt := must.New(optim.NewSGD(model.Parameters(), &optim.SGDOptions{LR: 1, Momentum: 0.5}))
	x := autograd.Scalar(pg.Device(), 1)
	for step, want := range []float64{1, 0, 0, -1.5} { // the first parameter after each step
		fails := step%2 == 0
		skip = fails && pg.Rank() == bad
		berr := model.Forward(x).Backward(nil)
		serr := opt.Step()
		var missing *reducer.MissingGradientError
		switch {
		case fails != errors.As(serr, &missing), !fails && serr != nil, berr != nil && (!fails || !errors.As(berr, &missing)), berr == nil && skip:
			return fmt.Errorf("step %d: Backward returned %v, Step %v", step, berr, serr)
		}
		opt.ZeroGrad()
		if got := m.a.Item(); got != want {
			return fmt.Errorf("step %d left %v, want %v", step, got, want)
		}
	}
	return nil
}
