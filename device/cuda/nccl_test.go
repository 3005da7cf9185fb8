//go:build cgo && linux

package cuda

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/backend/nccl"
	"github.com/goddp/goddp/internal/coordinator/coordinatortest"
)

// Two ranks reduce through internal/backend/nccl, on the fake libraries. A reduction includes what
// the compute stream wrote before the call, and the compute stream reads the sum after it, over
// many calls that reuse CUevents.
func TestNCCLOnItsStreams(t *testing.T) {
	first := bare(t, "delay 50")
	second, err := openBare(1, Options{Log: quiet()})
	ok(t, err)
	second.kernels = &kernelSet{d: second}
	t.Cleanup(func() {
		if err := second.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ranks := coordinatortest.Ranks(t, 2)
	devices, errs := []*gpuDevice{first, second}, make([]error, 2)
	var wg sync.WaitGroup
	for rank, d := range devices {
		wg.Go(func() {
			cfg := backend.Config{Rank: rank, Size: len(devices), Control: ranks[rank], Device: d, Timeout: 20 * time.Second}
			g, err := nccl.New(ctx, cfg, nil)
			if err == nil {
				err = errors.Join(sums(ctx, g, d, rank), g.Close(ctx))
			}
			errs[rank] = err
		})
	}
	wg.Wait()
	ok(t, errors.Join(errs...))
	if n := len(first.marks.all); n > 200 {
		t.Errorf("600 calls took %d CUevents", n)
	}
}

// sums reduces a number that depends on the round and the rank, and compares the sum.
func sums(ctx context.Context, g backend.Backend, d *gpuDevice, rank int) error {
	mem, err := g.Alloc(4)
	if err != nil {
		return err
	}
	x, data := device.NewTensor(mem, device.Float32, 1), make([]byte, 4)
	for round := range 600 {
		binary.NativeEndian.PutUint32(data, math.Float32bits(float32(round*(1+rank))))
		if err := d.CopyIn(d.compute, mem, data); err != nil {
			return err
		}
		task, err := g.Start(&backend.Call{Kind: backend.AllReduce, Seq: uint64(1 + round), Dst: x, Src: x, After: d.compute.Mark()})
		if err != nil {
			return err
		}
		if err := task.Join(ctx, d.compute); err != nil {
			return err
		}
		if err := d.CopyOut(ctx, d.compute, data, mem); err != nil {
			return err
		}
		if got := math.Float32frombits(binary.NativeEndian.Uint32(data)); got != float32(3*round) {
			return fmt.Errorf("round %d: rank %d read %v, want %d", round, rank, got, 3*round)
		}
	}
	return nil
}
