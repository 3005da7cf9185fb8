package commhook_test

import (
	"testing"

	"github.com/goddp/goddp/internal/commtest"
)

// TestGPUOnProcesses does the same as TestOnProcesses, with a GPU for each process and NCCL.
func TestGPUOnProcesses(t *testing.T) { commtest.ProcessesOnGPUs(t, 2, 4) }
