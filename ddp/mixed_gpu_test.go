//go:build cgo && linux

package ddp

import (
	"context"
	"testing"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
)

func init() { workers["mixed"] = mixedOnGPU }

// On a GPU products are computed in 16 bits too: with 16-bit parameters, and with float32
// parameters that are converted.
func TestGPUMixedPrecision(t *testing.T) { onGPUs(t, 1, 2, "mixed") }

func mixedOnGPU(ctx context.Context) error {
	pg, err := comm.Init(ctx, nil)
	if err != nil {
		return err
	}
	defer pg.Close()
	return mixed(pg, 0.05, precision{params: device.BFloat16}, precision{params: device.Float16}, precision{device.Float32, device.BFloat16})
}
