//go:build cgo && linux

package ddp

import (
	"context"
	"testing"

	"github.com/goddp/goddp/comm"
)

func init() { workers["checkpoints"] = checkpointsOnGPU }

// On GPUs too, training with checkpoints is bit-identical to training without.
func TestGPUCheckpointsChangeNothing(t *testing.T) { onGPUs(t, 1, 2, "checkpoints") }

func checkpointsOnGPU(ctx context.Context) error {
	pg, err := comm.Init(ctx, nil)
	if err != nil {
		return err
	}
	defer pg.Close()
	return checkpointsChangeNothing(pg, &Options{BucketCapMB: 1e-6})
}
