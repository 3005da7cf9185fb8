// Command example is a program that uses gorgonia.org/cu on every rank's GPU. It sums its memory
// over the ranks:
//
//	golaunch --nproc-per-node 2 ./example
package main

import (
	"context"
	"fmt"
	"math"
	"os"
	"strconv"
	"unsafe"

	"gorgonia.org/cu"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/interop/cucomm"
)

const n = 1 << 20

func run(ctx context.Context) error {
	local, _ := strconv.Atoi(os.Getenv("LOCAL_RANK")) // 0 without a launcher
	gpu := cu.Device(local)
	primary, err := gpu.RetainPrimaryCtx() // the context that NCCL uses
	if err != nil {
		return err
	}
	defer gpu.ReleasePrimaryCtx()
	if err := primary.Lock(); err != nil {
		return err
	}
	defer primary.Unlock()
	stream, err := cu.MakeStream(cu.NonBlocking)
	if err != nil {
		return err
	}
	defer stream.Destroy()
	mem, err := cu.MemAlloc(4 * n)
	if err != nil {
		return err
	}
	defer cu.MemFree(mem)

	dev, err := cucomm.Open(gpu, stream, nil)
	if err != nil {
		return err
	}
	defer dev.Close()
	pg, err := comm.Init(ctx, &comm.Options{Device: dev})
	if err != nil {
		return err
	}
	defer pg.Close()
	t, err := dev.Tensor(mem, device.Float32, n)
	if err != nil {
		return err
	}
	if err := cu.MemsetD32Async(mem, uint(math.Float32bits(float32(pg.Rank()+1))), n, stream); err != nil {
		return err
	}
	if err := pg.AllReduce(t, comm.Sum).Wait(ctx); err != nil {
		return err
	}
	if err := stream.Synchronize(); err != nil {
		return err
	}
	sum := make([]float32, n)
	if err := cu.MemcpyDtoH(unsafe.Pointer(&sum[0]), mem, 4*n); err != nil {
		return err
	}
	fmt.Printf("rank %d of %d: %v ... %v\n", pg.Rank(), pg.Size(), sum[0], sum[n-1])
	return nil
}

func main() { comm.Main(run) }
