//go:build cgo && linux

package nccl_test

import (
	"runtime"
	"testing"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/commtest"
	"github.com/goddp/goddp/internal/fakegpu"
)

// The rules for operands that share memory also hold for memory that the host cannot address.
// Package commtest has this test for real GPUs.
func TestEmulatedOperandsThatShareMemory(t *testing.T) {
	control(t, "memory 8000000000") // of many groups
	devices := make([]device.Device, 2)
	for i := range devices {
		dev, err := fakegpu.Open(i)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { dev.Close() })
		devices[i] = dev
	}
	commtest.Operands(t, len(devices), func(t testing.TB, opts *comm.Options, f func(pg *comm.ProcessGroup) error) {
		commtest.OnDevices(t, devices, opts, f)
		runtime.GC()
	})
}
