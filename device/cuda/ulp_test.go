//go:build cgo && linux

package cuda

import (
	"testing"

	"github.com/goddp/goddp/internal/testkit/fakegpu"
	"github.com/goddp/goddp/internal/testkit/ulptest"
)

// A GPU's functions, losses and reductions are accurate over all of float32: see docs/results/numerics.md.
func TestAccuracy(t *testing.T) { ulptest.Check(t, gpu(t, nil)) }

// The same kernels, with the host's math functions instead of CUDA's.
func TestEmulatedAccuracy(t *testing.T) {
	fakegpu.Use(t)
	ulptest.Check(t, gpu(t, &Options{Log: quiet()}))
}
