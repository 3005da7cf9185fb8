package commhook_test

import (
	"testing"

	"github.com/goddp/goddp/internal/commtest"
)

// TestGPUOnProcesses runs what TestOnProcesses does, with a GPU for each process, over
// NCCL.
func TestGPUOnProcesses(t *testing.T) { commtest.ProcessesOnGPUs(t, 2, 4) }
