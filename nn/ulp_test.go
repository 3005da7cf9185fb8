package nn_test

import (
	"testing"

	"github.com/goddp/goddp/device/cpu"
	"github.com/goddp/goddp/internal/testkit/ulptest"
)

// The CPU's functions, losses and reductions are accurate over all of float32: see docs/results/numerics.md.
func TestAccuracy(t *testing.T) { ulptest.Check(t, newDevice(t, cpu.Options{})) }
