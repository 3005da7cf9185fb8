package commtest

import (
	"fmt"
	"os"
	"testing"

	"github.com/goddp/goddp/device/cuda"
)

// GPUs is the number of GPUs. Where there are fewer than least it skips the test, and
// so it does within a job; GODDP_REQUIRE_CUDA makes none at all a failure, so that a
// run on a GPU machine cannot skip unseen.
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

// ProcessesOnGPUs is Processes with a GPU for each process, over NCCL, on as many of
// the numbers of processes as there are GPUs for; it takes two at least.
func ProcessesOnGPUs(t *testing.T, sizes ...int) {
	t.Helper()
	gpus := GPUs(t, 2)
	for _, n := range sizes {
		if n <= gpus {
			t.Run(fmt.Sprint(n), func(t *testing.T) { Processes(t, n, "GODDP_DEVICE=cuda") })
		}
	}
}
