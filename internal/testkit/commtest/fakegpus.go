//go:build cgo && linux

package commtest

import (
	"testing"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/cuda"
	"github.com/goddp/goddp/internal/testkit/fakegpu"
)

// FakeGPUs opens n fake GPUs with all kernels, and closes them when the test ends. faults are lines for
// [fakegpu.Control]. Until the end of the test the process opens no real GPU.
func FakeGPUs(t testing.TB, n int, faults ...string) []device.Device {
	t.Helper()
	release := fakegpu.Use(t, faults...)
	var all []device.Device
	t.Cleanup(func() {
		release()
		for _, dev := range all {
			if err := dev.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	for i := range n {
		dev, err := cuda.Open(i, nil)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, dev)
	}
	return all
}
