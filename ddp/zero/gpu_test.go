//go:build cgo && linux

package zero

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp"
	"github.com/goddp/goddp/ddp/reducer"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/cuda"
	"github.com/goddp/goddp/launcher"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

func init() { workers["compare"], workers["missing"] = compareOnGPU, missingOnGPU }

// onGPUs runs a program on two ranks, processes with a GPU each, or on one where
// there is but one. Where there is none it skips the test; GODDP_REQUIRE_CUDA
// makes that a failure.
func onGPUs(t *testing.T, least int, program string) {
	t.Helper()
	gpus, err := cuda.Count()
	switch {
	case gpus == 0 && os.Getenv("GODDP_REQUIRE_CUDA") != "":
		t.Fatalf("no GPU: %v", err)
	case gpus == 0:
		t.Skipf("no GPU: %v", err)
	case gpus < least:
		t.Skipf("%d GPU, %d are needed", gpus, least)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	var out bytes.Buffer
	_, err = launcher.Run(ctx, &launcher.Config{
		Args: []string{os.Args[0]}, Workers: min(2, gpus), Env: append(os.Environ(), workerMode+"="+program, "GODDP_DEVICE=cuda"),
		Stdout: &out, Stderr: &out,
	})
	t.Logf("%s", &out)
	if err != nil {
		t.Error(err)
	}
}

// On GPUs too, parameters are to the bit what they are without shards: a sum of two
// numbers has one order. What the steps take, and what the optimizer keeps, is
// printed.
func TestGPUTrainsAsWithoutShards(t *testing.T) { onGPUs(t, 1, "compare") }

func compareOnGPU(ctx context.Context) error {
	pg, err := comm.Init(ctx, nil)
	if err != nil {
		return err
	}
	defer pg.Close()
	const size, rows, layers, warm, steps = 4096, 256, 4, 3, 20
	for _, o := range []nn.LinearOptions{{}, {DType: device.BFloat16}} {
		var params [2][]byte
		for i, wrap := range []func(nn.Module, *comm.ProcessGroup, maker, *ddp.Options) (wrapped, error){whole, divided} {
			var parts []nn.Module
			for range layers {
				parts = append(parts, nn.Linear(size, size, o))
			}
			net := nn.Sequential(parts...)
			w, err := wrap(net, pg, adamW, nil)
			if err != nil {
				return err
			}
			dev := pg.Device()
			x, err := dev.Alloc(rows * size * net.Parameters()[0].DType().Size())
			if err != nil {
				return err
			}
			in := device.NewTensor(x, net.Parameters()[0].DType(), rows, size)
			if err := dev.Kernels().Fill(dev.Compute(), in, 0.5+float64(pg.Rank())); err != nil {
				return err
			}
			var begun time.Time
			for step := range warm + steps {
				if step == warm {
					if err := dev.Compute().Sync(ctx); err != nil {
						return err
					}
					begun = time.Now()
				}
				v := autograd.FromTensor(dev, in)
				if err := nn.MSELoss(w.model.Forward(v), v).Backward(); err != nil {
					return err
				}
				if err := w.opt.Step(); err != nil {
					return err
				}
				w.opt.ZeroGrad()
			}
			if err := dev.Compute().Sync(ctx); err != nil {
				return err
			}
			took := time.Since(begun) / steps
			state, err := w.local.State()
			if err != nil {
				return err
			}
			kept := 0
			for _, b := range state {
				kept += b.Var().Tensor().Bytes()
			}
			fmt.Printf("rank %d: %v, shards: %v: a step takes %v, the optimizer keeps %d bytes\n", pg.Rank(), in.DType, i == 1, took, kept)
			for _, p := range net.Parameters() {
				mem := make([]byte, p.Var().Tensor().Bytes())
				if err := dev.CopyOut(ctx, dev.Compute(), mem, p.Var().Tensor().Buf); err != nil {
					return err
				}
				params[i] = append(params[i], mem...)
			}
		}
		if !bytes.Equal(params[0], params[1]) {
			return errors.New("the parameters differ from those of training without shards")
		}
	}
	return nil
}

// A rank that lacks a gradient, and knows it before the others, does not leave
// them to wait in a gather.
func TestGPUMissingGradient(t *testing.T) { onGPUs(t, 2, "missing") }

func missingOnGPU(ctx context.Context) error {
	pg, err := comm.Init(ctx, nil)
	if err != nil {
		return err
	}
	defer pg.Close()
	step := 0
	net := newForked(func() bool { return step%2 == 0 && pg.Rank() == 1 })
	if err := nn.Cast(net, device.Float32); err != nil {
		return err
	}
	w, err := divided(net, pg, func(params []*nn.Parameter) Local { return optim.NewSGD(params, optim.SGDOptions{LR: 0.1}) }, small)
	if err != nil {
		return err
	}
	for ; step < 6; step++ {
		err := w.loss(pg, device.Float32, step).Backward()
		if err == nil {
			err = w.opt.Step()
		}
		var missing *reducer.MissingGradientError
		if errors.As(err, &missing) != (step%2 == 0) || step%2 != 0 && err != nil {
			return fmt.Errorf("step %d: got %v", step, err)
		}
		w.opt.ZeroGrad()
	}
	if n, whole := w.opt.Committed(); n != 3 || !whole {
		return fmt.Errorf("%d steps committed, whole: %v; want 3", n, whole)
	}
	return nil
}
