//go:build cgo && linux

package ddp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/cuda"
	"github.com/goddp/goddp/internal/kernels"
	"github.com/goddp/goddp/internal/must"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

func init() { workers["recover"] = recoverOnGPU }

// If one rank comes too late for a reduction, all ranks recover on GPUs too, and reach the same
// parameters as without the failure.
func TestGPURecover(t *testing.T) { onGPUs(t, 2, 2, "recover") }

const lateStep, lateSteps, lateTimeout = 4, 8, 10 * time.Second

func recoverOnGPU(ctx context.Context) error {
	world, err := comm.WorldFromEnv()
	if err != nil {
		return err
	}
	dev, err := cuda.Open(world.LocalRank, nil)
	if err != nil {
		return err
	}
	defer dev.Close()
	plain, broken, err := lateTraining(ctx, dev, func(int) {})
	if err != nil || broken != nil {
		return fmt.Errorf("without a failure: %w", errors.Join(err, broken))
	}
	late := false
	again, broken, err := lateTraining(ctx, dev, func(step int) {
		if !late && step == lateStep && world.Rank == 1 {
			late = true
			time.Sleep(lateTimeout * 3 / 2)
		}
	})
	fmt.Printf("rank %d: %v\n", world.Rank, broken)
	switch {
	case err != nil:
		return err
	case broken == nil:
		return errors.New("nothing failed")
	case !bytes.Equal(plain, again):
		return errors.New("it did not come where it comes without a failure")
	}
	return nil
}

// lateTraining trains a new model, in a second group if the first one breaks. It returns the
// parameters and the error that broke the first group.
func lateTraining(ctx context.Context, dev device.Device, before func(step int)) (params []byte, broken, err error) {
	net := mlp(64, device.Float32)
	opt := must.New(optim.NewSGD(net.Parameters(), &optim.SGDOptions{LR: 0.05, Momentum: 0.9}))
	group := func(want int) error {
		pg, err := comm.Init(ctx, &comm.Options{Device: dev, Timeout: lateTimeout, ErrorMode: comm.BlockingWait})
		if err != nil {
			return err
		}
		defer pg.Close()
		step, err := Recover(net, pg, opt)
		if err != nil {
			return err
		}
		if step != want {
			return fmt.Errorf("recovered step %d, want %d", step, want)
		}
		model, err := New(net, pg, nil)
		if err != nil {
			return err
		}
		x := autograd.Zeros(dev, device.Float32, 8, 64)
		for ; step < lateSteps; step++ {
			before(step)
			if err := kernels.Of(dev).Normal(dev.Compute(), x.Tensor(), 0, 1, uint64(step), uint64(pg.Rank())<<32); err != nil {
				return err
			}
			if err := nn.MSELoss(model.Forward(x), x).Backward(); err != nil {
				return err
			}
			if err := opt.Step(); err != nil {
				return err
			}
			opt.ZeroGrad()
		}
		return nil
	}
	if err = group(0); errors.Is(err, comm.ErrTimeout) || errors.Is(err, comm.ErrAborted) || errors.Is(err, comm.ErrPeerLost) {
		broken, err = err, group(lateStep)
	}
	if err != nil {
		return nil, broken, err
	}
	for _, p := range net.Parameters() {
		t := p.Var().Tensor()
		data := make([]byte, t.Bytes())
		if err := dev.CopyOut(ctx, dev.Compute(), data, t.Buf); err != nil {
			return nil, broken, err
		}
		params = append(params, data...)
	}
	return params, broken, nil
}
