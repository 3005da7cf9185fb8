//go:build cgo && linux

package ddp

import (
	"context"
	"testing"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
)

func init() { workers["mixed"] = mixedOnGPU }

// Mixed precision where products too are computed in 16 bits.
func TestGPUMixedPrecision(t *testing.T) { onGPUs(t, 1, 2, "mixed") }

func mixedOnGPU(ctx context.Context) error {
	pg, err := comm.Init(ctx, nil)
	if err != nil {
		return err
	}
	defer pg.Close()
	return mixed(pg, device.Invalid, 0.05)
}
