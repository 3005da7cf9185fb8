package cucomm_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"
	"time"
	"unsafe"

	"gorgonia.org/cu"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/cuda"
	"github.com/goddp/goddp/interop/cucomm"
)

const (
	elements = 16 << 20
	junk     = -1e6
	timeout  = time.Minute
)

// rank is the cu program of one rank. It allocates, fills and reads all its memory by cu.
type rank struct {
	pg      *comm.ProcessGroup
	stream  cu.Stream
	mem     cu.DevicePtr // the memory that is summed
	copied  cu.DevicePtr
	scratch cu.DevicePtr
	fills   int // how often dawdle fills scratch
}

// program runs all checks and prints their results.
func program(ctx context.Context) error {
	local, err := strconv.Atoi(os.Getenv("LOCAL_RANK"))
	if err != nil {
		return err
	}
	gpu := cu.Device(local)
	primary, err := gpu.RetainPrimaryCtx()
	if err != nil {
		return err
	}
	defer gpu.ReleasePrimaryCtx()
	if err := primary.Lock(); err != nil {
		return err
	}
	defer primary.Unlock()
	var r rank
	if r.stream, err = cu.MakeStream(cu.NonBlocking); err != nil {
		return err
	}
	for _, p := range []*cu.DevicePtr{&r.mem, &r.copied, &r.scratch} {
		if *p, err = cu.MemAlloc(4 * elements); err != nil {
			return err
		}
	}
	if err := r.calibrate(); err != nil {
		return err
	}
	dev, err := cucomm.Open(gpu, r.stream, nil)
	if err != nil {
		return err
	}
	defer dev.Close()
	if r.pg, err = comm.Init(ctx, &comm.Options{Device: dev, Timeout: timeout}); err != nil {
		return err
	}
	defer r.pg.Close()
	t, err := dev.Tensor(r.mem, device.Float32, elements)
	if err != nil {
		return err
	}
	if t.Buf.Addr() != r.mem.Uintptr() {
		return fmt.Errorf("the tensor is at %#x, and the memory at %v", t.Buf.Addr(), r.mem)
	}
	for _, check := range []func(context.Context, device.Tensor) error{r.sum, r.order} {
		if err := check(ctx, t); err != nil {
			return err
		}
	}
	if err := r.control(ctx, local); err != nil {
		return err
	}
	return otherContext(gpu, primary, dev)
}

// calibrate finds how often scratch must be filled to keep the GPU busy for a while.
func (r *rank) calibrate() error {
	const sample, while = 20, 50 * time.Millisecond
	r.fills = sample
	start := time.Now()
	if err := r.dawdle(); err != nil {
		return err
	}
	if err := r.stream.Synchronize(); err != nil {
		return err
	}
	r.fills = 1 + int(sample*while/time.Since(start))
	return nil
}

// dawdle keeps the stream busy for a while.
func (r *rank) dawdle() error {
	for range r.fills {
		if err := r.fill(r.scratch, junk); err != nil {
			return err
		}
	}
	return nil
}

// fill enqueues work that fills memory with v.
func (r *rank) fill(p cu.DevicePtr, v float32) error {
	return cu.MemsetD32Async(p, uint(math.Float32bits(v)), elements, r.stream)
}

// read waits for the stream and returns the contents of the memory.
func (r *rank) read(p cu.DevicePtr) ([]float32, error) {
	if err := r.stream.Synchronize(); err != nil {
		return nil, err
	}
	values := make([]float32, elements)
	return values, cu.MemcpyDtoH(unsafe.Pointer(&values[0]), p, 4*elements)
}

// total returns the sum over all ranks of the rank's number plus 1.
func (r *rank) total() float32 { return float32(r.pg.Size() * (r.pg.Size() + 1) / 2) }

// sum checks the sums of different values.
func (r *rank) sum(ctx context.Context, t device.Tensor) error {
	values := make([]float32, elements)
	for i := range values {
		values[i] = float32(r.pg.Rank()+1) * float32(1+i%1000)
	}
	if err := cu.MemcpyHtoD(r.mem, unsafe.Pointer(&values[0]), 4*elements); err != nil {
		return err
	}
	if err := cu.Synchronize(); err != nil { // the copy is not on the stream and may still run
		return err
	}
	if err := r.pg.AllReduce(t, comm.Sum).Wait(ctx); err != nil {
		return err
	}
	values, err := r.read(r.mem)
	if err != nil {
		return err
	}
	for i, v := range values {
		if want := r.total() * float32(1+i%1000); v != want {
			return fmt.Errorf("sum: element %d is %v, want %v", i, v, want)
		}
	}
	fmt.Printf("sum: ok, of %d elements at %v, in place\n", elements, r.mem)
	return nil
}

