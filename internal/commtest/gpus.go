package commtest

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/cuda"
)

// GPUs returns the number of GPUs. It skips the test if there are fewer than least, or in a job. If
// GODDP_REQUIRE_CUDA is set and there is no GPU, it fails the test, so that a run on a machine with
// GPUs cannot skip tests unnoticed.
func GPUs(t testing.TB, least int) int {
	t.Helper()
	OutsideJobs(t)
	gpus, err := cuda.Count()
	switch {
	case gpus == 0 && os.Getenv("GODDP_REQUIRE_CUDA") != "":
		t.Fatalf("no GPU: %v", err)
	case gpus == 0:
		t.Skipf("no GPU: %v", err)
	case gpus < least:
		t.Skipf("%d GPU, %d are needed", gpus, least)
	}
	return gpus
}

// ProcessesOnGPUs is Processes over NCCL with one GPU per process. It runs the sizes for which there
// are enough GPUs, and skips the test if there are fewer than two.
func ProcessesOnGPUs(t *testing.T, sizes ...int) {
	t.Helper()
	gpus := GPUs(t, 2)
	for _, n := range sizes {
		if n <= gpus {
			t.Run(fmt.Sprint(n), func(t *testing.T) { Processes(t, n, "GODDP_DEVICE=cuda") })
		}
	}
}

// OnDeviceOf runs f once for each number of ranks in sizes. By default the ranks are goroutines and
// compute on the CPU. If GODDP_DEVICE is cuda, each rank has a GPU, and OnDeviceOf omits sizes for
// which there are too few GPUs. A single rank then runs in this process. Several ranks are processes
// that run this test again, with vars in their environment; t must therefore be a top-level test.
func OnDeviceOf(t *testing.T, sizes []int, vars []string, f func(pg *comm.ProcessGroup) error) {
	t.Helper()
	if InJob() {
		onProcess(t, world(t).Size, nil, f)
		return
	}
	if !strings.HasPrefix(os.Getenv("GODDP_DEVICE"), "cuda") {
		for _, n := range sizes {
			onGoroutines(t, n, nil, f)
		}
		return
	}
	gpus := GPUs(t, 1)
	for _, n := range sizes {
		switch {
		case n > gpus:
			t.Logf("not on %d ranks: there are %d GPUs", n, gpus)
		case n == 1:
			onOneGPU(t, f)
		default:
			ctx, cancel := context.WithTimeout(t.Context(), jobTimeout)
			runs(ctx, t, n, []string{"-test.run", "^" + regexp.QuoteMeta(t.Name()) + "$"}, append(vars, "GODDP_DEVICE=cuda"))
			cancel()
		}
	}
}

// onOneGPU runs f on one rank in this process.
func onOneGPU(t *testing.T, f func(pg *comm.ProcessGroup) error) {
	t.Helper()
	dev, err := comm.OpenDevice(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	}()
	OnDevices(t, []device.Device{dev}, nil, f)
}
