//go:build cgo && linux

package zero

import (
	"os"
	"testing"

	"github.com/goddp/goddp/comm/commtest"
	"github.com/goddp/goddp/device/cuda"
)

// TestGPUOnProcesses runs what TestOnProcesses does on two processes with a GPU
// each: of more, NCCL adds in another order where it reduces to all than where it
// reduces to shards. GODDP_REQUIRE_CUDA makes it a failure that there is no GPU.
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
	commtest.Processes(t, 2, "GODDP_DEVICE=cuda")
}
