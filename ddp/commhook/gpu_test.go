//go:build cgo && linux

package commhook_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/goddp/goddp/comm/commtest"
	"github.com/goddp/goddp/device/cuda"
)

// TestGPUOnProcesses runs what TestOnProcesses does, with a GPU for each process, over
// NCCL. GODDP_REQUIRE_CUDA makes it a failure that there is no GPU.
func TestGPUOnProcesses(t *testing.T) {
	commtest.OutsideJobs(t)
	gpus, err := cuda.Count()
	switch {
	case gpus == 0 && os.Getenv("GODDP_REQUIRE_CUDA") != "":
		t.Fatalf("no GPU: %v", err)
	case gpus == 0:
		t.Skipf("no GPU: %v", err)
	case gpus < 2:
		t.Skip("1 GPU, 2 are needed")
	}
	for _, n := range []int{2, 4} {
		if n <= gpus {
			t.Run(fmt.Sprint(n), func(t *testing.T) { commtest.Processes(t, n, "GODDP_DEVICE=cuda") })
		}
	}
}
