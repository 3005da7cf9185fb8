package zero

import (
	"testing"

	"github.com/goddp/goddp/internal/commtest"
)

// TestGPUOnProcesses does the same as TestOnProcesses, on two processes with a GPU each. With more
// processes NCCL sums in another order in an all-reduce than in a reduce-scatter.
func TestGPUOnProcesses(t *testing.T) { commtest.ProcessesOnGPUs(t, 2) }
