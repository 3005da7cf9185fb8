//go:build cgo && linux

package cuda

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
	"github.com/goddp/goddp/internal/testkit"
)

// After an error from which CUDA cannot recover, the device is lost, and the log has one line about
// it. The test uses another process, because the error ends the process's CUDA context.
func TestLostDevice(t *testing.T) {
	needGPU(t)
	r := testkit.Run(t, testkit.Self(t, "fault"))
	if n := strings.Count(r.Stdout+r.Stderr, "device lost"); r.Code != 0 || n != 1 {
		t.Errorf("exit code %d; the loss was logged %d times:\n%s%s", r.Code, n, r.Stdout, r.Stderr)
	}
}

// fault runs a kernel on an illegal address, and then calls all other methods.
func fault() int {
	d, err := Open(0, nil)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	s, k, ctx := d.Compute(), kernels.Of(d), context.Background()
	x, err := d.Alloc(4096)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	good := device.NewTensor(x, device.Float32, 1024)
	early := s.Record()
	bad := device.NewTensor(device.DeviceBuffer(0xdead0000, 4096, nil), device.Float32, 1024)
	if err := k.Fill(s, bad, 1); err != nil {
		fmt.Println("the launch itself failed:", err)
		return 1
	}
	first := s.Sync(ctx)
	var lost *LostError
	if !errors.As(first, &lost) || lost.Cause.Name != "CUDA_ERROR_ILLEGAL_ADDRESS" || lost.Device != "cuda:0" {
		fmt.Println("Sync gave", first)
		return 1
	}
	fmt.Println(first)
	_, alloc := d.Alloc(1 << 40)
	_, stream := d.NewStream(false)
	_, done := early.Done()
	code := 0
	for what, err := range map[string]error{
		"Fill": k.Fill(s, good, 1), "MatMul": k.MatMul(s, good.Reshape(32, 32), device.Store, good.Reshape(32, 32), false, good.Reshape(32, 32), false),
		"CopyIn": d.CopyIn(s, x, make([]byte, 4096)), "CopyOut": d.CopyOut(ctx, s, make([]byte, 4096), x),
		"Alloc": alloc, "NewStream": stream, "Sync": s.Sync(ctx), "Done": done, "WaitFor": s.WaitFor(early), "Err": d.(*gpuDevice).Err(), "Close": d.Close(),
	} {
		var again *LostError
		if !errors.As(err, &again) || again != lost {
			fmt.Printf("%s gave %v\n", what, err)
			code = 1
		}
	}
	return code
}
