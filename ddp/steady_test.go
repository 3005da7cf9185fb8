package ddp

import (
	"context"
	"fmt"
	"runtime"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/testkit"
	"github.com/goddp/goddp/internal/testkit/commtest"
	"github.com/goddp/goddp/internal/testkit/must"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

// steadyHeap returns the number of bytes that a rank may allocate on Go's heap in one training step.
// The model has three layers, and their gradients are in three buckets. Most of the bytes are those of
// autograd's graph. Under the race detector a step allocates up to 1 KiB more.
func steadyHeap() int64 {
	if testkit.Race {
		return 19 << 10
	}
	return 17 << 10
}

// steady makes warm-up steps of a small model, and then fails if a step allocates more than
// steadyHeap(), or any device memory. All ranks call it; ranksHere of them share this process.
func steady(pg *comm.ProcessGroup, ranksHere int) error {
	const layers, width, rows, warm, steps = 3, 64, 8, 10, 50
	dev := pg.Device()
	model := must.New(New(mlp(width, device.Float32), pg, &Options{BucketCapMB: 0.015}))
	if n := len(model.Stats().Buckets); n != layers {
		return fmt.Errorf("%d buckets, want %d", n, layers)
	}
	opt := must.New(optim.NewSGD(model.Parameters(), &optim.SGDOptions{LR: 0.01, Momentum: 0.9}))
	x := autograd.Zeros(dev, device.Float32, rows, width)
	step := func() error {
		if err := nn.MSELoss(model.Forward(x), x, nil).Backward(nil); err != nil {
			return err
		}
		if err := opt.Step(); err != nil {
			return err
		}
		opt.ZeroGrad()
		return nil
	}
	var before, after runtime.MemStats
	var allocs int64
	for i := range warm + steps {
		if i == warm {
			// All ranks have finished their warm-up.
			if err := pg.Barrier().Sync(context.Background()); err != nil {
				return err
			}
			allocs = dev.Memory().Allocs
			runtime.ReadMemStats(&before)
		}
		if err := step(); err != nil {
			return err
		}
	}
	runtime.ReadMemStats(&after)
	heap := int64(after.TotalAlloc-before.TotalAlloc) / steps / int64(ranksHere)
	fmt.Printf("rank %d, %s: %d bytes a step\n", pg.Rank(), pg.Backend(), heap)
	if grown := dev.Memory().Allocs - allocs; heap > steadyHeap() || grown > 0 {
		return fmt.Errorf("a step allocates %d bytes on Go's heap, want at most %d; %d steps took device memory %d times, want 0", heap, steadyHeap(), steps, grown)
	}
	return nil
}

// A step in steady state allocates almost nothing.
func TestSteadyState(t *testing.T) {
	commtest.OnGoroutines(t, 2, nil, func(pg *comm.ProcessGroup) error { return steady(pg, 2) })
}
