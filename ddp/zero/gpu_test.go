package zero

import (
	"testing"

	"github.com/goddp/goddp/internal/commtest"
)

// TestGPUOnProcesses runs what TestOnProcesses does on two processes with a GPU
// each: of more, NCCL adds in another order where it reduces to all than where it
// reduces to shards.
func TestGPUOnProcesses(t *testing.T) { commtest.ProcessesOnGPUs(t, 2) }
