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
	"github.com/goddp/goddp/internal/testkit"
)

// GPUs returns the number of GPUs. It skips the test if there are fewer than least, in a job, or without -long.
// GODDP_REQUIRE_CUDA stands for -long, and makes the test fail if there is no GPU, so that a run on a machine with
// GPUs cannot skip tests unnoticed.
func GPUs(t testing.TB, least int) int {
	t.Helper()
	OutsideJobs(t)
	if os.Getenv("GODDP_REQUIRE_CUDA") == "" {
		testkit.Long(t)
	}
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

// OpenGPUs opens the first GPUs, no more than most, and closes them when the test ends. It skips the test as GPUs does.
func OpenGPUs(t testing.TB, least, most int) (devices []device.Device) {
	t.Helper()
	for i := range min(most, GPUs(t, least)) {
		dev, err := cuda.Open(i, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { dev.Close() })
		devices = append(devices, dev)
	}
	return devices
}

// ShareVar is an environment variable that makes two processes share the first GPU. NCCL refuses two ranks on one GPU
// of a host, so each process gets a host id of its own. NCCL connects them by sockets, and they take turns on the GPU:
// a call takes milliseconds.
const ShareVar = "GODDP_TEST_SHARE_GPU"

// ownHost are the words of a shell command that runs the command after them as a rank that NCCL takes for one on a host
// of its own.
var ownHost = []string{"sh", "-c", `NCCL_HOSTID=host$RANK exec "$@"`, "sh"}

// processesOnGPUs returns how many processes can have a GPU, and the variable by which they use it. It skips
// the test if there are fewer than least.
func processesOnGPUs(t *testing.T, least int) (n int, device string) {
	t.Helper()
	if os.Getenv(ShareVar) != "" {
		GPUs(t, 1)
		return 2, "GODDP_DEVICE=cuda:0"
	}
	return GPUs(t, least), "GODDP_DEVICE=cuda"
}

// ProcessesOnGPUs is Processes over NCCL with one GPU per process. It runs the long tests too, needs no -long, and runs the sizes for which there
// are enough GPUs, and skips the test if there are fewer than two.
func ProcessesOnGPUs(t *testing.T, sizes ...int) {
	t.Helper()
	most, device := processesOnGPUs(t, 2)
	for _, n := range sizes {
		if n <= most {
			t.Run(fmt.Sprint(n), func(t *testing.T) { processes(t, n, []string{"-long"}, device) })
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
	most, device := processesOnGPUs(t, 1)
	for _, n := range sizes {
		switch {
		case n > most:
			t.Logf("not on %d ranks: the GPUs are enough for %d", n, most)
		case n == 1:
			onOneGPU(t, f)
		default:
			ctx, cancel := context.WithTimeout(t.Context(), jobTimeout)
			runs(ctx, t, n, []string{"-long", "-test.run", "^" + regexp.QuoteMeta(t.Name()) + "$"}, append(vars, device))
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