// order sums memory that the stream has yet to write, and enqueues the next write at once. The host
// waits for nothing in between, and the last rank joins late.
func (r *rank) order(ctx context.Context, t device.Tensor) error {
	if err := r.fill(r.mem, junk); err != nil {
		return err
	}
	if err := r.pg.Barrier().Sync(ctx); err != nil {
		return err
	}
	if r.pg.Rank() == r.pg.Size()-1 {
		time.Sleep(300 * time.Millisecond) // so that the calls of the other ranks are pending
	}
	if err := r.dawdle(); err != nil {
		return err
	}
	if err := r.fill(r.mem, float32(r.pg.Rank()+1)); err != nil {
		return err
	}
	if err := r.pg.AllReduce(t, comm.Sum).Wait(ctx); err != nil {
		return err
	}
	if err := cu.MemcpyDtoDAsync(r.copied, r.mem, 4*elements, r.stream); err != nil {
		return err
	}
	if err := r.fill(r.mem, junk); err != nil {
		return err
	}
	if r.stream.Query() == nil {
		return errors.New("stream order: the stream was done when the call returned: the host has waited")
	}
	values, err := r.read(r.copied)
	if err != nil {
		return err
	}
	for i, v := range values {
		if v != r.total() {
			return fmt.Errorf("stream order: element %d is %v, want %v", i, v, r.total())
		}
	}
	if values, err = r.read(r.mem); err != nil {
		return err
	}
	if values[0] != junk || values[elements-1] != junk {
		return fmt.Errorf("stream order: %v was written over", float32(junk))
	}
	fmt.Printf("stream order: ok, behind %d fills and before a copy, with no wait on the host\n", r.fills)
	return nil
}

// control does the same as order in a group that does not know the stream. Its sum must be wrong.
func (r *rank) control(ctx context.Context, local int) error {
	bare, err := cuda.Open(local, nil)
	if err != nil {
		return err
	}
	defer bare.Close()
	pg, err := comm.Init(ctx, &comm.Options{Device: bare, Timeout: timeout})
	if err != nil {
		return err
	}
	defer pg.Close()
	if err := r.fill(r.mem, junk); err != nil {
		return err
	}
	if err := r.stream.Synchronize(); err != nil {
		return err
	}
	if err := pg.Barrier().Sync(ctx); err != nil {
		return err
	}
	if err := r.dawdle(); err != nil {
		return err
	}
	if err := r.fill(r.mem, float32(r.pg.Rank()+1)); err != nil {
		return err
	}
	t := device.NewTensor(device.DeviceBuffer(r.mem.Uintptr(), 4*elements, nil), device.Float32, elements)
	if err := pg.AllReduce(t, comm.Sum).Sync(ctx); err != nil {
		return err
	}
	values, err := r.read(r.mem)
	if err != nil {
		return err
	}
	if values[0] == r.total() {
		return fmt.Errorf("without the stream's order the sum is right, %v: the check of the order shows nothing", values[0])
	}
	fmt.Printf("without the stream's order: wrong, as it has to be: %v, not %v\n", values[0], r.total())
	return pg.Barrier().Sync(ctx)
}

// otherContext gives the device memory and a stream of another context, which it must refuse.
func otherContext(gpu cu.Device, primary cu.CUContext, dev *cucomm.Device) error {
	mine, err := gpu.MakeContext(cu.SchedAuto) // which makes it current
	if err != nil {
		return err
	}
	defer mine.Destroy()
	defer cu.SetCurrentContext(primary)
	mem, err := cu.MemAlloc(1 << 20)
	if err != nil {
		return err
	}
	stream, err := cu.MakeStream(cu.NonBlocking)
	if err != nil {
		return err
	}
	_, memErr := dev.Tensor(mem, device.Float32, 1)
	_, streamErr := cucomm.Open(gpu, stream, nil)
	for what, err := range map[string]error{"memory": memErr, "stream": streamErr} {
		var e *cucomm.OtherContextError
		if !errors.As(err, &e) || e.Context == e.Primary || e.Device != dev.String() {
			return fmt.Errorf("foreign %s: %v, want an OtherContextError", what, err)
		}
		fmt.Printf("foreign %s: refused: %v\n", what, err)
	}
	return nil
}
